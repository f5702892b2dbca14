//! Dimensions of a Wan transformer, as diffusers writes them in `config.json`.

use crate::ModelError;
use crate::layers::RotaryAxis;
use crate::settings::Check;
use flow_core::LatentShape;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Dimensions of a [`Wan`](super::Wan): the keys of diffusers' `WanTransformer3DModel` (0.42.1), so that a `config.json`
/// from there is read as it is, and the size of the latents, which such a file does not say.
///
/// Keys of a `config.json` that begin with `_` are ignored by [`build`](super::build).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WanConfig {
    /// Frames of a latent.
    pub latent_frames: usize,
    /// Rows of a latent.
    pub latent_height: usize,
    /// Columns of a latent.
    pub latent_width: usize,
    /// Frames, rows and columns of a patch: one frame, and as many rows as columns.
    pub patch_size: [usize; 3],
    /// Number of attention heads.
    pub num_attention_heads: usize,
    /// Channels of one head.
    pub attention_head_dim: usize,
    /// Channels of a latent.
    pub in_channels: usize,
    /// Channels of the velocity, equal to `in_channels`; `None`: `in_channels`.
    #[serde(default)]
    pub out_channels: Option<usize>,
    /// Channels of the text tokens.
    pub text_dim: usize,
    /// Channels of the noise level's sinusoidal embedding.
    pub freq_dim: usize,
    /// Width of the feed-forward part.
    pub ffn_dim: usize,
    /// Number of blocks.
    pub num_layers: usize,
    /// Layer norm with weights before the attention to the text.
    #[serde(default = "yes")]
    pub cross_attn_norm: bool,
    /// The norm of queries and keys: `"rms_norm_across_heads"`, an RMS norm over all heads at once.
    #[serde(default = "across_heads")]
    pub qk_norm: String,
    /// Added to variances and mean squares.
    #[serde(default = "default_epsilon")]
    pub eps: f32,
    /// Channels of image tokens; `None`: the model reads text alone, which is what there is here.
    #[serde(default)]
    pub image_dim: Option<usize>,
    /// Channels of the image tokens' keys and values; `None`, as `image_dim`.
    #[serde(default)]
    pub added_kv_proj_dim: Option<usize>,
    /// Positions that an axis may have.
    #[serde(default = "default_positions")]
    pub rope_max_seq_len: usize,
    /// Positions of the image tokens; `None`, as `image_dim`.
    #[serde(default)]
    pub pos_embed_seq_len: Option<usize>,
}

const ACROSS_HEADS: &str = "rms_norm_across_heads";

const fn yes() -> bool {
    true
}

fn across_heads() -> String {
    ACROSS_HEADS.into()
}

/// As in diffusers.
const fn default_epsilon() -> f32 {
    1e-6
}

/// As in diffusers.
const fn default_positions() -> usize {
    1024
}

impl WanConfig {
    /// Wan2.1-T2V-1.3B (`transformer/config.json` of `Wan-AI/Wan2.1-T2V-1.3B-Diffusers`) for videos of 81 frames of
    /// 480 × 832 pixels: the autoencoder keeps the first frame and every fourth after it, and an eighth of a side.
    pub fn t2v_1_3b() -> Self {
        Self {
            latent_frames: 21,
            latent_height: 60,
            latent_width: 104,
            patch_size: [1, 2, 2],
            num_attention_heads: 12,
            attention_head_dim: 128,
            in_channels: 16,
            out_channels: Some(16),
            text_dim: 4096,
            freq_dim: 256,
            ffn_dim: 8960,
            num_layers: 30,
            cross_attn_norm: true,
            qk_norm: across_heads(),
            eps: default_epsilon(),
            image_dim: None,
            added_kv_proj_dim: None,
            rope_max_seq_len: default_positions(),
            pos_embed_seq_len: None,
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
            frames: self.latent_frames,
            height: self.latent_height,
            width: self.latent_width,
        }
    }

    /// Side of a patch.
    pub fn patch(&self) -> usize {
        self.patch_size[1]
    }

    /// Frames, rows and columns of patches.
    pub fn grid(&self) -> [usize; 3] {
        let patch = self.patch();
        [
            self.latent_frames,
            self.latent_height / patch,
            self.latent_width / patch,
        ]
    }

    /// How a head's channel pairs are shared out to frames, rows and columns: a third each, and what is left over to
    /// the frames (diffusers' `WanRotaryPosEmbed`).
    pub(super) fn rotary_axes(&self) -> [RotaryAxis; 3] {
        let third = self.attention_head_dim / 6;
        let pairs = [self.attention_head_dim / 2 - 2 * third, third, third];
        let [frames, rows, columns] = self.grid();
        [(frames, pairs[0]), (rows, pairs[1]), (columns, pairs[2])]
            .map(|(length, pairs)| RotaryAxis { length, pairs })
    }

