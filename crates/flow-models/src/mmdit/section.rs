//! `[model.mmdit]`: the dimensions of an MMDiT as a config has them, and their rules.

use super::MmditConfig;
use crate::section::no_autoencoder;
use flow_config::codes::RULE_MODEL_SHAPE;
use flow_config::{ImageFacts, Rules};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[model.mmdit]`: dimensions of the MMDiT, with the names of diffusers' `SD3Transformer2DModel`. The defaults are
/// SD3.5-medium's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "MmditConfig")]
pub struct MmditSection {
    /// Side of the square latent in pixels; a multiple of `patch_size`.
    #[schemars(range(min = 1, max = 8192))]
    pub sample_size: usize,
    /// Height of the latent in pixels, a multiple of `patch_size`; without it `sample_size`.
    #[schemars(range(min = 1, max = 8192))]
    pub latent_height: Option<usize>,
    /// Width of the latent in pixels, a multiple of `patch_size`; without it `sample_size`.
    #[schemars(range(min = 1, max = 8192))]
    pub latent_width: Option<usize>,
    /// Side of a square patch in latent pixels.
    #[schemars(range(min = 1, max = 64))]
    pub patch_size: usize,
    /// Channels of the latent that goes in.
    #[schemars(range(min = 1, max = 1024))]
    pub in_channels: usize,
    /// Number of joint transformer blocks; the last one is context-pre-only.
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
    /// Channels to which text tokens are projected; must equal the width of the residual stream.
    #[schemars(range(min = 1, max = 65_536))]
    pub caption_projection_dim: usize,
    /// Channels of the pooled text embedding.
    #[schemars(range(min = 1, max = 65_536))]
    pub pooled_projection_dim: usize,
    /// Channels of the velocity that comes out; must equal `in_channels` for flow matching.
    #[schemars(range(min = 1, max = 1024))]
    pub out_channels: usize,
    /// Side, in patches, of the position-embedding table; the grid in use is cropped from its centre.
    #[schemars(range(min = 1, max = 4096))]
    pub pos_embed_max_size: usize,
    /// Blocks that have a second, image-only attention; each below `num_layers`, none twice.
    #[schemars(inner(range(max = 1023)), length(max = 1024), extend("uniqueItems" = true))]
    pub dual_attention_layers: Vec<usize>,
    /// RMS-normalise queries and keys per head (diffusers: `qk_norm = "rms_norm"`).
    pub qk_norm: bool,
}

impl Default for MmditSection {
    fn default() -> Self {
        Self {
            sample_size: 128,
            latent_height: None,
            latent_width: None,
            patch_size: 2,
            in_channels: 16,
            num_layers: 24,
            attention_head_dim: 64,
            num_attention_heads: 24,
            joint_attention_dim: 4096,
            caption_projection_dim: 1536,
            pooled_projection_dim: 2048,
            out_channels: 16,
            pos_embed_max_size: 384,
            dual_attention_layers: (0..13).collect(),
            qk_norm: true,
        }
    }
}

impl MmditSection {
    /// Height and width of a latent.
    fn sides(&self) -> (usize, usize) {
        let side = |side: Option<usize>| side.unwrap_or(self.sample_size);
        (side(self.latent_height), side(self.latent_width))
    }
}

impl From<&MmditSection> for MmditConfig {
    fn from(section: &MmditSection) -> Self {
        Self {
            sample_size: section.sample_size,
            latent_height: section.latent_height,
            latent_width: section.latent_width,
            patch_size: section.patch_size,
            in_channels: section.in_channels,
            out_channels: Some(section.out_channels),
            num_layers: section.num_layers,
            attention_head_dim: section.attention_head_dim,
            num_attention_heads: section.num_attention_heads,
            joint_attention_dim: section.joint_attention_dim,
            caption_projection_dim: section.caption_projection_dim,
            pooled_projection_dim: section.pooled_projection_dim,
            pos_embed_max_size: section.pos_embed_max_size,
            dual_attention_layers: section.dual_attention_layers.clone(),
            qk_norm: section.qk_norm,
        }
    }
}

pub(super) fn check(mmdit: &MmditSection, rules: &mut Rules<'_>, _path: &str) {
    let sides = [
        ("model.mmdit.sample_size", Some(mmdit.sample_size)),
        ("model.mmdit.latent_height", mmdit.latent_height),
        ("model.mmdit.latent_width", mmdit.latent_width),
    ];
    for (key, side) in sides {
        if let Some(side) = side {
            rules.divides(("model.mmdit.patch_size", mmdit.patch_size), (key, side));
        }
    }
    let width = mmdit.attention_head_dim * mmdit.num_attention_heads;
    if mmdit.caption_projection_dim != width {
        let message = format!(
            "`model.mmdit.caption_projection_dim` is {}, but the residual stream is {} * {} = {width} wide",
            mmdit.caption_projection_dim, mmdit.attention_head_dim, mmdit.num_attention_heads
        );
        rules
            .error(
                RULE_MODEL_SHAPE,
                &[
                    "model.mmdit.caption_projection_dim",
                    "model.mmdit.num_attention_heads",
                    "model.mmdit.attention_head_dim",
                ],
                message,
            )
            .help(format!(
                "set it to {width}, or change the number or width of heads"
            ));
    }
    if mmdit.out_channels != mmdit.in_channels {
        let message = format!(
            "`model.mmdit.out_channels` is {}, but a velocity has the {} channels of the latent",
            mmdit.out_channels, mmdit.in_channels
        );
        rules
            .error(
                RULE_MODEL_SHAPE,
                &["model.mmdit.out_channels", "model.mmdit.in_channels"],
                message,
            )
            .help(format!("set it to {}", mmdit.in_channels));
    }
    let patches = mmdit.sample_size / mmdit.patch_size.max(1);
    if patches > mmdit.pos_embed_max_size {
        let message = format!(
            "a side has {patches} patches, but the position table only {}",
            mmdit.pos_embed_max_size
        );
        rules
            .error(
                RULE_MODEL_SHAPE,
                &[
                    "model.mmdit.sample_size",
                    "model.mmdit.pos_embed_max_size",
                    "model.mmdit.patch_size",
                ],
                message,
            )
            .help("lower `model.mmdit.sample_size`; the size of the table is the checkpoint's");
    }
    for (index, layer) in mmdit.dual_attention_layers.iter().enumerate() {
        if *layer >= mmdit.num_layers {
            let message = format!(
                "`model.mmdit.dual_attention_layers` names block {layer}, but blocks are 0 to {}",
                mmdit.num_layers - 1
            );
            let entry = format!("model.mmdit.dual_attention_layers.{index}");
            rules
                .error(RULE_MODEL_SHAPE, &[&entry, "model.mmdit.num_layers"], message)
                .help("remove it, or raise `model.mmdit.num_layers`");
        }
    }
    if let Some(ImageFacts { size, channels }) = rules.pixel_images()
        && (mmdit.in_channels != channels || mmdit.sides() != (size, size))
    {
        let (height, width) = mmdit.sides();
        let message = format!(
            "the model's latents are {height} by {width} with {} channels, the images of `[data]` {size} by {size} \
             with {channels}",
            mmdit.in_channels
        );
        let keys = ["model.mmdit.sample_size", "model.mmdit.in_channels", "data"];
        no_autoencoder(rules, &keys, message);
    }
}
