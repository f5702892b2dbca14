//! `[model]`: the architecture, its dimensions, its weights, and which of them are trained. Architectures and their dimensions
//! are plug-ins' ([`Catalog`](crate::Catalog)).

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// `[model]`: architecture and weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ModelConfig {
    /// Which architecture; its dimensions stand in the table of the same name, and the other tables must be
    /// left out.
    pub architecture: String,
    /// A diffusers folder (the one with `model_index.json`), relative to the config file: SD3, SD3.5, FLUX.1, Qwen-Image or Wan. It
    /// gives architecture, weights, text encoders, autoencoder and noise levels, where this config is silent; the model then works in
    /// latents, and rewards see what the autoencoder decodes.
    #[serde(serialize_with = "crate::path_text::option")]
    pub path: Option<PathBuf>,
    /// An autoencoder's folder, relative to the config file: of diffusers (`config.json` and weights), or with the two files of a TAESD,
    /// whose names end in `encoder.safetensors` and `decoder.safetensors`. The model, which is not of `path`, then works in its latents:
    /// `pretrain` encodes the images of `[data]`, and rewards see what it decodes.
    #[serde(serialize_with = "crate::path_text::option")]
    pub autoencoder: Option<PathBuf>,
    /// Which weights of `path` are read, by the word in their names: "fp16", "bf16". Without it the plain ones.
    pub variant: Option<String>,
    /// Width in pixels of what a model of `path` makes; without it that of the pipeline.
    #[schemars(range(min = 8, max = 16_384))]
    pub width: Option<usize>,
    /// Height in pixels, likewise.
    #[schemars(range(min = 8, max = 16_384))]
    pub height: Option<usize>,
    /// Frames of a video, likewise: one and a multiple of 4 more for Wan.
    #[schemars(range(min = 1, max = 4097))]
    pub frames: Option<usize>,
    /// Weights to start from: a safetensors file, or a directory or `index.json` of a sharded one, relative to
    /// the config file. Without it the model starts from random weights, which is of use to `pretrain` alone. What they
    /// say of their model (`config.json`, metadata) decides where this config is silent.
    #[serde(serialize_with = "crate::path_text::option")]
    pub weights: Option<PathBuf>,
    /// A LoRA file, or the folder of one, that adapters start from instead of zero: of diffusers, `peft`, `kohya-ss` or
    /// `ai-toolkit`, relative to the config file. It decides `finetune`, `lora.rank`, `lora.alpha` and `lora.targets` where
    /// this config is silent.
    #[serde(serialize_with = "crate::path_text::option")]
    pub adapter: Option<PathBuf>,
    /// Which weights RL trains.
    pub finetune: Finetune,
    /// The dimensions of each architecture, by its name.
    #[serde(flatten)]
    #[schemars(skip)]
    pub tables: Map<String, Value>,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            architecture: "dit".to_owned(),
            path: None,
            autoencoder: None,
            variant: None,
            width: None,
            height: None,
            frames: None,
            weights: None,
            adapter: None,
            finetune: Finetune::default(),
            tables: Map::new(),
        }
    }
}

impl ModelConfig {
    /// The folder of the autoencoder of a model that is of no diffusers folder, which brings its own.
    pub fn own_autoencoder(&self) -> Option<&Path> {
        self.autoencoder.as_deref().filter(|_| self.path.is_none())
    }

    /// Whether an autoencoder stands between the model and images.
    pub fn works_in_latents(&self) -> bool {
        self.path.is_some() || self.autoencoder.is_some()
    }

    /// The dimensions of the architecture in use.
    pub fn dimensions(&self) -> Map<String, Value> {
        let table = self.tables.get(&self.architecture);
        table.and_then(Value::as_object).cloned().unwrap_or_default()
    }

    /// The dimensions of the architecture `name` as the type of its plug-in.
    ///
    /// # Errors
    /// If they are another plug-in's.
    pub fn params<P: DeserializeOwned>(&self, name: &str) -> Result<P, serde_json::Error> {
        serde_json::from_value(self.tables.get(name).cloned().unwrap_or_default())
    }

    /// Sets a dimension of the architecture `name`, at a path below its table: `moe.experts`.
    pub fn set(&mut self, name: &str, path: &str, value: impl Into<Value>) {
        let mut place = self.tables.entry(name).or_insert_with(|| Map::new().into());
        for key in path.split('.') {
            if !place.is_object() {
                *place = Map::new().into();
            }
            place = &mut place[key];
        }
        *place = value.into();
    }
}

/// Which weights RL trains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Finetune {
    /// Every weight.
    #[default]
    Full,
    /// Low-rank adapters on the linears named in `[lora]`; the base stays frozen.
    Lora,
}