    /// The constants, as diffusers writes them; the size of a latent is none of them.
    pub(super) fn constants(&self) -> Value {
        // The decimal number that was meant, not the f32 nearest to it.
        let eps: f64 = self.eps.to_string().parse().unwrap_or(f64::from(self.eps));
        json!({
            "patch_size": self.patch_size,
            "num_attention_heads": self.num_attention_heads,
            "attention_head_dim": self.attention_head_dim,
            "in_channels": self.in_channels,
            "out_channels": self.out_channels.unwrap_or(self.in_channels),
            "text_dim": self.text_dim,
            "freq_dim": self.freq_dim,
            "ffn_dim": self.ffn_dim,
            "num_layers": self.num_layers,
            "cross_attn_norm": self.cross_attn_norm,
            "qk_norm": self.qk_norm,
            "eps": eps,
            "image_dim": self.image_dim,
            "added_kv_proj_dim": self.added_kv_proj_dim,
            "rope_max_seq_len": self.rope_max_seq_len,
            "pos_embed_seq_len": self.pos_embed_seq_len,
        })
    }

    /// Checks that the dimensions fit each other.
    ///
    /// # Errors
    /// [`ModelError::Settings`] naming the setting, its value and what is allowed.
    pub fn check(&self) -> Result<(), ModelError> {
        let check = Check("wan");
        let [patch_frames, patch_rows, patch_columns] = self.patch_size;
        check.within(&[
            ("latent_frames", self.latent_frames, 8192),
            ("latent_height", self.latent_height, 8192),
            ("latent_width", self.latent_width, 8192),
            ("patch_size", patch_rows, 64),
            ("num_attention_heads", self.num_attention_heads, 1024),
            ("attention_head_dim", self.attention_head_dim, 1024),
            ("in_channels", self.in_channels, 1024),
            ("text_dim", self.text_dim, 65_536),
            ("freq_dim", self.freq_dim, 65_536),
            ("ffn_dim", self.ffn_dim, 1 << 20),
            ("num_layers", self.num_layers, 1024),
            ("rope_max_seq_len", self.rope_max_seq_len, 1 << 20),
        ])?;
        check.that(patch_frames == 1 && patch_rows == patch_columns, "patch_size", || {
            format!(
                "is [{patch_frames}, {patch_rows}, {patch_columns}]; it must be [1, n, n], as in every Wan model"
            )
        })?;
        for (setting, side) in [
            ("latent_height", self.latent_height),
            ("latent_width", self.latent_width),
        ] {
            check.that(side.is_multiple_of(patch_rows), setting, || {
                format!("is {side}; it must be a multiple of the patch's side, {patch_rows}")
            })?;
        }
        let limit = self.rope_max_seq_len;
        for (setting, length) in ["latent_frames", "latent_height", "latent_width"]
            .into_iter()
            .zip(self.grid())
        {
            check.that(length <= limit, setting, || {
                format!("gives {length} positions; there are `rope_max_seq_len` = {limit}")
            })?;
        }
        check.that(
            self.attention_head_dim.is_multiple_of(2) && self.attention_head_dim >= 6,
            "attention_head_dim",
            || {
                let is = self.attention_head_dim;
                format!("is {is}; rotary positions on three axes need an even number of at least 6")
            },
        )?;
        check.that(self.freq_dim.is_multiple_of(2), "freq_dim", || {
            format!("is {}; sines and cosines need an even number", self.freq_dim)
        })?;
        check.that(self.eps.is_finite() && self.eps > 0.0, "eps", || {
            format!("is {}; it must be a finite number above 0", self.eps)
        })?;
        check.that(self.qk_norm == ACROSS_HEADS, "qk_norm", || {
            format!(
                "`{}` is no norm known here; allowed: \"{ACROSS_HEADS}\"",
                self.qk_norm
            )
        })?;
        let out_channels = self.out_channels.unwrap_or(self.in_channels);
        check.that(out_channels == self.in_channels, "out_channels", || {
            let channels = self.in_channels;
            format!("is {out_channels}; a velocity has the channels of a latent, `in_channels` = {channels}")
        })?;
        for (setting, value) in [
            ("image_dim", self.image_dim),
            ("added_kv_proj_dim", self.added_kv_proj_dim),
            ("pos_embed_seq_len", self.pos_embed_seq_len),
        ] {
            check.that(value.is_none(), setting, || {
                "is set, so the model also reads images; here it makes videos from text alone: null".into()
            })?;
        }
        Ok(())
    }
}
