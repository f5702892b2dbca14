//! The grid of noise levels (sigmas) that a sampler walks down, with static or resolution-dependent shift.

use serde::{Deserialize, Serialize};

use super::SchedulerError;

/// A model's timestep is this many times sigma (diffusers, `num_train_timesteps`).
pub const TIMESTEPS_PER_SIGMA: f64 = 1000.0;

/// Resolution-dependent shift: `mu` is linear in the number of latent tokens.
///
/// Source: diffusers `calculate_shift`, used by Flow-Factory `scheduler/flow_match_euler_discrete.py`; the idea and
/// the exponential form are in Esser et al. 2024 (arXiv 2403.03206, section 5.3.2) and FLUX's sampler.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DynamicShift {
    /// Sequence length, in latent tokens, at which `mu` is `base_shift`.
    pub base_tokens: usize,
    /// Sequence length, in latent tokens, at which `mu` is `max_shift`.
    pub max_tokens: usize,
    /// `mu` at `base_tokens`.
    pub base_shift: f64,
    /// `mu` at `max_tokens`.
    pub max_shift: f64,
}

impl Default for DynamicShift {
    fn default() -> Self {
        Self {
            base_tokens: 256,
            max_tokens: 4096,
            base_shift: 0.5,
            max_shift: 1.15,
        }
    }
}

impl DynamicShift {
    /// `mu` for a latent of `tokens` tokens; the line is continued beyond its two points, as diffusers does.
    pub fn mu(&self, tokens: usize) -> f64 {
        let slope = (self.max_shift - self.base_shift) / (self.max_tokens as f64 - self.base_tokens as f64);
        self.base_shift + slope * (tokens as f64 - self.base_tokens as f64)
    }
}

/// How the evenly spaced sigmas are warped towards noise.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum SigmaShift {
    /// `s * sigma / (1 + (s - 1) * sigma)`; 1 leaves the grid even. Source: Esser et al. 2024, equation 23.
    Static(f64),
    /// `e^mu / (e^mu + 1 / sigma - 1)` with `mu` from the sequence length: a static shift by `e^mu`.
    Dynamic {
        /// The line that gives `mu`.
        line: DynamicShift,
        /// Latent tokens of one sample.
        tokens: usize,
    },
}

impl SigmaShift {
    /// No shift.
    pub const NONE: Self = Self::Static(1.0);

    /// The factor `s` of the equivalent static shift.
    ///
    /// # Errors
    /// If the shift is not a positive finite number, or the line of a dynamic shift is undefined.
    pub fn factor(&self) -> Result<f64, SchedulerError> {
        let shift = match *self {
            Self::Static(shift) => shift,
            Self::Dynamic { line, tokens } => {
                let DynamicShift {
                    base_tokens,
                    max_tokens,
                    base_shift,
                    max_shift,
                } = line;
                if base_tokens == max_tokens || !base_shift.is_finite() || !max_shift.is_finite() {
                    return Err(SchedulerError::DynamicShift {
                        base_tokens,
                        max_tokens,
                        base_shift,
                        max_shift,
                    });
                }
                libm::exp(line.mu(tokens))
            }
        };
        if shift.is_finite() && shift > 0.0 {
            Ok(shift)
        } else {
            Err(SchedulerError::Shift { shift })
        }
    }
}

/// Where a grid ends before its final 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SigmaEnds {
    /// The last sigma before the shift; none: `1 / steps`. SD3's scheduler shifts the sigma of its last training step and begins
    /// from there (diffusers `FlowMatchEulerDiscreteScheduler.sigma_min`).
    pub sigma_min: Option<f64>,
    /// The last sigma behind the shift, to which all are stretched (diffusers `stretch_shift_to_terminal`).
    pub shift_terminal: Option<f64>,
}

/// Sigmas of a trajectory: one per step in strictly falling order, and a final 0.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SigmaGrid {
    sigmas: Vec<f64>,
}

