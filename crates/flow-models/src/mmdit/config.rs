//! Dimensions of an MMDiT, as diffusers writes them in `config.json`.

use crate::ModelError;
use crate::settings::Check;
use flow_core::LatentShape;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

/// Dimensions of an [`Mmdit`](super::Mmdit): the keys of diffusers' `SD3Transformer2DModel` (0.42.1), so that a
/// `config.json` from there is read as it is, and the size of the latents.
///
/// Keys of a `config.json` that say nothing about dimensions (those that begin with `_`) are ignored by
/// [`build`](super::build).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MmditConfig {
    /// Side of the square latent that the position table was made for.
    pub sample_size: usize,
    /// Rows of a latent; `None`: `sample_size`.
    #[serde(default)]
    pub latent_height: Option<usize>,
    /// Columns of a latent; `None`: `sample_size`.
    #[serde(default)]
    pub latent_width: Option<usize>,
    /// Side of a square patch.
    pub patch_size: usize,
    /// Channels of a latent.
    pub in_channels: usize,
    /// Channels of the velocity, equal to `in_channels`; `None`: `in_channels`.
    #[serde(default)]
    pub out_channels: Option<usize>,
    /// Number of blocks; the last one reads the context without carrying it on.
    pub num_layers: usize,
    /// Channels of one head.
    pub attention_head_dim: usize,
    /// Number of attention heads.
    pub num_attention_heads: usize,
    /// Channels of the text tokens.
    pub joint_attention_dim: usize,
    /// Channels to which text tokens are projected: the width of the residual stream.
    pub caption_projection_dim: usize,
    /// Channels of the pooled text.
    pub pooled_projection_dim: usize,
    /// Side of the position table in patches.
    pub pos_embed_max_size: usize,
    /// Blocks with a second attention, of the sample to itself.
    #[serde(default)]
    pub dual_attention_layers: Vec<usize>,
    /// RMS norm per head on queries and keys. `"rms_norm"` or `null` in diffusers; also a truth value.
    #[serde(default, deserialize_with = "qk_norm")]
    pub qk_norm: bool,
}

fn qk_norm<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Setting {
        Flag(bool),
        Name(String),
        Absent(()),
    }
    match Setting::deserialize(deserializer)? {
        Setting::Flag(flag) => Ok(flag),
        Setting::Absent(()) => Ok(false),
        Setting::Name(name) if name == "rms_norm" => Ok(true),
        Setting::Name(name) => Err(serde::de::Error::custom(format_args!(
            "`{name}` is no norm known here; allowed: \"rms_norm\", true, false, null"
        ))),
    }
}

impl MmditConfig {
    /// Stable Diffusion 3.5 medium (`transformer/config.json` of `stabilityai/stable-diffusion-3.5-medium`).
    pub fn sd35_medium() -> Self {
        Self {
            sample_size: 128,
            latent_height: None,
            latent_width: None,
            patch_size: 2,
            in_channels: 16,
            out_channels: Some(16),
            num_layers: 24,
            attention_head_dim: 64,
            num_attention_heads: 24,
            joint_attention_dim: 4096,
            caption_projection_dim: 1536,
            pooled_projection_dim: 2048,
            pos_embed_max_size: 384,
            dual_attention_layers: (0..13).collect(),
            qk_norm: true,
        }
    }

    /// Width of the residual stream.
    pub fn hidden(&self) -> usize {
        self.num_attention_heads * self.attention_head_dim
    }

    /// Axes of a latent.
    pub fn latent(&self) -> LatentShape {
        LatentShape {
            channels: self.in_channels,
            frames: 1,
            height: self.latent_height.unwrap_or(self.sample_size),
            width: self.latent_width.unwrap_or(self.sample_size),
        }
    }

    /// Rows and columns of patches.
    pub fn grid(&self) -> (usize, usize) {
        let latent = self.latent();
        (latent.height / self.patch_size, latent.width / self.patch_size)
    }

    /// The constants, as diffusers writes them.
    pub(super) fn constants(&self) -> Value {
        json!({
            "sample_size": self.sample_size,
            "patch_size": self.patch_size,
            "in_channels": self.in_channels,
            "num_layers": self.num_layers,
            "attention_head_dim": self.attention_head_dim,
            "num_attention_heads": self.num_attention_heads,
            "joint_attention_dim": self.joint_attention_dim,
            "caption_projection_dim": self.caption_projection_dim,
            "pooled_projection_dim": self.pooled_projection_dim,
            "out_channels": self.out_channels.unwrap_or(self.in_channels),
            "pos_embed_max_size": self.pos_embed_max_size,
            "dual_attention_layers": self.dual_attention_layers,
            "qk_norm": self.qk_norm.then_some("rms_norm"),
        })
    }

    /// Checks that the dimensions fit each other.
    ///
    /// # Errors
    /// [`ModelError::Settings`] naming the setting, its value and what is allowed.
    pub fn check(&self) -> Result<(), ModelError> {
        let check = Check("mmdit");
        let latent = self.latent();
        check.within(&[
            ("sample_size", self.sample_size, 8192),
            ("latent_height", latent.height, 8192),
            ("latent_width", latent.width, 8192),
            ("patch_size", self.patch_size, 64),
            ("in_channels", self.in_channels, 1024),
            ("num_layers", self.num_layers, 1024),
            ("attention_head_dim", self.attention_head_dim, 1024),
            ("num_attention_heads", self.num_attention_heads, 1024),
            ("joint_attention_dim", self.joint_attention_dim, 65_536),
            ("pooled_projection_dim", self.pooled_projection_dim, 65_536),
            ("pos_embed_max_size", self.pos_embed_max_size, 4096),
        ])?;
        let (hidden, patch) = (self.hidden(), self.patch_size);
        check.that(hidden.is_multiple_of(4), "attention_head_dim", || {
            format!("times `num_attention_heads` is {hidden}; positions need a multiple of 4")
        })?;
        check.that(
            self.caption_projection_dim == hidden,
            "caption_projection_dim",
            || {
                let is = self.caption_projection_dim;
                format!("is {is}; it must be `num_attention_heads` times `attention_head_dim` = {hidden}")
            },
        )?;
        let out_channels = self.out_channels.unwrap_or(self.in_channels);
        check.that(out_channels == self.in_channels, "out_channels", || {
            let channels = self.in_channels;
            format!("is {out_channels}; a velocity has the channels of a latent, `in_channels` = {channels}")
        })?;
        let (rows, columns) = self.grid();
        let sides = [
            ("latent_height", latent.height, rows),
            ("latent_width", latent.width, columns),
        ];
        for (setting, side, patches) in sides {
            check.that(side.is_multiple_of(patch), setting, || {
                format!("is {side}; it must be a multiple of `patch_size` = {patch}")
            })?;
            let limit = self.pos_embed_max_size;
            check.that(patches <= limit, setting, || {
                format!("gives {patches} patches; the position table has `pos_embed_max_size` = {limit}")
            })?;
        }
        check.that(self.sample_size >= patch, "sample_size", || {
            format!(
                "is {}; it must be at least `patch_size` = {patch}",
                self.sample_size
            )
        })?;
        let mut seen = std::collections::BTreeSet::new();
        for &layer in &self.dual_attention_layers {
            check.that(
                layer < self.num_layers && seen.insert(layer),
                "dual_attention_layers",
                || {
                    format!(
                        "names block {layer}; each must be below `num_layers` = {} and none twice",
                        self.num_layers
                    )
                },
            )?;
        }
        Ok(())
    }
}
