//! `[model.dit]`: the dimensions of a DiT as a config has them.

use super::{DitConfig, MoeConfig, Position};
use flow_core::LatentShape;
use flow_core::model::Vocabulary;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[model.dit]`: dimensions of the DiT.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "DitConfig")]
pub struct DitSection {
    /// Channels of the latent (or of the image, where there is no autoencoder).
    #[schemars(range(min = 1, max = 1024))]
    pub latent_channels: usize,
    /// Height of the latent in pixels; a multiple of `patch`.
    #[schemars(range(min = 1, max = 8192))]
    pub height: usize,
    /// Width of the latent in pixels; a multiple of `patch`.
    #[schemars(range(min = 1, max = 8192))]
    pub width: usize,
    /// Side of a square patch in latent pixels; a patch is one token.
    #[schemars(range(min = 1, max = 64))]
    pub patch: usize,
    /// Width of the residual stream; a multiple of `heads`.
    #[schemars(range(min = 1, max = 65_536))]
    pub hidden: usize,
    /// Number of transformer blocks.
    #[schemars(range(min = 1, max = 1024))]
    pub layers: usize,
    /// Number of attention heads.
    #[schemars(range(min = 1, max = 1024))]
    pub heads: usize,
    /// Width of the MLP as a multiple of `hidden`; the product is rounded to the nearest integer.
    #[schemars(range(max = 64.0), extend("exclusiveMinimum" = 0.0))]
    pub mlp_ratio: f64,
    /// What the model is conditioned on.
    pub conditioning: Conditioning,
    /// RMS-normalise queries and keys per head, with learned scales.
    pub qk_norm: bool,
    /// How patches learn their place.
    pub position: Position,
    /// A mixture of experts in the place of the MLP.
    pub moe: MoeSection,
}

impl Default for DitSection {
    fn default() -> Self {
        Self {
            latent_channels: 1,
            height: 8,
            width: 8,
            patch: 2,
            hidden: 96,
            layers: 4,
            heads: 4,
            mlp_ratio: 4.0,
            conditioning: Conditioning::default(),
            qk_norm: true,
            position: Position::Sincos,
            moe: MoeSection::default(),
        }
    }
}

/// `[model.dit.moe]`: a mixture of experts in the place of every block's MLP (Fei et al. 2024, arXiv 2407.11633).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "MoeConfig")]
pub struct MoeSection {
    /// Experts of a block, of which each token gets `top_k`; 0: no mixture, but the MLP of `mlp_ratio`.
    #[schemars(range(max = 1024))]
    pub experts: usize,
    /// Experts that a token gets, those of the highest scores; at most `experts`.
    #[schemars(range(min = 1, max = 64))]
    pub top_k: usize,
    /// Width of one expert.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub inner: usize,
    /// Width of the expert that every token gets besides; 0: there is none.
    #[schemars(range(max = 1_048_576))]
    pub shared: usize,
    /// Divide the weights of a token's experts by their sum.
    pub normalize: bool,
}

impl Default for MoeSection {
    fn default() -> Self {
        Self {
            experts: 0,
            top_k: 2,
            inner: 192,
            shared: 192,
            normalize: false,
        }
    }
}

/// `[model.dit.conditioning]`: what the DiT is conditioned on. Both kinds own a learned "no condition" entry, which
/// classifier-free guidance uses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "kebab-case")]
pub enum Conditioning {
    /// A class label, added to the timestep embedding.
    Class(ClassConditioning),
    /// A sequence of tokens, whose embeddings are added to the timestep embedding.
    Tokens(TokenConditioning),
}

impl Default for Conditioning {
    fn default() -> Self {
        Self::Tokens(TokenConditioning::default())
    }
}

/// Conditioning on a class label.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClassConditioning {
    /// Number of classes, not counting the "no condition" entry.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub classes: usize,
}

impl Default for ClassConditioning {
    fn default() -> Self {
        Self { classes: 10 }
    }
}

/// Conditioning on a sequence of tokens. The defaults are those of the digits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TokenConditioning {
    /// Number of distinct tokens, padding and "no condition" included: 15 for digits, 18 for shapes.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub vocabulary: usize,
    /// Length of a prompt in tokens, shorter ones being padded: 2 for digits, 4 for shapes.
    #[schemars(range(min = 1, max = 65_536))]
    pub max_tokens: usize,
}

impl Default for TokenConditioning {
    fn default() -> Self {
        Self {
            vocabulary: 15,
            max_tokens: 2,
        }
    }
}

impl From<&DitSection> for DitConfig {
    fn from(section: &DitSection) -> Self {
        let (size, length) = match &section.conditioning {
            // A class is one token.
            Conditioning::Class(class) => (class.classes, 1),
            Conditioning::Tokens(tokens) => (tokens.vocabulary, tokens.max_tokens),
        };
        let moe = &section.moe;
        Self {
            latent: LatentShape {
                channels: section.latent_channels,
                frames: 1,
                height: section.height,
                width: section.width,
            },
            patch: section.patch,
            hidden: section.hidden,
            layers: section.layers,
            heads: section.heads,
            mlp_ratio: section.mlp_ratio,
            vocabulary: Some(Vocabulary { size, length }),
            qk_norm: section.qk_norm,
            position: section.position,
            moe: (moe.experts > 0).then_some(MoeConfig {
                experts: moe.experts,
                top_k: moe.top_k,
                inner: moe.inner,
                shared: moe.shared,
                normalize: moe.normalize,
            }),
        }
    }
}
