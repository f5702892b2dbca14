//! Adapters in files, as `peft` lays them out: a directory with `adapter_model.safetensors` and
//! `adapter_config.json`.
//!
//! The config is in the safetensors metadata too, under the key that diffusers uses, so the one file is complete.

use super::stem;
use crate::ModelError;
use crate::weights::{Expected, StoredDtype, load_expected, replace, save_tensors};
use flow_core::{ParamLayout, Weights};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// File names of `peft` (0.17, `utils/constants.py`).
const WEIGHTS_FILE: &str = "adapter_model.safetensors";
const CONFIG_FILE: &str = "adapter_config.json";
/// What `peft` puts before every name.
const PREFIX: &str = "base_model.model.";
/// Where diffusers (0.42.1, `loaders/lora_base.py`) keeps the config within the file.
const METADATA_KEY: &str = "lora_adapter_metadata";

/// What an adapter file says about its adapters: enough to add the same ones to a layout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdapterConfig {
    /// Rank of every adapter.
    #[serde(rename = "r")]
    pub rank: usize,
    /// Scale times rank.
    #[serde(rename = "lora_alpha")]
    pub alpha: f32,
    /// Adapted layers, in the form [`add_lora`](super::add_lora) takes. `peft` has a pattern there, too.
    #[serde(rename = "target_modules", deserialize_with = "one_or_several")]
    pub targets: Vec<String>,
}

/// What `peft` may ask for beside a rank and a scale, and adapters here have not: read without it, an adapter would be
/// another one.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Beyond {
    use_rslora: bool,
    use_dora: bool,
    rank_pattern: BTreeMap<String, serde_json::Value>,
    alpha_pattern: BTreeMap<String, serde_json::Value>,
}

impl Beyond {
    fn asked_for(&self) -> Option<&'static str> {
        [
            ("use_rslora", self.use_rslora),
            ("use_dora", self.use_dora),
            ("rank_pattern", !self.rank_pattern.is_empty()),
            ("alpha_pattern", !self.alpha_pattern.is_empty()),
        ]
        .into_iter()
        .find_map(|(name, is_asked)| is_asked.then_some(name))
    }
}

fn one_or_several<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Targets {
        One(String),
        Several(Vec<String>),
    }
    Ok(match Targets::deserialize(from)? {
        Targets::One(pattern) => vec![pattern],
        Targets::Several(names) => names,
    })
}

/// Writes the adapters of `weights` to `directory`, which is made if need be.
///
/// # Errors
/// [`ModelError::Adapter`] if there are none or they differ in rank or scale; else as
/// [`save`](crate::weights::save).
pub fn export_adapters(
    weights: &Weights,
    directory: &Path,
    dtype: StoredDtype,
    metadata: &BTreeMap<String, String>,
) -> Result<(), ModelError> {
    let layout = weights.layout();
    let config = config_of(layout)?;
    let io = |action, path: &Path| {
        let path = path.to_owned();
        move |source| ModelError::Io { action, path, source }
    };
    fs::create_dir_all(directory).map_err(io("create", directory))?;

    let mut text = json!({
        "peft_type": "LORA", "task_type": null, "base_model_name_or_path": null, "inference_mode": true,
        "bias": "none", "lora_dropout": 0.0, "fan_in_fan_out": false, "modules_to_save": null,
        "rank_pattern": {}, "alpha_pattern": {}, "use_rslora": false, "use_dora": false,
    });
    text["r"] = config.rank.into();
    text["lora_alpha"] = json!(config.alpha);
    text["target_modules"] = json!(config.targets);
    let mut metadata = metadata.clone();
    metadata.insert(METADATA_KEY.into(), text.to_string());

    let factors = layout
        .adapters()
        .flat_map(|(_, adapter)| [adapter.down, adapter.up]);
    let tensors = factors.map(|factor| {
        let spec = &layout.specs()[factor.index()];
        (
            format!("{PREFIX}{}", spec.name),
            spec.shape.clone(),
            factor.index(),
        )
    });
    let path = directory.join(WEIGHTS_FILE);
    save_tensors(
        tensors.collect(),
        &|index| weights.host(index),
        &path,
        dtype,
        &metadata,
    )?;
    let path = directory.join(CONFIG_FILE);
    let pretty = format!("{text:#}\n");
    replace(&path, &mut |file| file.write_all(pretty.as_bytes())).map_err(io("write", &path))
}

