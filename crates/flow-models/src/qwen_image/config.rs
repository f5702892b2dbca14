//! Dimensions of Qwen-Image's transformer, as diffusers writes them in `config.json`.

use crate::ModelError;
use crate::layers::PACKING;
use crate::settings::Check;
use flow_core::LatentShape;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Dimensions of a [`QwenImage`](super::QwenImage): the keys of diffusers' `QwenImageTransformer2DModel` (0.42.1), so that a
/// `config.json` from there is read as it is, and the size of the latents, which such a file does not say.
///
/// Keys of a `config.json` that begin with `_` are ignored by [`build`](super::build).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QwenImageConfig {
    /// Rows of a latent: an eighth of the picture's.
    pub latent_height: usize,
    /// Columns of a latent: an eighth of the picture's.
    pub latent_width: usize,
    /// Side of the squares of latent values that make one token: 2.
    #[serde(default = "packing")]
    pub patch_size: usize,
    /// Channels of a packed latent: four times those of the autoencoder.
    pub in_channels: usize,
    /// Channels of the velocity before it is packed: those of the autoencoder.
    pub out_channels: usize,
    /// Number of blocks.
    pub num_layers: usize,
    /// Channels of one head.
    pub attention_head_dim: usize,
    /// Number of attention heads.
    pub num_attention_heads: usize,
    /// Channels of the text tokens.
    pub joint_attention_dim: usize,
    /// Channels of a head that turn with each axis of a position: frame, row, column.
    #[serde(default = "published_axes")]
    pub axes_dims_rope: [usize; 3],
    /// Stated by the first files that were published; nothing reads it, in diffusers or here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pooled_projection_dim: Option<usize>,
    /// A guidance scale that the model embeds: no published model does, and it must be false.
    #[serde(default)]
    pub guidance_embeds: bool,
    /// Of Qwen-Image-Edit-2511, which is not here: must be false.
    #[serde(default)]
    pub zero_cond_t: bool,
    /// Of Qwen-Image-Layered, which is not here: must be false.
    #[serde(default)]
    pub use_additional_t_cond: bool,
    /// Of Qwen-Image-Layered, which is not here: must be false.
    #[serde(default)]
    pub use_layer3d_rope: bool,
}

const fn packing() -> usize {
    PACKING
}

const fn published_axes() -> [usize; 3] {
    [16, 56, 56]
}

impl QwenImageConfig {
    /// Qwen-Image (`transformer/config.json` of `Qwen/Qwen-Image`) for pictures of 1024 × 1024 pixels.
    pub fn published() -> Self {
        Self {
            latent_height: 128,
            latent_width: 128,
            patch_size: PACKING,
            in_channels: 64,
            out_channels: 16,
            num_layers: 60,
            attention_head_dim: 128,
            num_attention_heads: 24,
            joint_attention_dim: 3584,
            axes_dims_rope: published_axes(),
            pooled_projection_dim: None,
            guidance_embeds: false,
            zero_cond_t: false,
            use_additional_t_cond: false,
            use_layer3d_rope: false,
        }
    }

    /// Width of the residual stream.
    pub fn hidden(&self) -> usize {
        self.num_attention_heads * self.attention_head_dim
    }

    /// Axes of a latent.
    pub fn latent(&self) -> LatentShape {
        LatentShape {
            channels: self.out_channels,
            frames: 1,
            height: self.latent_height,
            width: self.latent_width,
        }
    }

    /// Rows and columns of tokens.
    pub fn grid(&self) -> (usize, usize) {
        (self.latent_height / PACKING, self.latent_width / PACKING)
    }

    /// The constants, as diffusers writes them; the size of a latent is none of them.
    pub(super) fn constants(&self) -> Value {
        json!({
            "patch_size": self.patch_size,
            "in_channels": self.in_channels,
            "out_channels": self.out_channels,
            "num_layers": self.num_layers,
            "attention_head_dim": self.attention_head_dim,
            "num_attention_heads": self.num_attention_heads,
            "joint_attention_dim": self.joint_attention_dim,
            "guidance_embeds": self.guidance_embeds,
            "axes_dims_rope": self.axes_dims_rope,
        })
    }

    /// Checks that the dimensions fit each other, and that the model is one of those that are here.
    ///
    /// # Errors
    /// [`ModelError::Settings`] naming the setting, its value and what is allowed.
    pub fn check(&self) -> Result<(), ModelError> {
        let check = Check("qwen-image");
        check.within(&[
            ("latent_height", self.latent_height, 8192),
            ("latent_width", self.latent_width, 8192),
            ("in_channels", self.in_channels, 4096),
            ("num_layers", self.num_layers, 1024),
            ("attention_head_dim", self.attention_head_dim, 1024),
            ("num_attention_heads", self.num_attention_heads, 1024),
            ("joint_attention_dim", self.joint_attention_dim, 65_536),
        ])?;
        check.that(self.patch_size == PACKING, "patch_size", || {
            format!(
                "is {}; it must be {PACKING}, as latents are packed",
                self.patch_size
            )
        })?;
        check.packed(self.latent_height, self.latent_width, self.in_channels)?;
        let channels = self.in_channels / (PACKING * PACKING);
        check.that(self.out_channels == channels, "out_channels", || {
            format!(
                "is {}; a velocity has the channels of a latent, a quarter of `in_channels`: {channels}",
                self.out_channels
            )
        })?;
        for (setting, value, whose) in [
            ("guidance_embeds", self.guidance_embeds, "of no published model"),
            ("zero_cond_t", self.zero_cond_t, "of Qwen-Image-Edit-2511"),
            (
                "use_additional_t_cond",
                self.use_additional_t_cond,
                "of Qwen-Image-Layered",
            ),
            ("use_layer3d_rope", self.use_layer3d_rope, "of Qwen-Image-Layered"),
        ] {
            check.that(!value, setting, || {
                format!("is true, which is {whose} and not computed here; only text to image is, where it is false")
            })?;
        }
        check.rotary_axes(self.axes_dims_rope, self.attention_head_dim)
    }
}
