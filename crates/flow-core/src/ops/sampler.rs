//! The operations of a sampler's steps and of losses on them.

use crate::device::ComputeDevice;
use crate::rng::Stream;
use crate::tensors::RawTensor;
use burn::backend::DispatchTensor;
use std::fmt::Debug;

/// Standard normal values `[B, N]`, f32: row `b` holds the first `N` of `stream` at sample `samples[b]` and `step`.
#[derive(Clone, Copy, Debug)]
pub struct Noise<'a> {
    /// Seed and purpose.
    pub stream: Stream,
    /// Samples, `[B]`.
    pub samples: &'a [u64],
    /// The step, below 2^24.
    pub step: u32,
    /// `N`.
    pub values: usize,
}

/// The operands of one SDE step but for its noise: `mean = a x + b v`, `x_next = mean + c noise`,
/// `log_prob = mean over N of -(x_next - mean)² · k + offset`.
#[derive(Clone, Copy, Debug)]
pub struct SdeStep<'a> {
    /// Latents, `[B, N]`, f32, outside any graph.
    pub x: &'a RawTensor,
    /// Velocities, `[B, N]`, f32; tracked only where a gradient is wanted.
    pub v: &'a DispatchTensor,
    /// `[B, 5]`, f32: `a, b, c, k, offset` of each row.
    pub coefficients: &'a RawTensor,
}

/// Results of an SDE step, all f32.
#[derive(Clone, Debug)]
pub struct SdeOutputs {
    /// The next latents as stored, `[B, N]`.
    pub x_next: RawTensor,
    /// Mean of their distribution, `[B, N]`.
    pub mean: RawTensor,
    /// Log-probability of `x_next`, the mean over its elements, `[B]`.
    pub log_prob: RawTensor,
}

/// The operations of a sampler. None of them has a gradient, so `v` of a step is outside any graph.
pub trait SamplerOps: Debug + Send + Sync {
    /// Standard normal values `[B, N]`, f32: the same bits on every device.
    fn noise(&self, noise: &Noise<'_>, device: &ComputeDevice) -> RawTensor;

    /// One SDE step with `noise [B, N]`.
    fn sde_step(&self, step: SdeStep<'_>, noise: &RawTensor) -> SdeOutputs;

    /// [`sde_step`](Self::sde_step) with this [`noise`](Self::noise), which need not be a tensor then.
    fn sde_step_drawn(&self, step: SdeStep<'_>, noise: &Noise<'_>, device: &ComputeDevice) -> SdeOutputs;
}

/// The operations of losses.
pub trait LossOps: Debug + Send + Sync {
    /// `(log_prob [B], mean [B, N])` of a step to `x_next [B, N]` that was taken before, differentiable in `v`; the
    /// arithmetic of [`SamplerOps::sde_step`], bit for bit.
    fn sde_log_prob(&self, step: SdeStep<'_>, x_next: &RawTensor) -> (DispatchTensor, DispatchTensor);

    /// `mean over N of (a - b)²` of `[B, N]`; gives `[B]`, differentiable in `a`.
    fn mean_squared_distance(&self, a: &DispatchTensor, b: &RawTensor) -> DispatchTensor;
}
