//! `[lora]`: low-rank adapters, read when `model.finetune = "lora"`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[lora]`: low-rank adapters (Hu et al. 2021, arXiv 2106.09685): `y = W x + (alpha / rank) B A x`, with `B = 0` at
/// the start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoraConfig {
    /// Rank of the update.
    #[schemars(range(min = 1, max = 4096))]
    pub rank: usize,
    /// Scale of the update, divided by `rank`. Without it: twice the rank, as Flow-Factory has it.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub alpha: Option<f64>,
    /// Linears that get an adapter: patterns on their dotted names, in which `*` stands for any characters, dots
    /// included. A pattern that matches nothing is an error.
    #[schemars(length(min = 1), inner(length(min = 1)), extend("uniqueItems" = true))]
    pub targets: Vec<String>,
    /// Seed of the initial `A`. Without it, the seed of the run.
    #[schemars(range(max = 9_223_372_036_854_775_807_u64))]
    pub seed: Option<u64>,
    /// For which programs the adapter is written at the end of a run, and whether the model with it is (`merged`).
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    pub export: Vec<AdapterLayout>,
}

/// What is written of trained adapters: the layout of a LoRA file, by the program that reads it, or the whole model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AdapterLayout {
    /// `pytorch_lora_weights.safetensors`, for `load_lora_weights` of diffusers.
    Diffusers,
    /// `adapter_model.safetensors` and `adapter_config.json`, for `peft`.
    Peft,
    /// `lora_kohya.safetensors`, for ComfyUI, `kohya-ss` and `musubi-tuner`.
    Kohya,
    /// `merged.safetensors`, all weights of the model with the adapter folded in: as large as the model in f32.
    Merged,
}

impl Default for LoraConfig {
    fn default() -> Self {
        Self {
            rank: 8,
            alpha: None,
            targets: vec!["*".into()],
            seed: None,
            export: vec![AdapterLayout::Diffusers, AdapterLayout::Peft],
        }
    }
}

impl LoraConfig {
    /// `alpha`, or twice the rank where none is given.
    pub fn effective_alpha(&self) -> f64 {
        self.alpha.unwrap_or(2.0 * self.rank as f64)
    }

    /// The factor of the update: `alpha / rank`.
    pub fn scale(&self) -> f64 {
        self.effective_alpha() / self.rank as f64
    }
}
