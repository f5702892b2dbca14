//! Exponential moving averages of weights: decay schedules, and when they are applied.
//!
//! Source of the schedules: Flow-Factory `ema/ema_utils.py`; `power` is the warm-up of diffusers' `EMAModel` and timm;
//! `piecewise_linear` is DiffusionNFT's decay of the old policy (`scripts/train_nft_sd3.py`, lines 169 to 188).

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

/// Decay as a function of the update's number, from 0. A decay of 0 copies the weights, 1 ignores them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum EmaSchedule {
    /// Always `decay`.
    Constant {
        /// The decay.
        decay: f64,
    },
    /// `min(decay, (1 + t) / (warmup_steps + t))`; without warm-up, `decay`.
    Power {
        /// Largest decay.
        decay: f64,
        /// Larger values reach `decay` later.
        warmup_steps: f64,
    },
    /// From `initial_decay` to `decay` in a straight line over `warmup_steps`.
    Linear {
        /// Final decay.
        decay: f64,
        /// Decay at step 0.
        initial_decay: f64,
        /// Length of the ramp.
        warmup_steps: u64,
    },
    /// 0 before `flat_steps`, then `min((t - flat_steps) * ramp_rate, decay)`.
    PiecewiseLinear {
        /// Largest decay.
        decay: f64,
        /// Steps at decay 0.
        flat_steps: u64,
        /// Growth per step.
        ramp_rate: f64,
    },
    /// From `initial_decay` to `decay` along half a cosine over `total_steps`.
    Cosine {
        /// Final decay.
        decay: f64,
        /// Decay at step 0.
        initial_decay: f64,
        /// Length of the half wave.
        total_steps: u64,
    },
    /// From 0 to `initial_decay` in a straight line over `warmup_steps`, then to `decay` along half a cosine that ends
    /// at `total_steps`.
    WarmupCosine {
        /// Final decay.
        decay: f64,
        /// Decay at the end of the warm-up.
        initial_decay: f64,
        /// Length of the ramp.
        warmup_steps: u64,
        /// End of the half wave, counted from step 0.
        total_steps: u64,
    },
}

impl EmaSchedule {
    /// DiffusionNFT's old policy, type 0: always the current policy (on-policy).
    pub const NFT_ON_POLICY: Self = Self::PiecewiseLinear {
        decay: 0.0,
        flat_steps: 0,
        ramp_rate: 0.0,
    };
    /// DiffusionNFT's old policy, type 1: decay grows by 0.001 per step to 0.5.
    pub const NFT_RAMP_TO_HALF: Self = Self::PiecewiseLinear {
        decay: 0.5,
        flat_steps: 0,
        ramp_rate: 0.001,
    };
    /// DiffusionNFT's old policy, type 2: on-policy for 75 steps, then a ramp of 0.0075 per step to 0.999.
    pub const NFT_FLAT_THEN_SLOW: Self = Self::PiecewiseLinear {
        decay: 0.999,
        flat_steps: 75,
        ramp_rate: 0.0075,
    };

    /// Checks the parameters.
    ///
    /// # Errors
    /// A message naming the parameter, its value and what is allowed.
    pub fn validate(&self) -> Result<(), String> {
        let share = |name: &str, value: f64| {
            if (0.0..=1.0).contains(&value) {
                Ok(())
            } else {
                Err(format!("EMA {name} is {value}; it must be 0 to 1"))
            }
        };
        let some = |name: &str, value: u64| {
            if value > 0 {
                Ok(())
            } else {
                Err(format!("EMA {name} is 0; it must be at least 1"))
            }
        };
        match *self {
            Self::Constant { decay } => share("decay", decay),
            Self::Power { decay, warmup_steps } => {
                share("decay", decay)?;
                if warmup_steps == 0.0 || (warmup_steps >= 1.0 && warmup_steps.is_finite()) {
                    Ok(())
                } else {
                    Err(format!(
                        "EMA warmup_steps is {warmup_steps}; it must be 0 (no warm-up) or at least 1"
                    ))
                }
            }
            Self::Linear {
                decay,
                initial_decay,
                warmup_steps,
            } => {
                share("decay", decay)?;
                share("initial_decay", initial_decay)?;
                some("warmup_steps", warmup_steps)
            }
            Self::PiecewiseLinear { decay, ramp_rate, .. } => {
                share("decay", decay)?;
                if ramp_rate >= 0.0 && ramp_rate.is_finite() {
                    Ok(())
                } else {
                    Err(format!("EMA ramp_rate is {ramp_rate}; it must be 0 or above"))
                }
            }
            Self::Cosine {
                decay,
                initial_decay,
                total_steps,
            } => {
                share("decay", decay)?;
                share("initial_decay", initial_decay)?;
                some("total_steps", total_steps)
            }
            Self::WarmupCosine {
                decay,
                initial_decay,
                warmup_steps,
                total_steps,
            } => {
                share("decay", decay)?;
                share("initial_decay", initial_decay)?;
                if total_steps > warmup_steps {
                    Ok(())
                } else {
                    Err(format!(
                        "EMA total_steps is {total_steps}; it must be above warmup_steps, which is {warmup_steps}"
                    ))
                }
            }
        }
    }

