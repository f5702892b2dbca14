//! What weights and adapters say of the model they are of, as values of the config.
//!
//! Where the config is silent they decide, and where it says something else it is refused: whoever lays configs together does
//! both with [`Said`].

use super::model::outline;
use super::paths::start_in_config;
use crate::error::TrainError;
use flow_config::{Config, Finetune};
use flow_core::device::ComputeDevice;
use flow_models::dit::{Conditioning, DitSection};
use flow_models::flux::FluxSection;
use flow_models::mmdit::MmditSection;
use flow_models::qwen_image::QwenImageSection;
use flow_models::wan::WanSection;
use flow_models::weights::{Description, describe};
use flow_models::{AdapterFile, ModelRegistry};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// Values of the config that a file gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    /// The file.
    pub from: PathBuf,
    /// What it says, in order.
    pub values: Vec<SaidValue>,
}

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub struct SaidValue {
    /// Dotted path of the key.
    pub key: String,
    /// The value.
    pub value: Value,
    /// Whether the config may say something else.
    pub may_differ: bool,
}

impl Said {
    /// The values as TOML.
    pub fn toml(&self) -> String {
        // What JSON writes of numbers, texts, truth values and lists of them is TOML, too.
        let line = |it: &SaidValue| format!("{} = {}\n", it.key, it.value);
        self.values.iter().map(line).collect()
    }

    pub(super) fn push(&mut self, key: impl Into<String>, value: Value) {
        self.values.push(SaidValue {
            key: key.into(),
            value,
            may_differ: false,
        });
    }
}

impl SaidValue {
    /// Whether `given`, of the config, is another value: numbers as they are used, in f32.
    pub fn differs(&self, given: &Value) -> bool {
        let as_used = |value: &Value| value.as_f64().map(|it| it as f32);
        let same =
            given == &self.value || (as_used(given).is_some() && as_used(given) == as_used(&self.value));
        !self.may_differ && !same
    }
}

/// What the weights of `config` say of their model; `None` if they say nothing, or are not there.
///
/// # Errors
/// If the file that says it cannot be read, or is of an architecture that is not here.
pub fn said_by_weights(config: &Config, base: &Path) -> Result<Option<Said>, TrainError> {
    let Some(path) = &config.model.weights else {
        return Ok(None);
    };
    let file = base.join(path);
    if !file.exists() {
        return Ok(None);
    }
    let Some(description) = describe(&file)? else {
        return Ok(None);
    };
    let Description {
        from,
        class,
        constants,
    } = description;
    let mut said = Said {
        from,
        values: Vec::new(),
    };
    let architecture = match class.as_deref() {
        None => config.model.architecture.as_str(),
        Some("SD3Transformer2DModel") => "mmdit",
        Some("WanTransformer3DModel") => "wan",
        Some("FluxTransformer2DModel") => "flux",
        Some("QwenImageTransformer2DModel") => "qwen-image",
        Some("FlowTrainDiT") => "dit",
        Some(other) => {
            return Err(TrainError::setting(format!(
                "`{}` is of `{other}`, an architecture that is not here",
                said.from.display()
            ))
            .with_help(
                "there are SD3Transformer2DModel (`mmdit`), WanTransformer3DModel (`wan`), FluxTransformer2DModel (`flux`), \
                 QwenImageTransformer2DModel (`qwen-image`) and `dit`",
            ));
        }
    };
    said.push("model.architecture", architecture.into());
    match architecture {
        "dit" => {
            let own = config.model.params::<DitSection>("dit").unwrap_or_default();
            dit(&mut said, &constants, &own.conditioning);
        }
        other => said_by_constants(&mut said, other, &constants),
    }
    if class.is_none() {
        // A folder without a class may be of anything.
        said.values.remove(0);
    }
    Ok(Some(said))
}

/// What constants of a transformer of diffusers say of `architecture`.
pub(super) fn said_by_constants(said: &mut Said, architecture: &str, constants: &Map<String, Value>) {
    match architecture {
        "mmdit" => mmdit(said, constants),
        "wan" => wan(said, constants),
        "flux" => plainly::<FluxSection>(said, constants, architecture),
        "qwen-image" => plainly::<QwenImageSection>(said, constants, architecture),
        // What files of a plug-in say is the plug-in's alone.
        _ => {}
    }
}

/// Keys of a section of the config.
fn keys_of<T: Serialize>(section: &T) -> Map<String, Value> {
    match serde_json::to_value(section) {
        Ok(Value::Object(keys)) => keys,
        _ => Map::new(),
    }
}

