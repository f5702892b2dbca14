//! Dimensions of a FLUX.1 transformer, as diffusers writes them in `config.json`.

use crate::ModelError;
use crate::layers::{PACKING, RotaryAxis};
use crate::settings::Check;
use flow_core::LatentShape;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Dimensions of a [`Flux`](super::Flux): the keys of diffusers' `FluxTransformer2DModel` (0.42.1), so that a `config.json`
/// from there is read as it is, and the size of the latents, which such a file does not say.
///
/// Keys of a `config.json` that begin with `_` are ignored by [`build`](super::build).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FluxConfig {
    /// Rows of a latent: an eighth of the picture's.
    pub latent_height: usize,
    /// Columns of a latent: an eighth of the picture's.
    pub latent_width: usize,
    /// Side of a patch of packed latents: 1.
    #[serde(default = "one")]
    pub patch_size: usize,
    /// Channels of a packed latent: four times those of the autoencoder.
    pub in_channels: usize,
    /// Channels of the velocity, equal to `in_channels`; `None`: `in_channels`.
    #[serde(default)]
    pub out_channels: Option<usize>,
    /// Number of blocks with a stream for the sample and one for the text.
    pub num_layers: usize,
    /// Number of blocks with one stream for both, which follow.
    pub num_single_layers: usize,
    /// Channels of one head.
    pub attention_head_dim: usize,
    /// Number of attention heads.
    pub num_attention_heads: usize,
    /// Channels of the text tokens.
    pub joint_attention_dim: usize,
    /// Channels of the pooled text.
    pub pooled_projection_dim: usize,
    /// Whether the model embeds a guidance scale: FLUX.1-dev does, FLUX.1-schnell does not.
    #[serde(default)]
    pub guidance_embeds: bool,
    /// Channels of a head that turn with each axis of a position: an index that is 0 for pictures, row, column.
    #[serde(default = "published_axes")]
    pub axes_dims_rope: [usize; 3],
}

const fn one() -> usize {
    1
}

const fn published_axes() -> [usize; 3] {
    [16, 56, 56]
}

impl FluxConfig {
    /// FLUX.1-dev (`transformer/config.json` of `black-forest-labs/FLUX.1-dev`) for pictures of 1024 × 1024 pixels.
    pub fn flux1_dev() -> Self {
        Self {
            latent_height: 128,
            latent_width: 128,
            patch_size: 1,
            in_channels: 64,
            out_channels: None,
            num_layers: 19,
            num_single_layers: 38,
            attention_head_dim: 128,
            num_attention_heads: 24,
            joint_attention_dim: 4096,
            pooled_projection_dim: 768,
            guidance_embeds: true,
            axes_dims_rope: published_axes(),
        }
    }

    /// FLUX.1-schnell, which embeds no guidance scale.
    pub fn flux1_schnell() -> Self {
        Self {
            guidance_embeds: false,
            ..Self::flux1_dev()
        }
    }

    /// Width of the residual stream.
    pub fn hidden(&self) -> usize {
        self.num_attention_heads * self.attention_head_dim
    }

    /// Axes of a latent.
    pub fn latent(&self) -> LatentShape {
        LatentShape {
            channels: self.in_channels / (PACKING * PACKING),
            frames: 1,
            height: self.latent_height,
            width: self.latent_width,
        }
    }

    /// Rows and columns of tokens.
    pub fn grid(&self) -> (usize, usize) {
        (self.latent_height / PACKING, self.latent_width / PACKING)
    }

    /// The axes of a token's position, with the pairs of channels that turn with each.
    pub(super) fn rotary_axes(&self) -> [RotaryAxis; 3] {
        let (rows, columns) = self.grid();
        let lengths = [1, rows, columns];
        std::array::from_fn(|axis| RotaryAxis {
            length: lengths[axis],
            pairs: self.axes_dims_rope[axis] / 2,
        })
    }

    /// The constants, as diffusers writes them; the size of a latent is none of them.
    pub(super) fn constants(&self) -> Value {
        json!({
            "patch_size": self.patch_size,
            "in_channels": self.in_channels,
            "out_channels": self.out_channels,
            "num_layers": self.num_layers,
            "num_single_layers": self.num_single_layers,
            "attention_head_dim": self.attention_head_dim,
            "num_attention_heads": self.num_attention_heads,
            "joint_attention_dim": self.joint_attention_dim,
            "pooled_projection_dim": self.pooled_projection_dim,
            "guidance_embeds": self.guidance_embeds,
            "axes_dims_rope": self.axes_dims_rope,
        })
    }

    /// Checks that the dimensions fit each other.
    ///
    /// # Errors
    /// [`ModelError::Settings`] naming the setting, its value and what is allowed.
    pub fn check(&self) -> Result<(), ModelError> {
        let check = Check("flux");
        check.within(&[
            ("latent_height", self.latent_height, 8192),
            ("latent_width", self.latent_width, 8192),
            ("patch_size", self.patch_size, 1),
            ("in_channels", self.in_channels, 4096),
            ("num_layers", self.num_layers, 1024),
            ("num_single_layers", self.num_single_layers, 1024),
            ("attention_head_dim", self.attention_head_dim, 1024),
            ("num_attention_heads", self.num_attention_heads, 1024),
            ("joint_attention_dim", self.joint_attention_dim, 65_536),
            ("pooled_projection_dim", self.pooled_projection_dim, 65_536),
        ])?;
        check.packed(self.latent_height, self.latent_width, self.in_channels)?;
        let out_channels = self.out_channels.unwrap_or(self.in_channels);
        check.that(out_channels == self.in_channels, "out_channels", || {
            let channels = self.in_channels;
            format!("is {out_channels}; a velocity has the channels of a latent, `in_channels` = {channels}")
        })?;
        check.rotary_axes(self.axes_dims_rope, self.attention_head_dim)
    }
}
