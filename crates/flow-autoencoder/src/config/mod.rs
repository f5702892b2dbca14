//! Settings of autoencoders, as diffusers writes them in `config.json`.

mod causal;
mod kl;

pub use causal::CausalConfig;
pub use kl::KlConfig;

use crate::{AutoencoderError, LatentScaling};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::path::Path;

/// An autoencoder's settings.
#[derive(Clone, Debug, PartialEq)]
pub enum AutoencoderConfig {
    /// `AutoencoderKL`: pictures.
    Kl(KlConfig),
    /// `AutoencoderKLWan` and `AutoencoderKLQwenImage`: videos, and pictures as videos of one frame.
    Causal(CausalConfig),
}

/// Classes of diffusers that are read here.
pub const CLASSES: [&str; 3] = ["AutoencoderKL", "AutoencoderKLWan", "AutoencoderKLQwenImage"];

impl AutoencoderConfig {
    /// Of the contents of a `config.json`; `path` is where they are from, for errors.
    ///
    /// # Errors
    /// [`AutoencoderError::Config`] naming the setting, its value and what is allowed.
    pub fn read(settings: &Value, path: &Path) -> Result<Self, AutoencoderError> {
        let check = Check(path);
        let class = settings.get("_class_name").and_then(Value::as_str);
        let config = match class {
            Some("AutoencoderKL") => Self::Kl(check.read(settings)?),
            Some("AutoencoderKLWan" | "AutoencoderKLQwenImage") => Self::Causal(check.read(settings)?),
            Some(class) => return Err(check.error("_class_name", other_class(class))),
            None => {
                let problem = format!("is missing; it names the class: {}", list(&CLASSES));
                return Err(check.error("_class_name", problem));
            }
        };
        config.check(path)?;
        Ok(config)
    }

    /// Checks that the settings fit each other; `path` is where they are from, for errors.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn check(&self, path: &Path) -> Result<(), AutoencoderError> {
        let check = Check(path);
        match self {
            Self::Kl(config) => config.check(&check),
            Self::Causal(config) => config.check(&check),
        }
    }

    /// How latents are scaled for a diffusion model.
    pub fn scaling(&self) -> LatentScaling {
        match self {
            Self::Kl(config) => LatentScaling::Uniform {
                factor: config.scaling_factor,
                shift: config.shift_factor.unwrap_or(0.0),
            },
            Self::Causal(config) => LatentScaling::Channels {
                mean: config.latents_mean.clone(),
                deviation: config.latents_std.clone(),
            },
        }
    }
}

/// What to do with a folder of something else.
fn other_class(class: &str) -> String {
    let hint = if class.contains("Transformer") || class.contains("UNet") {
        "; that is the model that makes latents, and its autoencoder lies beside it in the folder `vae`"
    } else if class.ends_with("Pipeline") {
        "; that is a whole pipeline, whose autoencoder lies in its folder `vae`"
    } else if class == "AutoencoderTiny" {
        "; of TAESD the files of its author are read, `taesd_encoder.safetensors` and `taesd_decoder.safetensors`"
    } else {
        ""
    };
    format!("is `{class}`; known here: {}{hint}", list(&CLASSES))
}

pub(crate) fn list(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

/// Reads and checks the settings of a file.
pub(crate) struct Check<'a>(pub &'a Path);

impl Check<'_> {
    fn read<T: DeserializeOwned>(&self, settings: &Value) -> Result<T, AutoencoderError> {
        serde_path_to_error::deserialize(settings)
            .map_err(|error| self.error(&error.path().to_string(), error.inner().to_string()))
    }

    pub fn error(&self, setting: &str, problem: String) -> AutoencoderError {
        AutoencoderError::Config {
            path: self.0.to_owned(),
            setting: setting.into(),
            problem,
        }
    }

    /// `Ok` if `holds`, else an error about `setting`.
    pub fn that(
        &self,
        holds: bool,
        setting: &str,
        problem: impl FnOnce() -> String,
    ) -> Result<(), AutoencoderError> {
        if holds {
            Ok(())
        } else {
            Err(self.error(setting, problem()))
        }
    }

    /// `Ok` if `value` lies within `1..=limit`.
    pub fn within(&self, setting: &str, value: usize, limit: usize) -> Result<(), AutoencoderError> {
        self.that((1..=limit).contains(&value), setting, || {
            format!("is {value}; it must be between 1 and {limit}")
        })
    }

    /// `Ok` if every setting that is not known here is off: newer versions of diffusers write more of them.
    pub fn known(&self, rest: &Map<String, Value>) -> Result<(), AutoencoderError> {
        let is_off = |value: &Value| match value {
            Value::Null | Value::Bool(false) => true,
            Value::Array(entries) => entries.is_empty(),
            _ => false,
        };
        let on = |(key, value): &(&String, &Value)| !key.starts_with('_') && !is_off(value);
        match rest.iter().find(on) {
            None => Ok(()),
            Some((key, value)) => Err(self.error(
                key,
                format!("is {value}; this setting is not known here and must be absent, null or false"),
            )),
        }
    }
}