/// Replaces the adapters of `weights` by those of `path`: a directory that [`export_adapters`] or `peft` wrote, or
/// its safetensors file. Names may begin with `base_model.model.`, with diffusers' `transformer.`, or with neither.
///
/// # Errors
/// As [`load_into`](crate::weights::load_into), about the adapters alone; [`ModelError::Adapter`] if the file's
/// scale is not that of the layout. `weights` is unchanged then.
pub fn load_adapters(weights: &mut Weights, path: &Path) -> Result<(), ModelError> {
    let expected = config_of(weights.layout())?;
    let found = read_adapter_config(path)?;
    let scale = |config: &AdapterConfig| config.alpha / config.rank as f32;
    // A wrong rank shows as wrong shapes, by name; a wrong scale would show nowhere.
    if found.rank == expected.rank && scale(&found) != scale(&expected) {
        return Err(ModelError::Adapter(format!(
            "`{}` was made with alpha {}, the model's adapters have alpha {}; set alpha to {}",
            path.display(),
            found.alpha,
            expected.alpha,
            found.alpha
        )));
    }
    load_expected(weights, &weights_file(path), Expected::Adapters(&without_prefix))?;
    Ok(())
}

/// Rank, alpha and targets of an adapter file or directory.
///
/// # Errors
/// [`ModelError::Io`]; [`ModelError::Format`] if neither the file nor an `adapter_config.json` beside it says.
pub fn read_adapter_config(path: &Path) -> Result<AdapterConfig, ModelError> {
    let file = weights_file(path);
    let bytes = fs::read(&file).map_err(|source| ModelError::Io {
        action: "read",
        path: file.clone(),
        source,
    })?;
    let format = |path: &Path, problem: String| ModelError::Format {
        path: path.to_owned(),
        problem,
    };
    let parsed = crate::weights::parse(&bytes).map_err(|problem| format(&file, problem))?;
    let beside = file.with_file_name(CONFIG_FILE);
    let (from, text) = match parsed.metadata.get(METADATA_KEY) {
        Some(text) => (&file, text.clone()),
        None => {
            let text = fs::read_to_string(&beside).map_err(|source| ModelError::Io {
                action: "read",
                path: beside.clone(),
                source,
            })?;
            (&beside, text)
        }
    };
    let unreadable = |error| format(from, format!("its adapter config cannot be read: {error}"));
    let config: AdapterConfig = serde_json::from_str(&text).map_err(unreadable)?;
    let beyond: Beyond = serde_json::from_str(&text).map_err(unreadable)?;
    if let Some(name) = beyond.asked_for() {
        return Err(ModelError::Adapter(format!(
            "`{}` was made with `{name}`, and adapters here have one rank and the scale `lora_alpha / r`; merge it with `peft` and load \
             the merged weights",
            from.display()
        )));
    }
    if config.rank == 0 || !config.alpha.is_finite() {
        return Err(format(
            from,
            "its adapter config has rank 0 or an alpha that is no number".into(),
        ));
    }
    Ok(config)
}

fn weights_file(path: &Path) -> PathBuf {
    if path.is_dir() {
        path.join(WEIGHTS_FILE)
    } else {
        path.to_owned()
    }
}

fn without_prefix(name: &str) -> &str {
    let name = name.strip_prefix(PREFIX).unwrap_or(name);
    name.strip_prefix("transformer.").unwrap_or(name)
}

fn config_of(layout: &ParamLayout) -> Result<AdapterConfig, ModelError> {
    let mut config: Option<(usize, f32)> = None;
    let mut targets = Vec::new();
    for (weight, adapter) in layout.adapters() {
        let rank = layout.specs()[adapter.down.index()].shape[0];
        let this = (rank, adapter.scale);
        if *config.get_or_insert(this) != this {
            let problem = "adapters differ in rank or scale; a file has one of each";
            return Err(ModelError::Adapter(problem.into()));
        }
        targets.push(stem(&layout.specs()[weight.index()].name).to_owned());
    }
    let Some((rank, scale)) = config else {
        let problem = "the model has none; add some to the layout first (`add_lora`)";
        return Err(ModelError::Adapter(problem.into()));
    };
    Ok(AdapterConfig {
        rank,
        alpha: scale * rank as f32,
        targets,
    })
}
