//! Reading an architecture's settings from JSON, with errors that name the setting.

use crate::ModelError;
use crate::layers::PACKING;
use flow_core::LatentShape;
use flow_core::model::Vocabulary;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Reads `settings` as a `T`.
pub(crate) fn read<T: DeserializeOwned>(
    architecture: &'static str,
    settings: &Value,
) -> Result<T, ModelError> {
    serde_path_to_error::deserialize(settings).map_err(|error| ModelError::Settings {
        architecture,
        setting: error.path().to_string(),
        problem: error.inner().to_string(),
    })
}

/// `settings` without the keys of a diffusers `config.json` that begin with `_` and say nothing about dimensions.
pub(crate) fn without_private_keys(settings: &Value) -> Value {
    let mut settings = settings.clone();
    if let Some(table) = settings.as_object_mut() {
        table.retain(|key, _| !key.starts_with('_'));
    }
    settings
}

/// Collects what is wrong with a setting.
pub(crate) struct Check(pub &'static str);

impl Check {
    /// `Ok` if `holds`, else an error about `setting`.
    pub fn that(
        &self,
        holds: bool,
        setting: &str,
        problem: impl FnOnce() -> String,
    ) -> Result<(), ModelError> {
        if holds {
            return Ok(());
        }
        Err(ModelError::Settings {
            architecture: self.0,
            setting: setting.into(),
            problem: problem(),
        })
    }

    /// `Ok` if latents of these sides can be packed into tokens of `in_channels`.
    pub fn packed(
        &self,
        latent_height: usize,
        latent_width: usize,
        in_channels: usize,
    ) -> Result<(), ModelError> {
        for (setting, side) in [("latent_height", latent_height), ("latent_width", latent_width)] {
            self.that(side.is_multiple_of(PACKING), setting, || {
                format!("is {side}; it must be even: two rows and two columns make one token")
            })?;
        }
        self.that(
            in_channels.is_multiple_of(PACKING * PACKING),
            "in_channels",
            || format!("is {in_channels}; a packed latent has four times the channels of the autoencoder"),
        )
    }

    /// `Ok` if the axes of a position share out the `width` channels of a head in pairs.
    pub fn rotary_axes(&self, axes: [usize; 3], width: usize) -> Result<(), ModelError> {
        let sum: usize = axes.iter().sum();
        let is_paired = axes.iter().all(|channels| channels.is_multiple_of(2));
        self.that(sum == width && is_paired, "axes_dims_rope", || {
            format!(
                "is {axes:?} with the sum {sum}; three even numbers must make up `attention_head_dim` = {width}"
            )
        })
    }

    /// `Ok` if every value lies within `1..=limit`.
    pub fn within(&self, values: &[(&str, usize, usize)]) -> Result<(), ModelError> {
        values.iter().try_for_each(|(setting, value, limit)| {
            self.that((1..=*limit).contains(value), setting, || {
                format!("is {value}; it must be between 1 and {limit}")
            })
        })
    }
}

const fn one() -> usize {
    1
}

/// [`LatentShape`] as settings; images leave `frames` out.
#[derive(Serialize, Deserialize)]
#[serde(remote = "LatentShape", deny_unknown_fields)]
pub(crate) struct LatentSettings {
    channels: usize,
    #[serde(default = "one")]
    frames: usize,
    height: usize,
    width: usize,
}

/// [`Vocabulary`] as settings.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct VocabularySettings {
    size: usize,
    length: usize,
}

/// `Option<Vocabulary>` as settings.
pub(crate) mod vocabulary {
    use super::{Vocabulary, VocabularySettings};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(value: &Option<Vocabulary>, serializer: S) -> Result<S::Ok, S::Error> {
        let settings = value.map(|Vocabulary { size, length }| VocabularySettings { size, length });
        settings.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vocabulary>, D::Error> {
        let settings = Option::<VocabularySettings>::deserialize(deserializer)?;
        Ok(settings.map(|VocabularySettings { size, length }| Vocabulary { size, length }))
    }
}
