//! Dimensions of a DiT.

use crate::ModelError;
use crate::settings::{Check, LatentSettings, vocabulary};
use flow_core::LatentShape;
use flow_core::model::Vocabulary;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How patches learn their place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "PositionEncoding")]
pub enum Position {
    /// Fixed 2-D sine and cosine embedding, added to the patches. `hidden` must be a multiple of 4.
    #[default]
    Sincos,
    /// 2-D rotary embedding of queries and keys. `hidden / heads` must be a multiple of 4.
    Rope,
}

/// Dimensions of a [`Dit`](super::Dit).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DitConfig {
    /// Axes of a latent; one frame.
    #[serde(with = "LatentSettings")]
    pub latent: LatentShape,
    /// Side of a square patch, which divides height and width.
    pub patch: usize,
    /// Width of the residual stream, a multiple of `heads`.
    pub hidden: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Number of attention heads.
    pub heads: usize,
    /// Width of the feed-forward part as a multiple of `hidden`, the product rounded.
    #[serde(default = "default_mlp_ratio")]
    pub mlp_ratio: f64,
    /// The tokens it is conditioned on; a class is one token. `None`: unconditional. A "no condition" token, padding
    /// included, is an ordinary row of the vocabulary.
    #[serde(default, with = "vocabulary")]
    pub vocabulary: Option<Vocabulary>,
    /// RMS norm per head on queries and keys.
    #[serde(default)]
    pub qk_norm: bool,
    /// How patches learn their place.
    #[serde(default)]
    pub position: Position,
    /// A mixture of experts in the place of every block's feed-forward part; `mlp_ratio` is not read then.
    #[serde(default)]
    pub moe: Option<MoeConfig>,
}

/// A mixture of experts (Fei et al. 2024, arXiv:2407.11633).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoeConfig {
    /// Experts of a block, of which each token gets some.
    pub experts: usize,
    /// Experts that a token gets.
    pub top_k: usize,
    /// Width of one of them.
    pub inner: usize,
    /// Width of the expert that every token gets besides; 0: there is none.
    #[serde(default)]
    pub shared: usize,
    /// Whether the weights of a token's experts are divided by their sum.
    #[serde(default)]
    pub normalize: bool,
}

impl MoeConfig {
    fn check(&self, check: &Check) -> Result<(), ModelError> {
        check.within(&[
            ("moe.experts", self.experts, 1024),
            ("moe.inner", self.inner, 1 << 20),
            ("moe.top_k", self.top_k, 64),
        ])?;
        check.that(self.shared <= 1 << 20, "moe.shared", || {
            format!("is {}; it must be at most {}", self.shared, 1 << 20)
        })?;
        check.that(self.top_k <= self.experts, "moe.top_k", || {
            format!("is {}; there are `moe.experts` = {}", self.top_k, self.experts)
        })
    }
}

/// Of every DiT in the paper (Peebles and Xie 2022, arXiv:2212.09748).
const fn default_mlp_ratio() -> f64 {
    4.0
}

impl DitConfig {
    /// Checks that the dimensions fit each other.
    ///
    /// # Errors
    /// [`ModelError::Settings`] naming the setting, its value and what is allowed.
    pub fn check(&self) -> Result<(), ModelError> {
        let check = Check("dit");
        let Self { latent, patch, .. } = self;
        check.within(&[
            ("latent.channels", latent.channels, 1024),
            ("latent.height", latent.height, 8192),
            ("latent.width", latent.width, 8192),
            ("patch", *patch, 64),
            ("hidden", self.hidden, 65_536),
            ("layers", self.layers, 1024),
            ("heads", self.heads, 1024),
        ])?;
        check.that(latent.frames == 1, "latent.frames", || {
            format!("is {}; this architecture makes images: 1", latent.frames)
        })?;
        for (setting, side) in [("latent.height", latent.height), ("latent.width", latent.width)] {
            check.that(side.is_multiple_of(*patch), setting, || {
                format!("is {side}; it must be a multiple of `patch` = {patch}")
            })?;
        }
        check.that(self.hidden.is_multiple_of(self.heads), "hidden", || {
            format!(
                "is {}; it must be a multiple of `heads` = {}",
                self.hidden, self.heads
            )
        })?;
        match self.position {
            Position::Sincos => check.that(self.hidden.is_multiple_of(4), "hidden", || {
                format!(
                    "is {}; sine and cosine positions need a multiple of 4",
                    self.hidden
                )
            })?,
            Position::Rope => check.that(self.head_dim().is_multiple_of(4), "heads", || {
                let head_dim = self.head_dim();
                format!("gives {head_dim} channels a head; rotary positions need a multiple of 4")
            })?,
        }
        let inner = self.mlp_width();
        check.that(
            self.moe.is_some() || (1..=1 << 20).contains(&inner),
            "mlp_ratio",
            || {
                format!(
                    "is {}, which gives {inner} inner channels; there must be 1 to {}",
                    self.mlp_ratio,
                    1 << 20
                )
            },
        )?;
        if let Some(moe) = &self.moe {
            moe.check(&check)?;
        }
        if let Some(vocabulary) = self.vocabulary {
            check.within(&[
                ("vocabulary.size", vocabulary.size, 10_000_000),
                ("vocabulary.length", vocabulary.length, 65_536),
            ])?;
        }
        Ok(())
    }

    /// Channels of one head.
    pub fn head_dim(&self) -> usize {
        self.hidden / self.heads
    }

    /// Width of the feed-forward part.
    pub fn mlp_width(&self) -> usize {
        (self.hidden as f64 * self.mlp_ratio).round() as usize
    }

    /// Rows and columns of patches.
    pub fn grid(&self) -> (usize, usize) {
        (self.latent.height / self.patch, self.latent.width / self.patch)
    }
}
