//! `[model.qwen-image]`: the dimensions of Qwen-Image's transformer as a config has them, and their rules.

use super::QwenImageConfig;
use crate::layers::PACKING;
use crate::section::PackedDimensions;
use flow_config::Rules;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[model.qwen-image]`: dimensions of Qwen-Image's transformer, with the names of diffusers' `QwenImageTransformer2DModel`. The
/// defaults are Qwen-Image's, for pictures of 1024 by 1024 pixels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "QwenImageConfig")]
pub struct QwenImageSection {
    /// Height of the latent in pixels, an even number.
    #[schemars(range(min = 2, max = 8192), extend("multipleOf" = 2))]
    pub latent_height: usize,
    /// Width of the latent in pixels, an even number.
    #[schemars(range(min = 2, max = 8192), extend("multipleOf" = 2))]
    pub latent_width: usize,
    /// Channels of a packed latent: four times those of the latent, of which two rows and two columns make one token.
    #[schemars(range(min = 4, max = 4096), extend("multipleOf" = 4))]
    pub in_channels: usize,
    /// Number of blocks.
    #[schemars(range(min = 1, max = 1024))]
    pub num_layers: usize,
    /// Channels per attention head.
    #[schemars(range(min = 1, max = 1024))]
    pub attention_head_dim: usize,
    /// Number of attention heads; the residual stream is this times `attention_head_dim` wide.
    #[schemars(range(min = 1, max = 1024))]
    pub num_attention_heads: usize,
    /// Channels of the text tokens that go in.
    #[schemars(range(min = 1, max = 65_536))]
    pub joint_attention_dim: usize,
    /// Channels of a head that turn with each axis of a position: frame, row, column. Even numbers, which add up to
    /// `attention_head_dim`.
    #[schemars(inner(range(min = 0, max = 1024)))]
    pub axes_dims_rope: [usize; 3],
}

impl Default for QwenImageSection {
    fn default() -> Self {
        let QwenImageConfig {
            latent_height,
            latent_width,
            in_channels,
            num_layers,
            attention_head_dim,
            num_attention_heads,
            joint_attention_dim,
            axes_dims_rope,
            ..
        } = QwenImageConfig::published();
        Self {
            latent_height,
            latent_width,
            in_channels,
            num_layers,
            attention_head_dim,
            num_attention_heads,
            joint_attention_dim,
            axes_dims_rope,
        }
    }
}

impl From<&QwenImageSection> for QwenImageConfig {
    fn from(section: &QwenImageSection) -> Self {
        Self {
            latent_height: section.latent_height,
            latent_width: section.latent_width,
            in_channels: section.in_channels,
            out_channels: section.in_channels / (PACKING * PACKING),
            num_layers: section.num_layers,
            attention_head_dim: section.attention_head_dim,
            num_attention_heads: section.num_attention_heads,
            joint_attention_dim: section.joint_attention_dim,
            axes_dims_rope: section.axes_dims_rope,
            ..Self::published()
        }
    }
}

/// The rules on dimensions that stand at `path`.
pub(super) fn check(section: &QwenImageSection, rules: &mut Rules<'_>, path: &str) {
    let dimensions = PackedDimensions {
        latent: (section.latent_height, section.latent_width),
        in_channels: section.in_channels,
        head: section.attention_head_dim,
        axes: section.axes_dims_rope,
        published: "Qwen-Image",
    };
    dimensions.check(rules, path);
}
