//! Settings of `AutoencoderKL`.

use super::Check;
use crate::AutoencoderError;
use serde::Deserialize;
use serde_json::{Map, Value};

/// Settings of an `AutoencoderKL` (diffusers 0.42.1): the keys of its `config.json`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct KlConfig {
    /// Colours that the encoder reads.
    #[serde(default = "three")]
    pub in_channels: usize,
    /// Colours that the decoder gives.
    #[serde(default = "three")]
    pub out_channels: usize,
    /// Channels of each stage, from the picture's side.
    pub block_out_channels: Vec<usize>,
    /// Residual blocks of a stage of the encoder; the decoder has one more.
    #[serde(default = "one")]
    pub layers_per_block: usize,
    /// Channels of a latent.
    #[serde(default = "four")]
    pub latent_channels: usize,
    /// Groups of every norm.
    #[serde(default = "thirty_two")]
    pub norm_num_groups: usize,
    /// Side of the pictures that it was trained on; tiles have it.
    #[serde(default = "thirty_two_square")]
    pub sample_size: SampleSize,
    /// Factor of latents for the diffusion model.
    #[serde(default = "stable_diffusion")]
    pub scaling_factor: f32,
    /// Shift of latents for the diffusion model.
    #[serde(default)]
    pub shift_factor: Option<f32>,
    /// Whether a convolution of one tap follows on the encoder.
    #[serde(default = "yes")]
    pub use_quant_conv: bool,
    /// Whether a convolution of one tap comes before the decoder.
    #[serde(default = "yes")]
    pub use_post_quant_conv: bool,
    /// Whether the middle has attention.
    #[serde(default = "yes")]
    pub mid_block_add_attention: bool,
    /// Activation: `silu`.
    #[serde(default = "silu")]
    pub act_fn: String,
    /// Kinds of the encoder's stages: `DownEncoderBlock2D`.
    #[serde(default)]
    pub down_block_types: Vec<String>,
    /// Kinds of the decoder's stages: `UpDecoderBlock2D`.
    #[serde(default)]
    pub up_block_types: Vec<String>,
    /// For f16 only, which is not computed in here.
    #[serde(default)]
    pub force_upcast: Option<bool>,
    /// Everything else.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// A side, or rows and columns.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum SampleSize {
    /// Of a square.
    Side(usize),
    /// Rows and columns; rows count.
    Sides(Vec<usize>),
}

fn one() -> usize {
    1
}
fn three() -> usize {
    3
}
fn four() -> usize {
    4
}
fn thirty_two() -> usize {
    32
}
fn thirty_two_square() -> SampleSize {
    SampleSize::Side(32)
}
fn stable_diffusion() -> f32 {
    0.18215
}
fn yes() -> bool {
    true
}
fn silu() -> String {
    "silu".into()
}

impl KlConfig {
    /// Pixels of a side of the picture for one of the latent.
    pub fn factor(&self) -> usize {
        1 << (self.block_out_channels.len() - 1)
    }

    /// Side of the pictures that it was trained on.
    pub fn side(&self) -> usize {
        match &self.sample_size {
            SampleSize::Side(side) => *side,
            SampleSize::Sides(sides) => sides.first().copied().unwrap_or_default(),
        }
    }

    pub(super) fn check(&self, check: &Check<'_>) -> Result<(), AutoencoderError> {
        let stages = self.block_out_channels.len();
        check.that((1..=8).contains(&stages), "block_out_channels", || {
            format!("has {stages} stages; it must have between 1 and 8")
        })?;
        for (setting, value, limit) in [
            ("in_channels", self.in_channels, 1024),
            ("out_channels", self.out_channels, 1024),
            ("layers_per_block", self.layers_per_block, 64),
            ("latent_channels", self.latent_channels, 1024),
            ("norm_num_groups", self.norm_num_groups, 1024),
            ("sample_size", self.side(), 1 << 16),
        ] {
            check.within(setting, value, limit)?;
        }
        for channels in &self.block_out_channels {
            let groups = self.norm_num_groups;
            check.within("block_out_channels", *channels, 1 << 14)?;
            check.that(channels.is_multiple_of(groups), "block_out_channels", || {
                format!("has a stage of {channels}, no multiple of `norm_num_groups` = {groups}")
            })?;
        }
        let act = &self.act_fn;
        check.that(matches!(&**act, "silu" | "swish"), "act_fn", || {
            format!("is `{act}`; known here: `silu`")
        })?;
        for (setting, types, known) in [
            ("down_block_types", &self.down_block_types, "DownEncoderBlock2D"),
            ("up_block_types", &self.up_block_types, "UpDecoderBlock2D"),
        ] {
            let other = types.iter().find(|it| *it != known);
            check.that(other.is_none(), setting, || {
                format!(
                    "has `{}`; known here: `{known}`",
                    other.map_or("", String::as_str)
                )
            })?;
            check.that(types.is_empty() || types.len() == stages, setting, || {
                format!("has {} entries for {stages} `block_out_channels`", types.len())
            })?;
        }
        let factor = self.scaling_factor;
        check.that(factor.is_finite() && factor != 0.0, "scaling_factor", || {
            format!("is {factor}; latents are divided by it")
        })?;
        // Means and deviations by channel, which some pipelines of this class use, are among what is not known.
        check.known(&self.rest)
    }
}
