//! `[model]`: the architecture, its dimensions, its weights, and which of them are trained.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[model]`: architecture and weights.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    /// Which architecture; its dimensions stand in the table of the same name, and the other tables must be
    /// left out.
    pub architecture: Architecture,
    /// Weights to start from: a safetensors file, or a directory or `index.json` of a sharded one, relative to
    /// the config file. Without it the model starts from random weights, which is of use to `pretrain` alone. What they
    /// say of their model (`config.json`, metadata) decides where this config is silent.
    pub weights: Option<PathBuf>,
    /// A LoRA file, or the folder of one, that adapters start from instead of zero: of diffusers, `peft`, `kohya-ss` or
    /// `ai-toolkit`, relative to the config file. It decides `finetune`, `lora.rank`, `lora.alpha` and `lora.targets` where
    /// this config is silent.
    pub adapter: Option<PathBuf>,
    /// Which weights RL trains.
    pub finetune: Finetune,
    /// Dimensions of the DiT, read when `architecture = "dit"`.
    pub dit: DitConfig,
    /// Dimensions of the MMDiT, read when `architecture = "mmdit"`.
    pub mmdit: MmditConfig,
    /// Dimensions of the video transformer, read when `architecture = "wan"`.
    pub wan: WanConfig,
}

/// Model architecture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Architecture {
    /// Diffusion transformer with adaLN-zero (Peebles and Xie 2022, arXiv 2212.09748).
    #[default]
    Dit,
    /// Multimodal DiT of Stable Diffusion 3 (Esser et al. 2024, arXiv 2403.03206), in the layout of diffusers'
    /// `SD3Transformer2DModel`.
    Mmdit,
    /// Video transformer of Wan 2.1, text to video (Wan Team 2025, arXiv 2503.20314), in the layout of diffusers'
    /// `WanTransformer3DModel`.
    Wan,
}

/// Which weights RL trains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Finetune {
    /// Every weight.
    #[default]
    Full,
    /// Low-rank adapters on the linears named in `[lora]`; the base stays frozen.
    Lora,
}

/// `[model.dit]`: dimensions of the DiT.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DitConfig {
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
    pub position: PositionEncoding,
    /// A mixture of experts in the place of the MLP.
    pub moe: MoeConfig,
}

impl Default for DitConfig {
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
            position: PositionEncoding::Sincos,
            moe: MoeConfig::default(),
        }
    }
}

/// `[model.dit.moe]`: a mixture of experts in the place of every block's MLP (Fei et al. 2024, arXiv 2407.11633).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MoeConfig {
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

impl Default for MoeConfig {
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

/// How patches learn their place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PositionEncoding {
    /// Fixed 2-D sine and cosine embedding, added to the patches. `hidden` must be a multiple of 4.
    #[default]
    Sincos,
    /// 2-D rotary embedding of queries and keys. `hidden / heads` must be a multiple of 4.
    Rope,
}

/// `[model.mmdit]`: dimensions of the MMDiT, with the names of diffusers' `SD3Transformer2DModel`. The defaults are
/// SD3.5-medium's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MmditConfig {
    /// Side of the square latent in pixels; a multiple of `patch_size`.
    #[schemars(range(min = 1, max = 8192))]
    pub sample_size: usize,
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

impl Default for MmditConfig {
    fn default() -> Self {
        Self {
            sample_size: 128,
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

/// `[model.wan]`: dimensions of the video transformer, with the names of diffusers' `WanTransformer3DModel`. The
/// defaults are those of Wan2.1-T2V-1.3B, for videos of 81 frames of 480 by 832 pixels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WanConfig {
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

impl Default for WanConfig {
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
