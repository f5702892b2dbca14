//! `[model.flux]`: the dimensions of FLUX.1's transformer as a config has them, and their rules.

use super::FluxConfig;
use crate::section::PackedDimensions;
use flow_config::Rules;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[model.flux]`: dimensions of FLUX.1's transformer, with the names of diffusers' `FluxTransformer2DModel`. The defaults are
/// FLUX.1-dev's, for pictures of 1024 by 1024 pixels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "FluxConfig")]
pub struct FluxSection {
    /// Height of the latent in pixels, an even number.
    #[schemars(range(min = 2, max = 8192), extend("multipleOf" = 2))]
    pub latent_height: usize,
    /// Width of the latent in pixels, an even number.
    #[schemars(range(min = 2, max = 8192), extend("multipleOf" = 2))]
    pub latent_width: usize,
    /// Channels of a packed latent: four times those of the latent, of which two rows and two columns make one token.
    #[schemars(range(min = 4, max = 4096), extend("multipleOf" = 4))]
    pub in_channels: usize,
    /// Number of blocks with a stream for the image and one for the text.
    #[schemars(range(min = 1, max = 1024))]
    pub num_layers: usize,
    /// Number of blocks with one stream for both, which follow.
    #[schemars(range(min = 1, max = 1024))]
    pub num_single_layers: usize,
    /// Channels per attention head.
    #[schemars(range(min = 1, max = 1024))]
    pub attention_head_dim: usize,
    /// Number of attention heads; the residual stream is this times `attention_head_dim` wide.
    #[schemars(range(min = 1, max = 1024))]
    pub num_attention_heads: usize,
    /// Channels of the text tokens that go in.
    #[schemars(range(min = 1, max = 65_536))]
    pub joint_attention_dim: usize,
    /// Channels of the pooled text embedding.
    #[schemars(range(min = 1, max = 65_536))]
    pub pooled_projection_dim: usize,
    /// Whether the model embeds a guidance scale: FLUX.1-dev does, FLUX.1-schnell does not.
    pub guidance_embeds: bool,
    /// Channels of a head that turn with each axis of a position: an index that is 0 for pictures, row, column. Even numbers,
    /// which add up to `attention_head_dim`.
    #[schemars(inner(range(min = 0, max = 1024)))]
    pub axes_dims_rope: [usize; 3],
}

impl Default for FluxSection {
    fn default() -> Self {
        let FluxConfig {
            latent_height,
            latent_width,
            in_channels,
            num_layers,
            num_single_layers,
            attention_head_dim,
            num_attention_heads,
            joint_attention_dim,
            pooled_projection_dim,
            guidance_embeds,
            axes_dims_rope,
            ..
        } = FluxConfig::flux1_dev();
        Self {
            latent_height,
            latent_width,
            in_channels,
            num_layers,
            num_single_layers,
            attention_head_dim,
            num_attention_heads,
            joint_attention_dim,
            pooled_projection_dim,
            guidance_embeds,
            axes_dims_rope,
        }
    }
}

impl From<&FluxSection> for FluxConfig {
    fn from(section: &FluxSection) -> Self {
        Self {
            latent_height: section.latent_height,
            latent_width: section.latent_width,
            in_channels: section.in_channels,
            num_layers: section.num_layers,
            num_single_layers: section.num_single_layers,
            attention_head_dim: section.attention_head_dim,
            num_attention_heads: section.num_attention_heads,
            joint_attention_dim: section.joint_attention_dim,
            pooled_projection_dim: section.pooled_projection_dim,
            guidance_embeds: section.guidance_embeds,
            axes_dims_rope: section.axes_dims_rope,
            ..Self::flux1_dev()
        }
    }
}

/// The rules on dimensions that stand at `path`.
pub(super) fn check(flux: &FluxSection, rules: &mut Rules<'_>, path: &str) {
    let dimensions = PackedDimensions {
        latent: (flux.latent_height, flux.latent_width),
        in_channels: flux.in_channels,
        head: flux.attention_head_dim,
        axes: flux.axes_dims_rope,
        published: "FLUX.1",
    };
    dimensions.check(rules, path);
}