fn mmdit(said: &mut Said, constants: &Map<String, Value>) {
    let known = keys_of(&MmditSection::default());
    for (key, value) in constants.iter().filter(|(key, _)| known.contains_key(*key)) {
        let value = match key.as_str() {
            "qk_norm" if value.is_string() || value.is_null() => json!(value == "rms_norm"),
            _ if value.is_null() => continue,
            _ => value.clone(),
        };
        said.push(format!("model.mmdit.{key}"), value);
        // The position table is among the weights: they make pictures of other sizes, too.
        if let Some(last) = said.values.last_mut() {
            last.may_differ = key == "sample_size";
        }
    }
}

fn wan(said: &mut Said, constants: &Map<String, Value>) {
    let known = keys_of(&WanSection::default());
    for (key, value) in constants.iter().filter(|(key, _)| known.contains_key(*key)) {
        let value = match (key.as_str(), value) {
            (_, Value::Null) => continue,
            ("patch_size", Value::Array(sides)) => sides.last().cloned().unwrap_or_default(),
            (_, value) => value.clone(),
        };
        said.push(format!("model.wan.{key}"), value);
    }
}

/// Of an architecture whose section `T` has diffusers' own names and values.
fn plainly<T: Serialize + Default>(said: &mut Said, constants: &Map<String, Value>, architecture: &str) {
    let known = keys_of(&T::default());
    let known = constants
        .iter()
        .filter(|(key, value)| known.contains_key(*key) && !value.is_null());
    for (key, value) in known {
        said.push(format!("model.{architecture}.{key}"), value.clone());
    }
}

fn dit(said: &mut Said, constants: &Map<String, Value>, conditioning: &Conditioning) {
    let constant = |key: &str| constants.get(key).filter(|value| !value.is_null());
    if let Some(latent) = constant("latent") {
        for (key, ours) in [
            ("channels", "latent_channels"),
            ("height", "height"),
            ("width", "width"),
        ] {
            if let Some(value) = latent.get(key) {
                said.push(format!("model.dit.{ours}"), value.clone());
            }
        }
    }
    for key in [
        "patch",
        "hidden",
        "layers",
        "heads",
        "mlp_ratio",
        "qk_norm",
        "position",
    ] {
        if let Some(value) = constant(key) {
            said.push(format!("model.dit.{key}"), value.clone());
        }
    }
    if let Some(Value::Object(vocabulary)) = constant("vocabulary") {
        let number = |key: &str| vocabulary.get(key).cloned().unwrap_or_default();
        // A class is one token.
        let is_class = matches!(conditioning, Conditioning::Class(_)) && number("length") == 1;
        let pairs = match is_class {
            true => vec![("kind", json!("class")), ("classes", number("size"))],
            false => vec![
                ("kind", json!("tokens")),
                ("vocabulary", number("size")),
                ("max_tokens", number("length")),
            ],
        };
        for (key, value) in pairs {
            said.push(format!("model.dit.conditioning.{key}"), value);
        }
    }
    match constants.get("moe") {
        Some(Value::Null) => said.push("model.dit.moe.experts", json!(0)),
        Some(Value::Object(moe)) => {
            for (key, value) in moe {
                said.push(format!("model.dit.moe.{key}"), value.clone());
            }
        }
        _ => {}
    }
}

/// What the adapter of `config` says of itself; `None` if the config names none.
///
/// # Errors
/// If it is not there, or cannot be an adapter of the config's model.
pub fn said_by_adapter(
    config: &Config,
    models: &ModelRegistry,
    base: &Path,
) -> Result<Option<Said>, TrainError> {
    let Some(path) = &config.model.adapter else {
        return Ok(None);
    };
    let file = base.join(path);
    if !file.exists() {
        return Err(TrainError::NoAdapter {
            start: start_in_config(path, base),
            file,
        });
    }
    let mut plain = config.clone();
    plain.model.finetune = Finetune::Full;
    let outline = outline(&plain, models, &ComputeDevice::cpu())?;
    let adapter = AdapterFile::read(&*outline.model, &file)?;
    let found = adapter.config();
    let mut said = Said {
        from: adapter.path().to_owned(),
        values: Vec::new(),
    };
    let may_differ = !adapter.is_uniform();
    said.push("model.finetune", "lora".into());
    for (key, value) in [
        ("lora.rank", json!(found.rank)),
        ("lora.alpha", json!(found.alpha)),
    ] {
        said.values.push(SaidValue {
            key: key.into(),
            value,
            may_differ,
        });
    }
    // Patterns of the config may name the same layers, and more.
    said.values.push(SaidValue {
        key: "lora.targets".into(),
        value: json!(found.targets),
        may_differ: true,
    });
    Ok(Some(said))
}
