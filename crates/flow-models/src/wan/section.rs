//! `[model.wan]`: the dimensions of a Wan transformer as a config has them, and their rules.

use super::WanConfig;
use crate::section::no_autoencoder;
use flow_config::codes::RULE_MODEL_SHAPE;
use flow_config::{ImageFacts, Rules};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[model.wan]`: dimensions of the video transformer, with the names of diffusers' `WanTransformer3DModel`. The
/// defaults are those of Wan2.1-T2V-1.3B, for videos of 81 frames of 480 by 832 pixels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "WanConfig")]
pub struct WanSection {
    /// Frames of the latent.
    #[schemars(range(min = 1, max = 1024))]
    pub latent_frames: usize,
    /// Height of the latent in pixels; a multiple of `patch_size`.
    #[schemars(range(min = 1, max = 8192))]
    pub latent_height: usize,
    /// Width of the latent in pixels; a multiple of `patch_size`.
    #[schemars(range(min = 1, max = 8192))]
    pub latent_width: usize,
    /// Side of a square patch in latent pixels; a patch lies within one frame (diffusers: `[1, 2, 2]`).
    #[schemars(range(min = 1, max = 64))]
    pub patch_size: usize,
    /// Channels of the latent.
    #[schemars(range(min = 1, max = 1024))]
    pub in_channels: usize,
    /// Number of transformer blocks.
    #[schemars(range(min = 1, max = 1024))]
    pub num_layers: usize,
    /// Channels per attention head, an even number.
    #[schemars(range(min = 6, max = 1024), extend("multipleOf" = 2))]
    pub attention_head_dim: usize,
    /// Number of attention heads; the residual stream is this times `attention_head_dim` wide.
    #[schemars(range(min = 1, max = 1024))]
    pub num_attention_heads: usize,
    /// Width of the feed-forward part.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub ffn_dim: usize,
    /// Channels of the text tokens that go in.
    #[schemars(range(min = 1, max = 65_536))]
    pub text_dim: usize,
    /// Channels of the noise level's sinusoidal embedding, an even number.
    #[schemars(range(min = 2, max = 65_536), extend("multipleOf" = 2))]
    pub freq_dim: usize,
    /// Layer norm with weights before the attention to the text.
    pub cross_attn_norm: bool,
    /// Added to variances and mean squares.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
    pub eps: f64,
    /// Positions that an axis of the latent may have.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub rope_max_seq_len: usize,
}

impl Default for WanSection {
    fn default() -> Self {
        Self {
            latent_frames: 21,
            latent_height: 60,
            latent_width: 104,
            patch_size: 2,
            in_channels: 16,
            num_layers: 30,
            attention_head_dim: 128,
            num_attention_heads: 12,
            ffn_dim: 8960,
            text_dim: 4096,
            freq_dim: 256,
            cross_attn_norm: true,
            eps: 1e-6,
            rope_max_seq_len: 1024,
        }
    }
}

impl From<&WanSection> for WanConfig {
    fn from(section: &WanSection) -> Self {
        let patch = section.patch_size;
        Self {
            latent_frames: section.latent_frames,
            latent_height: section.latent_height,
            latent_width: section.latent_width,
            patch_size: [1, patch, patch],
            num_attention_heads: section.num_attention_heads,
            attention_head_dim: section.attention_head_dim,
            in_channels: section.in_channels,
            text_dim: section.text_dim,
            freq_dim: section.freq_dim,
            ffn_dim: section.ffn_dim,
            num_layers: section.num_layers,
            cross_attn_norm: section.cross_attn_norm,
            eps: section.eps as f32,
            rope_max_seq_len: section.rope_max_seq_len,
            out_channels: None,
            ..Self::t2v_1_3b()
        }
    }
}

pub(super) fn check(wan: &WanSection, rules: &mut Rules<'_>, _path: &str) {
    let patch = ("model.wan.patch_size", wan.patch_size);
    for side in [
        ("model.wan.latent_height", wan.latent_height),
        ("model.wan.latent_width", wan.latent_width),
    ] {
        rules.divides(patch, side);
        let patches = side.1 / wan.patch_size.max(1);
        let positions = wan.rope_max_seq_len;
        if patches > positions {
            let message = format!(
                "`{}` has {patches} patches, but there are {positions} positions",
                side.0
            );
            let help = format!("set it to at most {}", positions * wan.patch_size);
            rules
                .error(
                    RULE_MODEL_SHAPE,
                    &[side.0, patch.0, "model.wan.rope_max_seq_len"],
                    message,
                )
                .help(help);
        }
    }
    if let Some(ImageFacts { size, channels }) = rules.pixel_images() {
        let sides = (wan.latent_frames, wan.latent_height, wan.latent_width);
        if wan.in_channels != channels || sides != (1, size, size) {
            let message = format!(
                "the model's latents are {} frames of {} by {} with {} channels, the images of `[data]` {size} by \
                     {size} with {channels}",
                sides.0, sides.1, sides.2, wan.in_channels
            );
            let keys = [
                "model.wan.latent_frames",
                "model.wan.latent_height",
                "model.wan.latent_width",
                "model.wan.in_channels",
                "data",
            ];
            no_autoencoder(rules, &keys, message);
        }
    }
}
