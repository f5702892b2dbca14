//! Which steps of a trajectory are stochastic, and hence trained, at which iteration.
//!
//! Steps are numbered from 0. Unless listed, the last step is never a candidate: noise added there would stay in the
//! finished image (Flow-Factory's default, `scheduler/flow_match_euler_discrete.py`, `sde_steps`).

use flow_core::rng::{Purpose, Stream};
use serde::{Deserialize, Serialize};

use super::SchedulerError;

/// What a sliding window does after its last position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowEnd {
    /// Starts again from the first position.
    Wrap,
    /// Stays at the last position.
    Stop,
}

/// The choice of stochastic steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SdeWindow {
    /// Every step but the last.
    All,
    /// The listed steps, at every iteration.
    List(Vec<usize>),
    /// A new draw at every iteration (Flow-Factory's `num_sde_steps` of `sde_steps`).
    Random {
        /// Steps to draw from; `None` means every step but the last.
        candidates: Option<Vec<usize>>,
        /// Steps drawn, without repetition.
        count: usize,
    },
    /// Neighbouring steps that move towards the data as training goes on (MixGRPO, arXiv 2507.21802).
    Sliding {
        /// Steps in the window.
        size: usize,
        /// Steps by which the window moves. The last position is moved back, if need be, to end at the last candidate.
        stride: usize,
        /// Iterations spent at each position.
        hold_iterations: u64,
        /// What happens after the last position.
        end: WindowEnd,
    },
    /// Neighbouring steps, whose place is drawn anew at every iteration (flow_grpo's `sde_window_size` in `sde_window_range`,
    /// `train_sd3_fast.py`).
    Contiguous {
        /// `[lo, hi]`: among the steps `lo ..= hi - 1`; `None` means the first half.
        range: Option<[usize; 2]>,
        /// Steps in the window.
        size: usize,
    },
}

impl SdeWindow {
    /// Checks the window against a number of sampling steps. `seed` decides random draws and nothing else.
    ///
    /// # Errors
    /// If the window is empty or too large, or a listed step does not exist or is listed twice.
    pub fn plan(&self, steps: usize, seed: u64) -> Result<SdeWindowPlan, SchedulerError> {
        let empty = |why: String| Err(SchedulerError::EmptyWindow { why });
        let candidates = match self {
            Self::List(list)
            | Self::Random {
                candidates: Some(list),
                ..
            } => checked(list, steps)?,
            Self::Contiguous { range, .. } => {
                let [lo, hi] = range.unwrap_or([0, steps / 2]);
                if hi > steps {
                    let step = hi - 1;
                    return Err(SchedulerError::Step { step, steps });
                }
                (lo..hi).collect()
            }
            _ => (0..steps.saturating_sub(1)).collect(),
        };
        if candidates.is_empty() {
            return empty(match self {
                Self::List(_)
                | Self::Random {
                    candidates: Some(_), ..
                } => "no step is listed; list at least one".into(),
                Self::Contiguous {
                    range: Some([lo, hi]),
                    ..
                } => {
                    format!("its range [{lo}, {hi}] has no step; use lo < hi")
                }
                _ => format!("with {steps} sampling steps there is none before the last; use at least 2"),
            });
        }
        let (size, what) = match *self {
            Self::All | Self::List(_) => (candidates.len(), ""),
            Self::Random { count, .. } => (count, "count"),
            Self::Sliding { size, .. } | Self::Contiguous { size, .. } => (size, "size"),
        };
        if size == 0 {
            return empty(format!("its {what} is 0; use at least 1"));
        }
        if size > candidates.len() {
            return Err(SchedulerError::WindowTooLarge {
                wanted: size,
                available: candidates.len(),
            });
        }
        if let Self::Sliding {
            stride,
            hold_iterations,
            ..
        } = *self
        {
            if stride == 0 {
                return empty(
                    "its stride is 0, so that it would never move; use at least 1, or a list".into(),
                );
            }
            if hold_iterations == 0 {
                return empty("it holds each position for 0 iterations; use at least 1".into());
            }
        }
        Ok(SdeWindowPlan {
            window: self.clone(),
            candidates,
            size,
            stream: Stream::new(seed, Purpose::Window),
        })
    }
}

/// Sorted copy of a list of steps that exist and are listed once.
fn checked(list: &[usize], steps: usize) -> Result<Vec<usize>, SchedulerError> {
    let mut sorted = list.to_vec();
    sorted.sort_unstable();
    if let Some(&step) = sorted.iter().find(|&&step| step >= steps) {
        return if steps == 0 {
            Err(SchedulerError::NoSteps)
        } else {
            Err(SchedulerError::Step { step, steps })
        };
    }
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(SchedulerError::DuplicateStep { step: pair[0] });
    }
    Ok(sorted)
}

/// A window that fits its schedule. A pure function from the iteration to steps: nothing to save, nothing to resume.
#[derive(Debug, Clone, PartialEq)]
pub struct SdeWindowPlan {
    window: SdeWindow,
    candidates: Vec<usize>,
    size: usize,
    stream: Stream,
}

impl SdeWindowPlan {
    /// The stochastic steps of an iteration, ascending. There are always [`SdeWindowPlan::size`] of them.
    pub fn steps_for(&self, iteration: u64) -> Vec<usize> {
        match self.window {
            SdeWindow::All | SdeWindow::List(_) => self.candidates.clone(),
            SdeWindow::Random { .. } => {
                let order = self.stream.at(iteration, 0).permutation(self.candidates.len());
                let mut steps: Vec<usize> = order[..self.size].iter().map(|&i| self.candidates[i]).collect();
                steps.sort_unstable();
                steps
            }
            SdeWindow::Sliding {
                stride,
                hold_iterations,
                end,
                ..
            } => {
                let last_start = self.candidates.len() - self.size;
                let positions = last_start.div_ceil(stride) as u64 + 1;
                let turn = iteration / hold_iterations;
                let position = match end {
                    WindowEnd::Wrap => turn % positions,
                    WindowEnd::Stop => turn.min(positions - 1),
                };
                // In range of usize: `position` is below `positions`, itself a usize plus one.
                let start = (position as usize).saturating_mul(stride).min(last_start);
                self.candidates[start..start + self.size].to_vec()
            }
            SdeWindow::Contiguous { .. } => {
                let places = (self.candidates.len() - self.size + 1) as u64;
                let start = self.stream.at(iteration, 0).below(places) as usize;
                self.candidates[start..start + self.size].to_vec()
            }
        }
    }

    /// Stochastic steps per trajectory, the same at every iteration.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Every step that some iteration may select, ascending.
    pub fn candidates(&self) -> &[usize] {
        &self.candidates
    }
}
