//! What a file or a folder of weights says about its model: constants that no shape shows.
//!
//! Diffusers keeps them in `config.json` beside the weights. Files that are written here have the same in their metadata,
//! so that a file by itself is complete, and [`describe_folder`] makes a folder of ours one that diffusers opens.

use super::source::{DIFFUSERS_FILE, folder_of_weights};
use super::{FileMap, replace};
use crate::{Architecture, ModelError};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The file beside weights.
const FILE: &str = "config.json";
/// Key of the same in the metadata of a file.
pub const METADATA_KEY: &str = "flow-train.model_config";
/// The version of diffusers whose models ours are compared with.
const DIFFUSERS_VERSION: &str = "0.42.1";

/// What weights say about their model.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// The file that says it.
    pub from: PathBuf,
    /// The class of the model, as diffusers calls it.
    pub class: Option<String>,
    /// Its constants, as in diffusers' `config.json`.
    pub constants: Map<String, Value>,
}

/// A constant in which weights are of another model.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Its name in `config.json`.
    pub key: String,
    /// The model's value, if it has such a constant.
    pub ours: Option<Value>,
    /// The weights' value.
    pub theirs: Value,
}

/// What the weights at `path` say about their model; `None` if nothing does.
///
/// # Errors
/// [`ModelError::Io`], [`ModelError::Format`] if what is there cannot be read.
pub fn describe(path: &Path) -> Result<Option<Description>, ModelError> {
    if path.is_dir() {
        return of_file(&folder_of_weights(path).join(FILE));
    }
    if path.extension().is_some_and(|ending| ending == "safetensors") {
        let bytes = FileMap::open(path)?;
        let parsed = bytes.parse()?;
        if let Some(text) = parsed.metadata.get(METADATA_KEY) {
            return read(path, text).map(Some);
        }
    }
    let Some(folder) = path.parent() else {
        return Ok(None);
    };
    // A file beside any weights may be of something else; without a class it says nothing.
    let beside = of_file(&folder.join(FILE))?;
    Ok(beside.filter(|description| description.class.is_some()))
}

fn of_file(path: &Path) -> Result<Option<Description>, ModelError> {
    if !path.is_file() {
        return Ok(None);
    }
    let text = fs::read_to_string(path).map_err(|source| ModelError::Io {
        action: "read",
        path: path.to_owned(),
        source,
    })?;
    read(path, &text).map(Some)
}

fn read(from: &Path, text: &str) -> Result<Description, ModelError> {
    let Ok(Value::Object(mut constants)) = serde_json::from_str::<Value>(text) else {
        return Err(ModelError::Format {
            path: from.to_owned(),
            problem: "what it says about its model is no JSON object".into(),
        });
    };
    let class = constants
        .get("_class_name")
        .and_then(Value::as_str)
        .map(str::to_owned);
    constants.retain(|key, _| !key.starts_with('_'));
    Ok(Description {
        from: from.to_owned(),
        class,
        constants,
    })
}

impl Description {
    /// The constants that are not `model`'s. What the weights do not say does not differ, nor does the size of a latent
    /// whose position table the weights hold.
    pub fn differences(&self, model: &dyn Architecture) -> Vec<Difference> {
        let Value::Object(ours) = model.constants() else {
            return Vec::new();
        };
        let differs = |(key, theirs): (&String, &Value)| {
            let ours = ours.get(key);
            let same = match ours {
                Some(ours) => model.is_size(key) || same(key, ours, theirs),
                None => is_off(theirs) || model.is_without_effect(key),
            };
            (!same).then(|| Difference {
                key: key.clone(),
                ours: ours.cloned(),
                theirs: theirs.clone(),
            })
        };
        self.constants.iter().filter_map(differs).collect()
    }

    /// Refuses a model that is another one.
    ///
    /// # Errors
    /// [`ModelError::OtherModel`] with every constant that differs.
    pub fn expect(&self, model: &dyn Architecture) -> Result<(), ModelError> {
        let differences = match &self.class {
            Some(class) if class != model.class_name() => vec![Difference {
                key: "_class_name".into(),
                ours: Some(model.class_name().into()),
                theirs: class.clone().into(),
            }],
            _ => self.differences(model),
        };
        if differences.is_empty() {
            return Ok(());
        }
        Err(ModelError::OtherModel {
            from: self.from.clone(),
            differences,
        })
    }
}

/// Whether two values of a constant mean the same. Numbers are compared as they are used.
fn same(key: &str, ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::Number(ours), Value::Number(theirs)) => {
            ours == theirs || ours.as_f64().map(|it| it as f32) == theirs.as_f64().map(|it| it as f32)
        }
        (Value::Array(ours), Value::Array(theirs)) => {
            ours.len() == theirs.len()
                && ours
                    .iter()
                    .zip(theirs)
                    .all(|(ours, theirs)| same(key, ours, theirs))
        }
        (Value::Object(ours), Value::Object(theirs)) => theirs.iter().all(|(key, theirs)| {
            ours.get(key)
                .map_or(is_off(theirs), |ours| same(key, ours, theirs))
        }),
        // Diffusers names the norm, or has `null`.
        (Value::Bool(ours), Value::String(_) | Value::Null) if key == "qk_norm" => {
            *ours == (theirs == "rms_norm") && (theirs.is_null() || theirs == "rms_norm")
        }
        // As many as go in.
        (_, Value::Null) if key == "out_channels" => true,
        (ours, theirs) => ours == theirs || (is_off(ours) && is_off(theirs)),
    }
}

/// Whether a constant says that something is not there.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(entries) => entries.is_empty(),
        Value::Object(entries) => entries.is_empty(),
        _ => false,
    }
}

/// A model's `config.json`.
pub fn config_json(model: &dyn Architecture) -> Value {
    let mut config = json!({ "_class_name": model.class_name(), "_diffusers_version": DIFFUSERS_VERSION });
    if let (Some(config), Value::Object(constants)) = (config.as_object_mut(), model.constants()) {
        config.extend(constants);
    }
    config
}

/// Makes `folder` one that diffusers' `from_pretrained` opens: `config.json`, and an index by which the weights are in
/// `file`, which lies there. With a variant it is opened as `from_pretrained(folder, variant = ...)`.
///
/// # Errors
/// [`ModelError::Io`].
pub fn describe_folder(
    model: &dyn Architecture,
    folder: &Path,
    file: &str,
    variant: Option<&str>,
) -> Result<(), ModelError> {
    let specs = model.layout().specs();
    let map: BTreeMap<&str, &str> = specs.iter().map(|spec| (spec.name.as_str(), file)).collect();
    let bytes: usize = specs
        .iter()
        .map(|spec| spec.shape.iter().product::<usize>() * 4)
        .sum();
    let index = json!({ "metadata": { "total_size": bytes }, "weight_map": map });
    let name = match variant {
        Some(variant) => format!("{DIFFUSERS_FILE}.index.{variant}.json"),
        None => format!("{DIFFUSERS_FILE}.index.json"),
    };
    for (name, value) in [(FILE.to_owned(), config_json(model)), (name, index)] {
        let path = folder.join(name);
        let pretty = format!("{value:#}\n");
        replace(&path, &mut |out| out.write_all(pretty.as_bytes())).map_err(|source| ModelError::Io {
            action: "write",
            path: path.clone(),
            source,
        })?;
    }
    Ok(())
}
