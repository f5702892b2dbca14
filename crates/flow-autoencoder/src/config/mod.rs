//! Settings of autoencoders, as diffusers writes them in `config.json`, and of TAESD, which has none.

mod causal;
mod kl;
mod tiny;

pub use causal::CausalConfig;
pub use kl::KlConfig;
pub use tiny::TinyConfig;

use crate::autoencoder::PIXELS;
use crate::{AutoencoderError, AutoencoderSpec, LatentScaling, Tiling};
use flow_core::LatentShape;
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
    /// TAESD, which diffusers calls `AutoencoderTiny`: small, for pictures.
    Tiny(TinyConfig),
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
            Self::Tiny(config) => config.check(&check),
        }
    }

    /// The class of diffusers; of the causal network, which has two, the first.
    pub fn class_name(&self) -> &'static str {
        match self {
            Self::Kl(_) => "AutoencoderKL",
            Self::Causal(_) => "AutoencoderKLWan",
            Self::Tiny(_) => "AutoencoderTiny",
        }
    }

    /// What an autoencoder of these settings is, if they fit each other ([`check`](Self::check)).
    pub fn spec(&self) -> AutoencoderSpec {
        match self {
            Self::Kl(config) => AutoencoderSpec {
                latent_channels: config.latent_channels,
                colours_in: config.in_channels,
                colours_out: config.out_channels,
                factor: config.factor(),
                frames: None,
                clamps: false,
                tiling: Tiling::overlapping_a_quarter(config.side() / config.factor()),
            },
            Self::Causal(config) => AutoencoderSpec {
                latent_channels: config.z_dim,
                colours_in: config.in_channels,
                colours_out: config.out_channels,
                factor: config.factor(),
                frames: Some(config.frames()),
                clamps: true,
                tiling: Tiling::overlapping_a_quarter(256 / config.factor()),
            },
            Self::Tiny(config) => AutoencoderSpec {
                latent_channels: config.latent_channels,
                colours_in: 3,
                colours_out: 3,
                factor: TinyConfig::FACTOR,
                frames: None,
                clamps: false,
                tiling: Tiling::overlapping_a_quarter(TinyConfig::TILE),
            },
        }
    }

    /// About how many bytes are taken while `samples` latents are decoded, beside weights and latents: the largest of what is there at
    /// one time.
    ///
    /// That is either three tensors of the widest layer at full size (what it reads, what it makes, and what is added), of
    /// `bytes_of_value` each; or scores and softmax of the attention in the middle, in f32. Half a million pixels are decoded at once
    /// ([`Options::samples`](crate::Options::samples)), or one picture is, if they are decoded `one_by_one`; of a video, the four frames
    /// of one frame of its latent.
    pub fn decoding_bytes(
        &self,
        latent: LatentShape,
        samples: usize,
        bytes_of_value: usize,
        one_by_one: bool,
    ) -> usize {
        let (factor, width, frames, attends) = match self {
            Self::Kl(config) => {
                let widths = config.block_out_channels.iter().take(2);
                let width = widths.copied().max().unwrap_or(1);
                (config.factor(), width, [1, 1], config.mid_block_add_attention)
            }
            Self::Causal(config) => {
                let step = config.frames();
                let all = 1 + (latent.frames - 1) * step;
                let widths = config.widths().into_iter().take(2);
                let width = widths.max().unwrap_or(1);
                (config.factor(), width, [all, all.min(step)], true)
            }
            Self::Tiny(config) => (TinyConfig::FACTOR, config.width, [1, 1], false),
        };
        let pixels = latent.height * latent.width * factor * factor;
        let usual = if one_by_one {
            1
        } else {
            PIXELS / (pixels * frames[0]).max(1)
        };
        let at_once = usual.clamp(1, samples.max(1));
        let layers = 3 * at_once * pixels * frames[1] * width * bytes_of_value;
        let scores = match attends {
            true => 2 * 4 * at_once * (latent.height * latent.width).pow(2),
            false => 0,
        };
        layers.max(scores)
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
            // Its latents are those of the diffusion model.
            Self::Tiny(_) => LatentScaling::Uniform {
                factor: 1.0,
                shift: 0.0,
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
