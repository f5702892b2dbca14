//! `[optimizer]`: AdamW, clipping, accumulation, warm-up, the learning rate's schedule.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How AdamW's moments are stored. Its arithmetic is f32 either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MomentStorage {
    /// As they are computed: 8 bytes a trained weight for the two.
    #[default]
    F32,
    /// Rounded to bfloat16 after each step: 4 bytes. A change of less than a part in 256 is lost, so a second moment whose decay
    /// is above 0.996 follows large changes alone; choose `betas` accordingly.
    Bf16,
}

/// How trained weights are stored where a GPU computes in bf16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WeightStorage {
    /// f32: 4 bytes a weight, of which the model reads the upper two.
    #[default]
    F32,
    /// bfloat16: 2 bytes. A step rounds its result up or down at random, so that on average it is what was computed; the
    /// numbers follow from the seed. For `device.kind = "cuda"` with `device.dtype = "bf16"`.
    Bf16,
}

/// How gradients of the matrices of linear layers are stored between the backward pass and the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GradientStorage {
    /// As they are added up: 4 bytes a weight.
    #[default]
    F32,
    /// Rounded to bfloat16 after each backward pass: 2 bytes. With several to a step their sum is f32, and takes 4 besides. For
    /// `device.kind = "cuda"` with `device.dtype = "bf16"`.
    Bf16,
}

/// `[optimizer.schedule]`: how the learning rate goes on after the warm-up, chosen by `kind`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "kebab-case")]
pub enum RateSchedule {
    /// It stays.
    Constant(ConstantRate),
    /// It falls along a line.
    Linear(FallingRate),
    /// It falls along half a cosine (Loshchilov and Hutter 2017, arXiv 1608.03983, without restarts).
    Cosine(FallingRate),
}

impl Default for RateSchedule {
    fn default() -> Self {
        Self::Constant(ConstantRate::default())
    }
}

/// `kind = "constant"`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConstantRate {}

/// `kind = "linear"` or `kind = "cosine"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FallingRate {
    /// The last optimizer step before the rate is at its end, counted from the first of the run; above `warmup_steps`.
    #[schemars(range(min = 2, max = 100_000_000))]
    pub steps: usize,
    /// The end, as a share of `learning_rate`.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub to: f64,
}

/// `[optimizer]`: AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101) in f32.
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
    #[schemars(range(min = 1e-30, max = 1.0))]
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
    /// How the learning rate goes on then.
    pub schedule: RateSchedule,
    /// How the moments are stored.
    pub moments: MomentStorage,
    /// How gradients are stored.
    pub gradients: GradientStorage,
    /// How the trained weights are stored.
    pub weights: WeightStorage,
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
            schedule: RateSchedule::default(),
            moments: MomentStorage::default(),
            gradients: GradientStorage::default(),
            weights: WeightStorage::default(),
        }
    }
}
