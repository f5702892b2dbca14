//! `[ema]`: the moving average of the trained weights.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[ema]`: `average <- d average + (1 - d) weights`, in f32.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EmaConfig {
    /// Keep an average.
    pub enabled: bool,
    /// Iterations between updates.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub update_every: usize,
    /// The decay `d` at iteration `t`.
    pub schedule: EmaSchedule,
}

impl Default for EmaConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            update_every: 1,
            schedule: EmaSchedule::default(),
        }
    }
}

/// `[ema.schedule]`: the decay `d` after iteration `t`, counted from 0, chosen by `kind` (Flow-Factory's schedules).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "kebab-case")]
pub enum EmaSchedule {
    /// `d = decay`.
    Constant(ConstantEma),
    /// `d = min(decay, (1 + t) / (warmup + t))`.
    Power(PowerEma),
    /// Linear from `initial` to `decay` over `steps` iterations.
    Linear(RampEma),
    /// 0 up to iteration `flat`, then `min((t - flat) * rate, maximum)`.
    PiecewiseLinear(PiecewiseLinearEma),
    /// Half a cosine from `initial` to `decay` over `steps` iterations.
    Cosine(RampEma),
    /// Linear from 0 to `initial` over `warmup` iterations, then half a cosine to `decay` over `steps` more.
    WarmupCosine(WarmupCosineEma),
}

impl Default for EmaSchedule {
    fn default() -> Self {
        Self::Power(PowerEma::default())
    }
}

/// `kind = "constant"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConstantEma {
    /// The decay, 0 to 1 (not included).
    #[schemars(range(min = 0.0, max = 0.999_999))]
    pub decay: f64,
}

impl Default for ConstantEma {
    fn default() -> Self {
        Self { decay: 0.995 }
    }
}

/// `kind = "power"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PowerEma {
    /// Most that the decay becomes.
    #[schemars(range(min = 0.0, max = 0.999_999))]
    pub decay: f64,
    /// `w` in `(1 + t) / (w + t)`: the larger, the slower the decay rises.
    #[schemars(range(min = 1.0, max = 1e9))]
    pub warmup: f64,
}

impl Default for PowerEma {
    fn default() -> Self {
        Self {
            decay: 0.995,
            warmup: 10.0,
        }
    }
}

/// `kind = "linear"` and `kind = "cosine"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RampEma {
    /// The decay at the start.
    #[schemars(range(min = 0.0, max = 0.999_999))]
    pub initial: f64,
    /// The decay at the end.
    #[schemars(range(min = 0.0, max = 0.999_999))]
    pub decay: f64,
    /// Iterations from the one to the other.
    #[schemars(range(min = 1, max = 100_000_000))]
    pub steps: usize,
}

impl Default for RampEma {
    fn default() -> Self {
        Self {
            initial: 0.0,
            decay: 0.995,
            steps: 100,
        }
    }
}

/// `kind = "piecewise-linear"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PiecewiseLinearEma {
    /// Iterations with decay 0.
    #[schemars(range(max = 100_000_000))]
    pub flat: usize,
    /// Rise per iteration after that.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub rate: f64,
    /// Most that the decay becomes.
    #[schemars(range(min = 0.0, max = 0.999_999))]
    pub maximum: f64,
}

impl Default for PiecewiseLinearEma {
    fn default() -> Self {
        Self {
            flat: 0,
            rate: 0.001,
            maximum: 0.5,
        }
    }
}

/// `kind = "warmup-cosine"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WarmupCosineEma {
    /// Iterations of the linear part.
    #[schemars(range(max = 100_000_000))]
    pub warmup: usize,
    /// The decay at the end of the linear part.
    #[schemars(range(min = 0.0, max = 0.999_999))]
    pub initial: f64,
    /// The decay at the end.
    #[schemars(range(min = 0.0, max = 0.999_999))]
    pub decay: f64,
    /// Iterations of the cosine part.
    #[schemars(range(min = 1, max = 100_000_000))]
    pub steps: usize,
}

impl Default for WarmupCosineEma {
    fn default() -> Self {
        Self {
            warmup: 10,
            initial: 0.9,
            decay: 0.995,
            steps: 100,
        }
    }
}
