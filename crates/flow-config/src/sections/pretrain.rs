//! `[pretrain]`: what `flow-train pretrain` does: flow matching on the data, and the reward classifier.

use super::DType;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[pretrain]`: flow matching, loss `mean((v - (noise - x0))^2)` at `x_t = (1 - sigma) x0 + sigma noise`
/// (Lipman et al. 2022, arXiv 2210.02747).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PretrainConfig {
    /// Number of optimizer steps.
    #[schemars(range(min = 1, max = 100_000_000))]
    pub steps: usize,
    /// Images per step.
    #[schemars(range(min = 1, max = 65_536))]
    pub batch: usize,
    /// Peak learning rate of AdamW; falls along a cosine to a tenth of itself.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
    pub learning_rate: f64,
    /// Steps in which the learning rate rises linearly from 0; at most `steps`.
    #[schemars(range(max = 100_000_000))]
    pub warmup: usize,
    /// Decoupled weight decay of AdamW.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub weight_decay: f64,
    /// Fraction of images that are given the condition of another image: leaves RL something to learn.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub label_noise: f64,
    /// Fraction of conditions replaced by "no condition", which classifier-free guidance needs.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub condition_dropout: f64,
    /// Decay of the average of the weights that is written out; 0 writes the last weights.
    #[schemars(range(min = 0.0, max = 0.999_999))]
    pub ema_decay: f64,
    /// Factor of the load balance in the loss, for a model with experts (`[model.dit.moe]`): it is 1 for an even load and
    /// higher the fewer experts get the tokens (Fedus et al. 2021, arXiv 2101.03961, eq. 4).
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub balance_weight: f64,
    /// Where the weights go (safetensors), relative to the config file.
    #[serde(serialize_with = "crate::path_text::path")]
    pub output: PathBuf,
    /// What the weights are rounded to when they are written: `bf16` halves the file. A LoRA is written in f32.
    pub output_dtype: DType,
    /// Seed of the initial weights, batches, times and noise.
    #[schemars(range(max = 9_223_372_036_854_775_807_u64))]
    pub seed: u64,
    /// The digit classifier that serves as reward. Read when `data.kind = "digits"`.
    pub classifier: ClassifierConfig,
}

impl Default for PretrainConfig {
    fn default() -> Self {
        Self {
            steps: 2000,
            batch: 64,
            learning_rate: 1e-3,
            warmup: 100,
            weight_decay: 0.0,
            label_noise: 0.0,
            condition_dropout: 0.1,
            ema_decay: 0.995,
            balance_weight: 0.01,
            output: "weights/pretrained.safetensors".into(),
            output_dtype: DType::F32,
            seed: 0,
            classifier: ClassifierConfig::default(),
        }
    }
}

/// `[pretrain.classifier]`: a small convolutional network that reads digits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClassifierConfig {
    /// Train it at all.
    pub enabled: bool,
    /// Channels of the first convolution; the second has twice as many.
    #[schemars(range(min = 1, max = 128))]
    pub channels: usize,
    /// Number of optimizer steps.
    #[schemars(range(min = 1, max = 100_000_000))]
    pub steps: usize,
    /// Images per step.
    #[schemars(range(min = 1, max = 65_536))]
    pub batch: usize,
    /// Learning rate of AdamW.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
    pub learning_rate: f64,
    /// Decoupled weight decay of AdamW.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub weight_decay: f64,
    /// Where the weights go (safetensors), relative to the config file.
    #[serde(serialize_with = "crate::path_text::path")]
    pub output: PathBuf,
    /// Seed of the initial weights and of the batches.
    #[schemars(range(max = 9_223_372_036_854_775_807_u64))]
    pub seed: u64,
}

impl Default for ClassifierConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            channels: 16,
            steps: 600,
            batch: 64,
            learning_rate: 2e-3,
            weight_decay: 1e-4,
            output: "weights/classifier.safetensors".into(),
            seed: 0,
        }
    }
}
