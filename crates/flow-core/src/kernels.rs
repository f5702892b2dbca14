//! The operations a model and a trainer ask for besides attention.
//!
//! An implementation owns forward and backward of each operation (through [`crate::op`]), so it also decides what
//! backward keeps. `flow-kernels` implements it for the CPU. Legend of shapes: `B` batch, `S` tokens, `D` channels,
//! `H` heads, `K` modulation chunks, `N` values of one latent.

use crate::exec::Stash;
use crate::tensors::Plain;
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
    /// `[out, in]`.
    pub weight: DispatchTensor,
    /// `[out]`.
    pub bias: Option<DispatchTensor>,
    /// `A [rank, in]`, `B [out, rank]` and the scale of a low-rank adapter.
    pub adapter: Option<(DispatchTensor, DispatchTensor, f32)>,
}

/// Constants and values of one AdamW step (Loshchilov and Hutter 2019, arXiv:1711.05101).
#[derive(Clone, Debug)]
pub struct AdamWStep {
    /// Decay of the first and of the second moment.
    pub betas: (f32, f32),
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Decoupled weight decay, times the learning rate.
    pub weight_decay: f32,
    /// What changes from step to step, on the device: `[learning rate, 1 - beta1^t, 1 - beta2^t, gradient scale]`.
    pub varying: Plain,
}

/// Results of an SDE step: `x_next [B, N]` as stored, `mean [B, N]`, `log_prob [B]`, all f32.
#[derive(Clone, Debug)]
pub struct SdeOutputs {
    /// The next latents.
    pub x_next: Plain,
    /// Mean of their distribution.
    pub mean: Plain,
    /// Log-probability of `x_next`, the mean over its elements.
    pub log_prob: Plain,
}

/// Fused operations. Tensors may be tracked unless their type is [`Plain`]; shapes are checked by the caller, [`Exec`](crate::exec::Exec).
#[allow(clippy::too_many_arguments)]
pub trait Kernels: Debug + Send + Sync {
    /// Name in logs and manifests.
    fn name(&self) -> &str;

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

    /// `layer_norm(x) · (1 + modulation[:, scale]) + modulation[:, shift]`, no affine weights; `x [B, S, D]`,
    /// `modulation [B, K, D]`.
    fn modulated_layer_norm(
        &self,
        x: &DispatchTensor,
        modulation: &DispatchTensor,
        shift: usize,
        scale: usize,
        epsilon: f32,
    ) -> DispatchTensor;

    /// `residual + modulation[:, gate] · branch`; `[B, S, D]`, `modulation [B, K, D]`.
    fn gated_residual(
        &self,
        residual: &DispatchTensor,
        branch: &DispatchTensor,
        modulation: &DispatchTensor,
        gate: usize,
    ) -> DispatchTensor;

    /// `x / sqrt(mean(x²) + epsilon) · weight` over the last axis (Zhang and Sennrich 2019, arXiv:1910.07467).
    fn rms_norm(&self, x: &DispatchTensor, weight: Option<&DispatchTensor>, epsilon: f32) -> DispatchTensor;

    /// Rotates pairs `(2i, 2i+1)` of the last axis of `x [B, S, H, D]` by tables `cos`, `sin` of `[S, D/2]`
    /// (Su et al. 2021, arXiv:2104.09864).
    fn rotary(&self, x: &DispatchTensor, cos: &Plain, sin: &Plain) -> DispatchTensor;

    /// Rows of `table [V, D]` at `index [B, L]` (integers); gives `[B, L, D]`. An index out of range is a panic: tokens
    /// are checked when a prompt is read.
    fn embedding(&self, table: &DispatchTensor, index: &Plain) -> DispatchTensor;

    /// One SDE step. `x`, `v`, `noise` are `[B, N]`; `coefficients [B, 5]` holds per row `a, b, c, k, offset` of
    /// `mean = a x + b v`, `x_next = mean + c noise`, `log_prob = mean over N of -(x_next - mean)² · k + offset`.
    fn sde_step(&self, x: &Plain, v: &Plain, noise: &Plain, coefficients: &Plain) -> SdeOutputs;

    /// `(log_prob [B], mean [B, N])` of a step taken before, differentiable in `v`; the arithmetic of
    /// [`sde_step`](Self::sde_step), bit for bit.
    fn sde_log_prob(
        &self,
        x: &Plain,
        v: &DispatchTensor,
        x_next: &Plain,
        coefficients: &Plain,
    ) -> (DispatchTensor, DispatchTensor);

    /// `mean over N of (a - b)²`, `[B]`, differentiable in `a`.
    fn mean_squared_distance(&self, a: &DispatchTensor, b: &Plain) -> DispatchTensor;

    /// Sum of squares of all values, accumulated in f64 in a fixed order.
    fn sum_of_squares(&self, tensor: &Plain) -> f64;

    /// `accumulated += gradient`.
    fn accumulate(&self, accumulated: &mut Plain, gradient: &Plain);

    /// One AdamW step in f32 on a weight and its moments.
    fn adamw(
        &self,
        weight: &mut Plain,
        gradient: &Plain,
        first: &mut Plain,
        second: &mut Plain,
        step: &AdamWStep,
    );

    /// `average = decay · average + (1 - decay) · value`; `decay [1]` on the device.
    fn average(&self, average: &mut Plain, value: &Plain, decay: &Plain);
}
