//! `[optimizer]`: AdamW, clipping, accumulation, warm-up.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[optimizer]`: AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101) with f32 state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerConfig {
    /// Learning rate after the warm-up.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
    pub learning_rate: f64,
    /// Decays of the first and second moment, each in 0 to 0.999999.
    #[schemars(inner(range(min = 0.0, max = 0.999_999)))]
    pub betas: [f64; 2],
    /// Added to the root of the second moment.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
    pub epsilon: f64,
    /// Decoupled weight decay, multiplied by the learning rate.
    #[schemars(range(min = 0.0, max = 10.0))]
    pub weight_decay: f64,
    /// Gradients whose global norm is above this are scaled down to it. 0 turns clipping off.
    #[schemars(range(min = 0.0, max = 1e9))]
    pub max_grad_norm: f64,
    /// Micro-batches per optimizer step; all SDE steps of a micro-batch are accumulated with it. 0 makes one
    /// optimizer step per pass over the rollout. Divides the number of micro-batches.
    #[schemars(range(max = 65_536))]
    pub gradient_accumulation: usize,
    /// Optimizer steps in which the learning rate rises linearly from 0.
    #[schemars(range(max = 100_000_000))]
    pub warmup_steps: usize,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self {
            learning_rate: 1e-4,
            betas: [0.9, 0.999],
            epsilon: 1e-8,
            weight_decay: 1e-4,
            max_grad_norm: 1.0,
            gradient_accumulation: 0,
            warmup_steps: 0,
        }
    }
}