impl SigmaGrid {
    /// `steps` evenly spaced sigmas from 1 to `1 / steps`, shifted, then 0.
    ///
    /// Source: Flow-Factory `scheduler/flow_match_euler_discrete.py` (`set_scheduler_timesteps`), diffusers
    /// `FlowMatchEulerDiscreteScheduler.set_timesteps`.
    ///
    /// # Errors
    /// If `steps` is 0 or the shift is impossible.
    pub fn new(steps: usize, shift: SigmaShift) -> Result<Self, SchedulerError> {
        Self::between(steps, SigmaEnds::default(), shift)
    }

    /// As [`new`](Self::new), with other ends than `1 / steps`.
    ///
    /// # Errors
    /// If `steps` is 0, or the shift or an end is impossible.
    pub fn between(steps: usize, ends: SigmaEnds, shift: SigmaShift) -> Result<Self, SchedulerError> {
        if steps == 0 {
            return Err(SchedulerError::NoSteps);
        }
        let factor = shift.factor()?;
        let even = |step: usize| match ends.sigma_min {
            None => (steps - step) as f64 / steps as f64,
            // numpy's `linspace`.
            Some(last) => 1.0 + (last - 1.0) * (step as f64 / (steps - 1).max(1) as f64),
        };
        let mut sigmas: Vec<f64> = (0..steps).map(|step| shifted(even(step), factor)).collect();
        if let Some(terminal) = ends.shift_terminal {
            // A single sigma is 1, which nothing stretches.
            let below_one = 1.0 - sigmas[steps - 1];
            if below_one > 0.0 {
                let stretch = (1.0 - terminal) / below_one;
                for sigma in &mut sigmas {
                    *sigma = 1.0 - (1.0 - *sigma) * stretch;
                }
            }
        }
        sigmas.push(0.0);
        Self::from_sigmas(sigmas)
    }

    /// A grid of given sigmas, the final 0 included.
    ///
    /// # Errors
    /// If there is no step, or a sigma is not finite, not in `(0, 1]`, not below the one before, or the last is not 0.
    pub fn from_sigmas(sigmas: Vec<f64>) -> Result<Self, SchedulerError> {
        if sigmas.len() < 2 {
            return Err(SchedulerError::NoSteps);
        }
        let last = sigmas.len() - 1;
        for (index, &value) in sigmas.iter().enumerate() {
            let above = if index == 0 { 1.0 } else { sigmas[index - 1] };
            let falls = if index == 0 { value <= above } else { value < above };
            let placed = if index == last { value == 0.0 } else { value > 0.0 };
            // A NaN fails both comparisons.
            if !(falls && placed) {
                return Err(SchedulerError::Sigmas { index, value });
            }
        }
        Ok(Self { sigmas })
    }

    /// The sigmas, one per step and a final 0.
    pub fn sigmas(&self) -> &[f64] {
        &self.sigmas
    }

    /// Number of model calls of a trajectory.
    pub fn steps(&self) -> usize {
        self.sigmas.len() - 1
    }

    /// Sigma at the beginning of a step.
    ///
    /// # Errors
    /// If the step does not exist.
    pub fn sigma(&self, step: usize) -> Result<f64, SchedulerError> {
        if step < self.steps() {
            Ok(self.sigmas[step])
        } else {
            Err(SchedulerError::Step {
                step,
                steps: self.steps(),
            })
        }
    }

    /// Timesteps that the model is called with, `1000 * sigma`, one per step.
    pub fn timesteps(&self) -> Vec<f64> {
        self.sigmas[..self.steps()]
            .iter()
            .map(|sigma| sigma * TIMESTEPS_PER_SIGMA)
            .collect()
    }
}

/// The place of `sigma` behind a shift by `factor`. Divided by `s * sigma + (1 - sigma)`, which is exactly s at 1, so that a grid starts at
/// exactly 1.
pub(super) fn shifted(sigma: f64, factor: f64) -> f64 {
    factor * sigma / (factor * sigma + (1.0 - sigma))
}
