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

/// How many iterations a sliding window spends at a position (MixGRPO, `fastvideo/utils/grpo_states.py`, e5cdd6a).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// The same at every position.
    Constant(u64),
    /// From `first` at the first candidate to `last` at the last one, rounded down.
    Linear {
        /// At the first candidate.
        first: u64,
        /// At the last candidate, and the least.
        last: u64,
    },
    /// `first exp(-rate (start - from))` behind `from`, rounded up.
    Exponential {
        /// Up to `from`.
        first: u64,
        /// The last start at which it is `first`.
        from: usize,
        /// Fall per step.
        rate: f64,
    },
}

impl Hold {
    /// Iterations at the position that begins at candidate `start` of `candidates`.
    fn at(self, start: usize, candidates: usize) -> u64 {
        match self {
            Self::Constant(iterations) => iterations,
            Self::Linear { first, last } => {
                let share = start as f64 / candidates.saturating_sub(1).max(1) as f64;
                last.max((first as f64 * (1.0 - share) + last as f64 * share) as u64)
            }
            Self::Exponential { first, from, rate } => {
                let beyond = start.saturating_sub(from) as f64;
                (first as f64 * libm::exp(-rate * beyond)).ceil() as u64
            }
        }
    }

    /// Iterations at the first position; none at all are an error of the window.
    fn first(self) -> u64 {
        match self {
            Self::Constant(first) | Self::Linear { first, .. } | Self::Exponential { first, .. } => first,
        }
    }
}

/// The choice of stochastic steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
        hold: Hold,
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
        if let Self::Sliding { stride, hold, .. } = *self {
            if stride == 0 {
                return empty(
                    "its stride is 0, so that it would never move; use at least 1, or a list".into(),
                );
            }
            if hold.first() == 0 {
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

/// Where draws for groups are addressed, beside those for iterations, which have 0.
const OF_GROUPS: u32 = 1;

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
                stride, hold, end, ..
            } => {
                let start = self.sliding_start(iteration, (stride, hold, end));
                self.candidates[start..start + self.size].to_vec()
            }
            SdeWindow::Contiguous { .. } => {
                let places = (self.candidates.len() - self.size + 1) as u64;
                let start = self.stream.at(iteration, 0).below(places) as usize;
                self.candidates[start..start + self.size].to_vec()
            }
        }
    }

    /// The candidate at which a sliding window begins.
    fn sliding_start(&self, iteration: u64, (stride, hold, end): (usize, Hold, WindowEnd)) -> usize {
        let last_start = self.candidates.len() - self.size;
        let positions = last_start.div_ceil(stride) + 1;
        let start = |position: usize| position.saturating_mul(stride).min(last_start);
        // At least one iteration each: a fall may round down to none.
        let holds = (0..positions).map(|position| hold.at(start(position), self.candidates.len()).max(1));
        let holds: Vec<u64> = holds.collect();
        let round: u64 = holds.iter().fold(0, |sum: u64, hold| sum.saturating_add(*hold));
        let mut left = match end {
            WindowEnd::Wrap => iteration % round,
            WindowEnd::Stop => iteration,
        };
        for (position, hold) in holds.into_iter().enumerate() {
            if left < hold {
                return start(position);
            }
            left -= hold;
        }
        last_start
    }

    /// One of `0..steps` (at least 1) for the group with this number in the run: uniform, and independent of other groups, as Flash-GRPO
    /// draws a step for each prompt (arXiv 2605.15980, `train_wanx2_1_flash.py`, 4211013).
    pub fn place_of_group(&self, group: u64, steps: usize) -> usize {
        self.stream.at(group, OF_GROUPS).below(steps.max(1) as u64) as usize
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