    /// The decay of update `step`, from 0 for averages, from 1 for DiffusionNFT's old policy, as in the sources. In `[0, 1]` for parameters that pass [`EmaSchedule::validate`].
    pub fn decay_at(&self, step: u64) -> f64 {
        let line = |from: f64, to: f64, progress: f64| from + (to - from) * progress;
        let half_wave = |progress: f64| (1.0 - libm::cos(PI * progress)) / 2.0;
        // 1 from the end on, an empty interval included, so that the final value is met exactly.
        let progress = |done: u64, of: u64| if done >= of { 1.0 } else { done as f64 / of as f64 };
        match *self {
            Self::Constant { decay }
            | Self::Power {
                decay,
                warmup_steps: 0.0,
            } => decay,
            Self::Power { decay, warmup_steps } => {
                decay.min((1.0 + step as f64) / (warmup_steps + step as f64))
            }
            Self::Linear {
                decay,
                initial_decay,
                warmup_steps,
            } => match progress(step, warmup_steps) {
                1.0 => decay,
                part => line(initial_decay, decay, part),
            },
            Self::PiecewiseLinear {
                decay,
                flat_steps,
                ramp_rate,
            } => (step.saturating_sub(flat_steps) as f64 * ramp_rate).min(decay),
            Self::Cosine {
                decay,
                initial_decay,
                total_steps,
            } => match progress(step, total_steps) {
                1.0 => decay,
                part => line(initial_decay, decay, half_wave(part)),
            },
            Self::WarmupCosine {
                initial_decay,
                warmup_steps,
                ..
            } if step < warmup_steps => initial_decay * progress(step, warmup_steps),
            Self::WarmupCosine {
                decay,
                initial_decay,
                warmup_steps,
                total_steps,
            } => match progress(step - warmup_steps, total_steps.saturating_sub(warmup_steps)) {
                1.0 => decay,
                part => line(initial_decay, decay, half_wave(part)),
            },
        }
    }
}

impl From<&flow_config::EmaSchedule> for EmaSchedule {
    fn from(schedule: &flow_config::EmaSchedule) -> Self {
        use flow_config::EmaSchedule as Config;
        match schedule {
            Config::Constant(c) => Self::Constant { decay: c.decay },
            Config::Power(c) => Self::Power {
                decay: c.decay,
                warmup_steps: c.warmup,
            },
            Config::Linear(c) => Self::Linear {
                decay: c.decay,
                initial_decay: c.initial,
                warmup_steps: c.steps as u64,
            },
            Config::PiecewiseLinear(c) => Self::PiecewiseLinear {
                decay: c.maximum,
                flat_steps: c.flat as u64,
                ramp_rate: c.rate,
            },
            Config::Cosine(c) => Self::Cosine {
                decay: c.decay,
                initial_decay: c.initial,
                total_steps: c.steps as u64,
            },
            Config::WarmupCosine(c) => Self::WarmupCosine {
                decay: c.decay,
                initial_decay: c.initial,
                warmup_steps: c.warmup as u64,
                total_steps: (c.warmup as u64).saturating_add(c.steps as u64),
            },
        }
    }
}

impl From<&crate::algorithm::OldPolicyConfig> for EmaSchedule {
    fn from(policy: &crate::algorithm::OldPolicyConfig) -> Self {
        Self::PiecewiseLinear {
            decay: policy.hold,
            flat_steps: policy.flat as u64,
            ramp_rate: policy.rate,
        }
    }
}

/// A schedule that is applied every so many steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct EmaPlan {
    schedule: EmaSchedule,
    interval: u64,
}

impl EmaPlan {
    /// Applies `schedule` at every `interval`-th step.
    ///
    /// # Errors
    /// A message, if a parameter of the schedule is out of range or the interval is 0.
    pub fn new(schedule: EmaSchedule, interval: u64) -> Result<Self, String> {
        schedule.validate()?;
        if interval == 0 {
            return Err("EMA update interval is 0; use at least 1, or switch the average off".into());
        }
        Ok(Self { schedule, interval })
    }

    /// The decay to apply after `step` (from 0), `None` where the average rests: updates come after steps
    /// `interval - 1`, `2 * interval - 1`, and so on, with the decay of the step (Flow-Factory `ema/ema.py`).
    pub fn decay_after(&self, step: u64) -> Option<f64> {
        (step % self.interval == self.interval - 1).then(|| self.schedule.decay_at(step))
    }
}
