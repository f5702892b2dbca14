//! `[evaluation]`: measuring the model on held-out prompts with fixed noise.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[evaluation]`: ODE samples from fixed prompts and noise, before the first iteration and then regularly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluationConfig {
    /// Iterations between evaluations; there is one before the first iteration and one after the last as well.
    /// 0 turns evaluation off.
    #[schemars(range(max = 100_000_000))]
    pub every: usize,
    /// Number of held-out prompts, spread evenly over those there are; all of them if there are fewer.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub prompts: usize,
    /// Images per prompt.
    #[schemars(range(min = 1, max = 65_536))]
    pub images_per_prompt: usize,
    /// Number of denoising steps; without it, `scheduler.steps`.
    #[schemars(range(min = 1, max = 1000))]
    pub steps: Option<usize>,
    /// Classifier-free guidance; without it, `sampling.guidance_scale`.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub guidance_scale: Option<f64>,
    /// Seed of the noise, apart from the seed of the run, so that runs of several seeds are comparable.
    #[schemars(range(max = 9_223_372_036_854_775_807_u64))]
    pub seed: u64,
    /// Which weights are evaluated.
    pub weights: EvalWeights,
    /// The grid of pictures.
    pub grid: GridConfig,
}

impl Default for EvaluationConfig {
    fn default() -> Self {
        Self {
            every: 10,
            prompts: 20,
            images_per_prompt: 4,
            steps: None,
            guidance_scale: None,
            seed: 1234,
            weights: EvalWeights::Current,
            grid: GridConfig::default(),
        }
    }
}

/// Which weights are evaluated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EvalWeights {
    /// The moving average; needs `ema.enabled = true`.
    Ema,
    /// The weights as they are.
    #[default]
    Current,
}

/// `[evaluation.grid]`: a picture of samples at each evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GridConfig {
    /// Rows: one prompt each. 0 draws no grid.
    #[schemars(range(max = 100))]
    pub rows: usize,
    /// Columns: images of the row's prompt, at most `evaluation.images_per_prompt` are shown.
    #[schemars(range(min = 1, max = 100))]
    pub columns: usize,
    /// Side of one image in the picture, as a multiple of its pixels.
    #[schemars(range(min = 1, max = 64))]
    pub scale: usize,
}

impl Default for GridConfig {
    fn default() -> Self {
        Self {
            rows: 10,
            columns: 4,
            scale: 4,
        }
    }
}
