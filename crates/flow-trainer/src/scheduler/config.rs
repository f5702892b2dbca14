//! From the config's sections to the options of this crate.

use flow_config as config;

use super::{
    DynamicShift, Dynamics, Hold, NoiseLevel, ScheduleOptions, SdeWindow, SigmaEnds, SigmaShift, WindowEnd,
};

impl From<config::Dynamics> for Dynamics {
    fn from(dynamics: config::Dynamics) -> Self {
        match dynamics {
            config::Dynamics::FlowSde => Self::FlowSde,
            config::Dynamics::DanceSde => Self::DanceSde,
            config::Dynamics::Cps => Self::Cps,
            config::Dynamics::Ode => Self::Ode,
        }
    }
}

impl SigmaShift {
    /// The shift of a config, for latents of `tokens` tokens.
    pub fn from_config(shift: &config::Shift, tokens: usize) -> Self {
        match shift {
            config::Shift::Static(shift) => Self::Static(shift.value),
            config::Shift::Dynamic(line) => {
                let &config::DynamicShift {
                    base_tokens,
                    max_tokens,
                    base_shift,
                    max_shift,
                } = line;
                Self::Dynamic {
                    line: DynamicShift {
                        base_tokens,
                        max_tokens,
                        base_shift,
                        max_shift,
                    },
                    tokens,
                }
            }
        }
    }
}

impl From<&config::SchedulerConfig> for SigmaEnds {
    fn from(scheduler: &config::SchedulerConfig) -> Self {
        Self {
            sigma_min: scheduler.sigma_min,
            shift_terminal: scheduler.shift_terminal,
        }
    }
}

impl From<&config::Window> for SdeWindow {
    /// The window of a config; its sliding window wraps. The seed of a window that is drawn is not part of it.
    fn from(window: &config::Window) -> Self {
        match window {
            config::Window::All(config::AllWindow {}) => Self::All,
            config::Window::List(list) => Self::List(list.steps.clone()),
            config::Window::Random(random) => Self::Random {
                candidates: random.from.clone(),
                count: random.count,
            },
            config::Window::Sliding(sliding) => Self::Sliding {
                size: sliding.size,
                stride: sliding.stride,
                hold: sliding.into(),
                end: WindowEnd::Wrap,
            },
            config::Window::Contiguous(contiguous) => Self::Contiguous {
                range: contiguous.range,
                size: contiguous.size,
            },
        }
    }
}

impl From<&config::SlidingWindow> for Hold {
    fn from(sliding: &config::SlidingWindow) -> Self {
        let first = sliding.hold as u64;
        match sliding.hold_decay {
            config::HoldDecay::None => Self::Constant(first),
            config::HoldDecay::Linear => Self::Linear {
                first,
                last: sliding
                    .hold_least
                    .map_or((first / 4).max(1), |least| least as u64),
            },
            config::HoldDecay::Exponential => Self::Exponential {
                first,
                from: sliding.decay_from,
                rate: sliding.decay_rate,
            },
        }
    }
}

impl ScheduleOptions {
    /// The options of `[scheduler]`, for latents of `tokens` tokens.
    pub fn from_config(scheduler: &config::SchedulerConfig, tokens: usize) -> Self {
        let seed = match &scheduler.window {
            config::Window::Random(random) => random.seed,
            config::Window::Contiguous(contiguous) => contiguous.seed,
            // Nothing is drawn.
            _ => 0,
        };
        Self {
            steps: scheduler.steps,
            ends: scheduler.into(),
            shift: SigmaShift::from_config(&scheduler.shift, tokens),
            dynamics: scheduler.dynamics.into(),
            noise_level: match &scheduler.noise_level {
                config::NoiseLevel::Constant(level) => NoiseLevel::Constant(*level),
                config::NoiseLevel::PerStep(levels) => NoiseLevel::PerStep(levels.clone()),
            },
            window: (&scheduler.window).into(),
            seed,
        }
    }
}
