//! Settings of `AutoencoderKLWan` and `AutoencoderKLQwenImage`, which are the same network.

use super::Check;
use crate::AutoencoderError;
use serde::Deserialize;
use serde_json::{Map, Value};

/// Settings of an `AutoencoderKLWan` or an `AutoencoderKLQwenImage` (diffusers 0.42.1): the keys of their `config.json`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct CausalConfig {
    /// Channels of a stage whose multiplier is 1.
    #[serde(default = "base")]
    pub base_dim: usize,
    /// Channels of a latent.
    #[serde(default = "sixteen")]
    pub z_dim: usize,
    /// Multipliers of `base_dim`, stage by stage from the picture's side.
    #[serde(default = "multipliers")]
    pub dim_mult: Vec<usize>,
    /// Residual blocks of a stage of the encoder; the decoder has one more.
    #[serde(default = "two")]
    pub num_res_blocks: usize,
    /// Whether the step from a stage to the next halves frames, too. Spelt as diffusers spells it.
    #[serde(rename = "temperal_downsample", default = "temporal")]
    pub temporal_downsample: Vec<bool>,
    /// Colours that the encoder reads; `input_channels` in `AutoencoderKLQwenImage`.
    #[serde(alias = "input_channels", default = "three")]
    pub in_channels: usize,
    /// Colours that the decoder gives.
    #[serde(default = "three")]
    pub out_channels: usize,
    /// Mean of each channel of the latents.
    #[serde(default = "means")]
    pub latents_mean: Vec<f32>,
    /// Standard deviation of each channel of the latents.
    #[serde(default = "deviations")]
    pub latents_std: Vec<f32>,
    /// For training, which is not done here.
    #[serde(default)]
    pub dropout: f32,
    /// Pixels of a side of the picture for one of the latent, if it is said.
    #[serde(default)]
    pub scale_factor_spatial: Option<usize>,
    /// Frames of a video for one of the latent but the first, if it is said.
    #[serde(default)]
    pub scale_factor_temporal: Option<usize>,
    /// Everything else.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

fn base() -> usize {
    96
}
fn sixteen() -> usize {
    16
}
fn two() -> usize {
    2
}
fn three() -> usize {
    3
}
fn multipliers() -> Vec<usize> {
    vec![1, 2, 4, 4]
}
fn temporal() -> Vec<bool> {
    vec![false, true, true]
}

/// Defaults of both classes, the same in both.
fn means() -> Vec<f32> {
    vec![
        -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508, 0.4134, -0.0715, 0.5517,
        -0.3632, -0.1922, -0.9497, 0.2503, -0.2921,
    ]
}
fn deviations() -> Vec<f32> {
    vec![
        2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743, 3.2687, 2.1526, 2.8652, 1.5579,
        1.6382, 1.1253, 2.8251, 1.9160,
    ]
}

impl CausalConfig {
    /// Pixels of a side of the picture for one of the latent.
    pub fn factor(&self) -> usize {
        1 << self.temporal_downsample.len()
    }

    /// Frames of a video for one of the latent but the first.
    pub fn frames(&self) -> usize {
        1 << self.temporal_downsample.iter().filter(|it| **it).count()
    }

    /// Channels of each stage, from the picture's side.
    pub fn widths(&self) -> Vec<usize> {
        self.dim_mult.iter().map(|it| it * self.base_dim).collect()
    }

    pub(super) fn check(&self, check: &Check<'_>) -> Result<(), AutoencoderError> {
        let stages = self.dim_mult.len();
        check.that((1..=8).contains(&stages), "dim_mult", || {
            format!("has {stages} stages; it must have between 1 and 8")
        })?;
        for (setting, value, limit) in [
            ("base_dim", self.base_dim, 1 << 14),
            ("z_dim", self.z_dim, 1024),
            ("num_res_blocks", self.num_res_blocks, 64),
            ("in_channels", self.in_channels, 1024),
            ("out_channels", self.out_channels, 1024),
        ] {
            check.within(setting, value, limit)?;
        }
        for multiplier in &self.dim_mult {
            check.within("dim_mult", *multiplier, 1024)?;
        }
        // The decoder's upsamplers halve the channels.
        let odd = self.widths().into_iter().skip(1).find(|it| !it.is_multiple_of(2));
        check.that(odd.is_none(), "base_dim", || {
            format!(
                "gives a stage of {} channels; it must be even",
                odd.unwrap_or_default()
            )
        })?;
        let steps = self.temporal_downsample.len();
        check.that(steps + 1 == stages, "temperal_downsample", || {
            format!(
                "has {steps} entries; it must have one less than `dim_mult`, {}",
                stages - 1
            )
        })?;
        let frames = self.frames();
        check.that(frames <= 4, "temperal_downsample", || {
            format!("makes one latent frame of {frames}; videos are encoded four frames at a time")
        })?;
        for (setting, values) in [
            ("latents_mean", &self.latents_mean),
            ("latents_std", &self.latents_std),
        ] {
            check.that(values.len() == self.z_dim, setting, || {
                format!(
                    "has {} entries; it must have `z_dim` = {}",
                    values.len(),
                    self.z_dim
                )
            })?;
        }
        let wrong = self.latents_std.iter().find(|it| !(it.is_finite() && **it > 0.0));
        check.that(wrong.is_none(), "latents_std", || {
            format!(
                "has {}; deviations are positive",
                wrong.copied().unwrap_or_default()
            )
        })?;
        for (setting, said, is) in [
            ("scale_factor_spatial", self.scale_factor_spatial, self.factor()),
            ("scale_factor_temporal", self.scale_factor_temporal, frames),
        ] {
            check.that(said.is_none_or(|said| said == is), setting, || {
                format!(
                    "is {}, and `temperal_downsample` gives {is}",
                    said.unwrap_or_default()
                )
            })?;
        }
        let [patch, decoder] = ["patch_size", "decoder_base_dim"].map(|key| self.rest.get(key));
        // The autoencoder of Wan 2.2 is another network.
        let mut rest = self.rest.clone();
        if patch.is_some_and(|it| it == 1) {
            rest.remove("patch_size");
        }
        if decoder.is_some_and(|it| *it == self.base_dim) {
            rest.remove("decoder_base_dim");
        }
        for key in ["is_residual", "patch_size", "decoder_base_dim"] {
            let set = rest.get(key).filter(|it| !it.is_null() && **it != false);
            check.that(set.is_none(), key, || {
                let is = set.cloned().unwrap_or_default();
                format!("is {is}: that is the autoencoder of Wan 2.2, which is not known here; Wan 2.1's is")
            })?;
        }
        check.known(&rest)
    }
}
