//! Operations of a model that are sequences of others, each computed as one.

use super::{
    Activation, FeedForwardWeights, GatedResidual, LinearWeights, ModelOps, ModulatedNorm, RotaryTables,
    Stash,
};
use crate::tensors::{shape, side_by_side};
use burn::backend::DispatchTensor;
use burn::tensor::Tensor;
use std::fmt::Debug;

/// Operations that are made of those of [`ModelOps`], forward and backward. [`Composed`] is what they must equal, bit for
/// bit, in results and gradients.
pub trait FusedOps: Debug + Send + Sync {
    /// [`gated_residual`](ModelOps::gated_residual) of `gated` and of the linear layer of `x [B, S, in]`, which is given in parts that
    /// stand [side by side](crate::tensors::side_by_side); gives `[B, S, D]`.
    fn linear_gated_residual(
        &self,
        stash: &dyn Stash,
        gated: GatedResidual<'_>,
        x: &[&DispatchTensor],
        weights: &LinearWeights,
    ) -> DispatchTensor;

    /// The linear layer, with activation, of [`modulated_layer_norm`](ModelOps::modulated_layer_norm); gives `[B, S, out]`.
    fn modulated_linear(
        &self,
        stash: &dyn Stash,
        norm: ModulatedNorm<'_>,
        weights: &LinearWeights,
        activation: Activation,
    ) -> DispatchTensor;

    /// Several linear layers, three at most, of one [`modulated_layer_norm`](ModelOps::modulated_layer_norm): queries, keys
    /// and values; gives `[B, S, out]` for each.
    fn modulated_linears(
        &self,
        stash: &dyn Stash,
        norm: ModulatedNorm<'_>,
        weights: &[LinearWeights],
    ) -> Vec<DispatchTensor>;

    /// A block's feed-forward part: [`gated_residual`](ModelOps::gated_residual) of `norm.x`, by chunk `gate` of the norm's
    /// modulation, and of two linear layers of its [`modulated_layer_norm`](ModelOps::modulated_layer_norm); gives `[B, S, D]`.
    fn modulated_feed_forward(
        &self,
        stash: &dyn Stash,
        norm: ModulatedNorm<'_>,
        weights: &FeedForwardWeights,
        gate: usize,
    ) -> DispatchTensor;

    /// [`rotary`](ModelOps::rotary) of [`rms_norm`](ModelOps::rms_norm): of `x [B, S, H, D]` head by head, or of
    /// `x [B, S, H · D]` over all heads of a token at once; gives `[B, S, H, D]`.
    fn rms_norm_rotary(
        &self,
        x: &DispatchTensor,
        weight: Option<&DispatchTensor>,
        epsilon: f32,
        tables: RotaryTables<'_>,
    ) -> DispatchTensor;
}

/// Fused operations as the sequences that they are made of: what answers where kernels fuse nothing, and what fused kernels
/// must equal.
#[derive(Clone, Copy, Debug)]
pub struct Composed<'a>(pub &'a dyn ModelOps);

impl FusedOps for Composed<'_> {
    fn linear_gated_residual(
        &self,
        stash: &dyn Stash,
        gated: GatedResidual<'_>,
        x: &[&DispatchTensor],
        weights: &LinearWeights,
    ) -> DispatchTensor {
        let x = side_by_side(x.iter().copied());
        let branch = self.0.linear(stash, &x, weights, Activation::None);
        self.0.gated_residual(gated, &branch)
    }

    fn modulated_linear(
        &self,
        stash: &dyn Stash,
        norm: ModulatedNorm<'_>,
        weights: &LinearWeights,
        activation: Activation,
    ) -> DispatchTensor {
        let normed = self.0.modulated_layer_norm(norm);
        self.0.linear(stash, &normed, weights, activation)
    }

    fn modulated_linears(
        &self,
        stash: &dyn Stash,
        norm: ModulatedNorm<'_>,
        weights: &[LinearWeights],
    ) -> Vec<DispatchTensor> {
        let normed = self.0.modulated_layer_norm(norm);
        let linear = |weights| self.0.linear(stash, &normed, weights, Activation::None);
        weights.iter().map(linear).collect()
    }

    fn modulated_feed_forward(
        &self,
        stash: &dyn Stash,
        norm: ModulatedNorm<'_>,
        weights: &FeedForwardWeights,
        gate: usize,
    ) -> DispatchTensor {
        let inner = self.modulated_linear(stash, norm, &weights.up, weights.activation);
        let gated = GatedResidual {
            residual: norm.x,
            modulation: norm.modulation,
            gate,
        };
        self.linear_gated_residual(stash, gated, &[&inner], &weights.down)
    }

    fn rms_norm_rotary(
        &self,
        x: &DispatchTensor,
        weight: Option<&DispatchTensor>,
        epsilon: f32,
        tables: RotaryTables<'_>,
    ) -> DispatchTensor {
        let normed = self.0.rms_norm(x, weight, epsilon);
        let normed = match *shape(&normed).as_slice() {
            [batch, tokens, width] => {
                let head_dim = 2 * shape(tables.cos)[1];
                let heads = [batch, tokens, width / head_dim, head_dim];
                Tensor::<3>::from_dispatch(normed).reshape(heads).into_dispatch()
            }
            _ => normed,
        };
        self.0.rotary(&normed, tables)
    }
}
