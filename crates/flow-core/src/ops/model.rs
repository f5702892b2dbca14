//! The operations of a model besides attention and experts, and what they are told.

use super::Stash;
use crate::low_precision::LowPrecision;
use crate::tensors::{RawTensor, shape};
use burn::backend::DispatchTensor;
use std::fmt::Debug;

/// Elementwise function after a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// The identity.
    None,
    /// `x · sigmoid(x)`.
    Silu,
    /// GELU, tanh approximation (Hendrycks and Gimpel 2016, arXiv:1606.08415).
    GeluTanh,
}

/// A linear layer's weights, and its adapter if one is on.
#[derive(Clone, Debug)]
pub struct LinearWeights {
    /// `[out, in]`: numbers, or the words of a matrix in low precision.
    pub weight: DispatchTensor,
    /// The form of a matrix in low precision. It is frozen; whoever multiplies widens it to f32 or the type of activations right before,
    /// or multiplies its codes with those of activations, as [`LowPrecision::compute`] says; keeps the words alone for backward, and
    /// there widens them again, or multiplies their [second copy](LowPrecision::transposed) with codes of gradients. With numbers, which
    /// may be trained, it is the form that forward rounds them to right before; backward multiplies with the numbers, or rounds their
    /// columns right before and multiplies these with codes of gradients.
    pub low_precision: Option<LowPrecision>,
    /// `[out]`.
    pub bias: Option<DispatchTensor>,
    /// `A [rank, in]`, `B [out, rank]` and the scale of a low-rank adapter.
    pub adapter: Option<(DispatchTensor, DispatchTensor, f32)>,
}

impl LinearWeights {
    /// Output and input channels.
    pub fn channels(&self) -> [usize; 2] {
        match self.low_precision {
            Some(of) => [of.rows, of.columns],
            None => {
                let shape = shape(&self.weight);
                [shape[0], shape[1]]
            }
        }
    }

    /// Weight, bias, and `A` and `B` of the adapter, as far as they are there: the order of an operation's inputs.
    pub fn tensors(&self) -> impl Iterator<Item = &DispatchTensor> {
        let adapter = self.adapter.iter().flat_map(|(down, up, _)| [down, up]);
        std::iter::once(&self.weight).chain(&self.bias).chain(adapter)
    }
}

/// The weights of a feed-forward part and the function between them.
#[derive(Clone, Debug)]
pub struct FeedForwardWeights {
    /// From `[.., D]` to `[.., inner]`.
    pub up: LinearWeights,
    /// After `up`.
    pub activation: Activation,
    /// From `[.., inner]` to `[.., D]`.
    pub down: LinearWeights,
}

/// Where in a modulation `[B, K, D]` the chunks of a norm lie, and its epsilon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormChunks {
    /// Index of the shift.
    pub shift: usize,
    /// Index of the scale.
    pub scale: usize,
    /// Added to the variance.
    pub epsilon: f32,
}

/// The operands of `layer_norm(x) · (1 + modulation[:, scale]) + modulation[:, shift]`, without affine weights.
#[derive(Clone, Copy, Debug)]
pub struct ModulatedNorm<'a> {
    /// `[B, S, D]`, f32 or the model's activation type.
    pub x: &'a DispatchTensor,
    /// `[B, K, D]`, f32 or the model's activation type.
    pub modulation: &'a DispatchTensor,
    /// Which chunks are shift and scale.
    pub chunks: NormChunks,
}

/// The operands of `residual + modulation[:, gate] · branch`, but for the branch.
#[derive(Clone, Copy, Debug)]
pub struct GatedResidual<'a> {
    /// `[B, S, D]`, f32 or the model's activation type.
    pub residual: &'a DispatchTensor,
    /// `[B, K, D]`, f32 or the model's activation type.
    pub modulation: &'a DispatchTensor,
    /// Index of the gate's chunk, below `K`.
    pub gate: usize,
}

/// The tables of a rotary position embedding, f32.
#[derive(Clone, Copy, Debug)]
pub struct RotaryTables<'a> {
    /// `[S, D/2]`.
    pub cos: &'a RawTensor,
    /// `[S, D/2]`.
    pub sin: &'a RawTensor,
}

/// The operations of a model's layers, forward and backward.
pub trait ModelOps: Debug + Send + Sync {
    /// `activation(x Wᵀ + b + scale · (x Aᵀ) Bᵀ)` over the last axis of `x [.., in]`; gives `[.., out]`.
    fn linear(
        &self,
        stash: &dyn Stash,
        x: &DispatchTensor,
        weights: &LinearWeights,
        activation: Activation,
    ) -> DispatchTensor;

    /// Elementwise activation.
    fn activation(&self, x: &DispatchTensor, activation: Activation) -> DispatchTensor;

    /// The modulated layer norm of `norm.x`; gives `[B, S, D]`.
    fn modulated_layer_norm(&self, norm: ModulatedNorm<'_>) -> DispatchTensor;

    /// `layer_norm(x) · weight + bias`; `x [B, S, D]`, `weight` and `bias` `[D]` (Ba et al. 2016, arXiv:1607.06450). The
    /// mean and the variance (of the deviations from the mean, divided by `D`) are those of
    /// [`modulated_layer_norm`](Self::modulated_layer_norm). Backward gives gradients of all three.
    fn layer_norm(
        &self,
        x: &DispatchTensor,
        weight: &DispatchTensor,
        bias: &DispatchTensor,
        epsilon: f32,
    ) -> DispatchTensor;

    /// The gated sum of a residual and `branch [B, S, D]`; gives `[B, S, D]`.
    fn gated_residual(&self, gated: GatedResidual<'_>, branch: &DispatchTensor) -> DispatchTensor;

    /// `x / sqrt(mean(x²) + epsilon) · weight` over the last axis (Zhang and Sennrich 2019, arXiv:1910.07467).
    fn rms_norm(&self, x: &DispatchTensor, weight: Option<&DispatchTensor>, epsilon: f32) -> DispatchTensor;

    /// Rotates pairs `(2i, 2i+1)` of the last axis of `x [B, S, H, D]` (Su et al. 2021, arXiv:2104.09864).
    fn rotary(&self, x: &DispatchTensor, tables: RotaryTables<'_>) -> DispatchTensor;

    /// Rows of `table [V, D]` at `index [B, L]` (integers); gives `[B, L, D]`. An index out of range is a panic, or
    /// on a device that would have to be waited for a row of NaN: tokens are checked when a prompt is read.
    fn embedding(&self, table: &DispatchTensor, index: &RawTensor) -> DispatchTensor;
}
