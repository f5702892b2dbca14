//! How the velocities of two branches become one: classifier-free guidance, plain or with the length of the conditional branch.
//!
//! Legend: `B` samples, `N` values of one latent, `[C, F, H, W]`.

use burn::tensor::Tensor;
use flow_core::{LatentShape, ModelSpec};

/// Added to squared lengths, so that two velocities of zeros are one of zeros, and have gradients. A trained model's token has a squared
/// length of about its number of values, which this does not change in f32.
const LEAST: f32 = 1e-15;

/// What guidance makes of the velocities of both branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuidanceRule {
    /// `v = v_uncond + s · (v_cond - v_uncond)` (Ho and Salimans 2022, arXiv:2207.12598).
    Linear,
    /// The same, and then each token as long as the conditional branch has it: `v · |v_cond| / |v|`, the Euclidean norms over all
    /// values of a token (diffusers 0.42.1, `pipelines/qwenimage/pipeline_qwenimage.py`).
    NormPreserving {
        /// Axes of a latent.
        latent: LatentShape,
        /// Side of the squares that make one token, of all channels.
        patch: usize,
    },
}

impl GuidanceRule {
    /// The rule of the pipeline that a model of `spec` is of: norm-preserving for Qwen-Image, linear for all others.
    pub fn of(spec: &ModelSpec) -> Self {
        if spec.architecture != "qwen-image" || spec.tokens == 0 {
            return Self::Linear;
        }
        let latent = spec.latent;
        let squares = latent.frames * latent.height * latent.width / spec.tokens;
        Self::NormPreserving {
            latent,
            patch: squares.isqrt().max(1),
        }
    }

    /// The guided velocity `[B, N]` of `conditional_BN` and `unconditional_BN` at a scale.
    pub fn combine(&self, conditional_bn: Tensor<2>, unconditional_bn: Tensor<2>, scale: f32) -> Tensor<2> {
        let difference = conditional_bn.clone() - unconditional_bn.clone();
        let combined = unconditional_bn + difference * scale;
        let Self::NormPreserving { latent, patch } = self else {
            return combined;
        };
        let [batch, values] = combined.dims();
        // Frames below one another: `[C, F, H, W]` and `[C, F·H, W]` are the same values.
        let (rows, columns) = (latent.frames * latent.height / patch, latent.width / patch);
        let squares = [batch, latent.channels, rows, *patch, columns, *patch];
        let tokens = |v_bn: Tensor<2>| v_bn.reshape(squares);
        let squared_length = |v: Tensor<6>| (v.clone() * v).sum_dim(1).sum_dim(3).sum_dim(5) + LEAST;
        let combined = tokens(combined);
        let ratio = squared_length(tokens(conditional_bn)) / squared_length(combined.clone());
        (combined * ratio.sqrt()).reshape([batch, values])
    }
}
