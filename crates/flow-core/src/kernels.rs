//! The operations a model and a trainer ask for besides attention.
//!
//! An implementation owns forward and backward of each operation (through [`crate::op`]), so it also decides what
//! backward keeps. `flow-kernels` implements it for the CPU and for GPUs. Legend of shapes: `B` batch, `S` tokens, `D` channels,
//! `H` heads, `K` modulation chunks, `N` values of one latent.

mod frequencies;
mod lanes;
mod noise;

pub use frequencies::{low_frequency_radius, split_frequencies};
pub use lanes::{HostLanes, LaneKernels, LaneRow, LaneSum, LaneSums, RowOf, combine};
pub use noise::Noise;

use crate::device::ComputeDevice;
use crate::exec::Stash;
use crate::experts::ExpertKernels;
use crate::halves::Halves;
use crate::recording::Recorder;
use crate::tensors::{Plain, copy_again};
use burn::backend::DispatchTensor;
use burn::tensor::{DType, FloatDType};
use std::fmt::Debug;
use std::sync::Arc;

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

impl LinearWeights {
    /// Weight, bias, and `A` and `B` of the adapter, as far as they are there: the order of an operation's inputs.
    pub fn tensors(&self) -> impl Iterator<Item = &DispatchTensor> {
        let adapter = self.adapter.iter().flat_map(|(down, up, _)| [down, up]);
        std::iter::once(&self.weight).chain(&self.bias).chain(adapter)
    }
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

/// Called once for every operation that fused kernels compute as one.
pub type OnFused = Arc<dyn Fn() + Send + Sync>;

/// Constants and values of one AdamW step (Loshchilov and Hutter 2019, arXiv:1711.05101).
#[derive(Clone, Debug)]
pub struct AdamWStep {
    /// Decay of the first and of the second moment.
    pub betas: (f32, f32),
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Decoupled weight decay, times the learning rate.
    pub weight_decay: f32,
    /// What changes from step to step, on the device: `[learning rate, 1 - beta1^t, 1 - beta2^t, gradient scale]`, and maybe
    /// more that a step does not read. A scale below 0 stands for gradients that are not finite: the step changes nothing.
    pub varying: Plain,
    /// What random rounding draws from.
    pub rounding: Rounding,
}

/// Where random rounding takes its numbers: value `i` of a weight takes the upper 16 bits of the `i`th number of
/// [`Stream::new(seed, Purpose::Rounding)`](crate::rng::Stream) at that weight's stream and this step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rounding {
    /// The seed.
    pub seed: u64,
    /// The step, below 2^24.
    pub step: u32,
}

/// What is there beside a weight.
#[derive(Debug)]
pub enum Beside<'a> {
    /// Nothing; the weight is f32.
    Nothing,
    /// Becomes the weight, which is f32, in the type that it has: what models on 16-bit devices compute with.
    Copy(&'a mut Plain),
    /// The lower half of an f32 whose upper half is the weight ([`Halves`]); changed.
    Lower(&'a mut Plain),
    /// Nothing; the weight is bf16, and its step is rounded at random by the numbers of this stream.
    Stream(u32),
}

/// A weight, and what its step of AdamW reads and writes.
#[derive(Debug)]
pub struct Updated<'a> {
    /// Changed.
    pub weight: &'a mut Plain,
    /// What is there beside it.
    pub beside: Beside<'a>,
    /// Sum of gradients.
    pub gradient: &'a Plain,
    /// First moment; changed.
    pub first: &'a mut Plain,
    /// Second moment; changed.
    pub second: &'a mut Plain,
}

/// What the factors of an optimizer step follow from, beside its gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepFactors {
    /// Learning rate.
    pub learning_rate: f64,
    /// `1 - beta1^t` and `1 - beta2^t`.
    pub corrections: [f64; 2],
    /// Bound on the norm of the mean gradient, 0 for none.
    pub max_norm: f64,
    /// How many gradients were added up to the sums that the step gets.
    pub units: usize,
}

impl StepFactors {
    /// Added to a norm before something is divided by it (`torch.nn.utils.clip_grad_norm_`).
    pub const SMALL: f64 = 1e-6;

    /// Factor by which a mean gradient of norm `norm` is clipped.
    pub fn clip(&self, norm: f64) -> f64 {
        if self.max_norm > 0.0 {
            (self.max_norm / (norm + Self::SMALL)).min(1.0)
        } else {
            1.0
        }
    }

    /// The factors themselves, if the squares of all sums of gradients add up to `squares`.
    pub fn values(&self, squares: f64, device: &ComputeDevice) -> StepValues {
        let units = self.units.max(1) as f64;
        let norm = squares.sqrt() / units;
        let scale = if norm.is_finite() {
            self.clip(norm) / units
        } else {
            -1.0
        };
        let [correction1, correction2] = self.corrections;
        let varying = [self.learning_rate, correction1, correction2, scale, norm];
        StepValues {
            varying: device.plain(varying.map(|value| value as f32).to_vec(), &[varying.len()]),
            norm: Some(norm),
        }
    }
}

/// The factors of an optimizer step.
#[derive(Clone, Debug)]
pub struct StepValues {
    /// `[learning rate, 1 - beta1^t, 1 - beta2^t, gradient scale, norm]` for [`AdamWStep::varying`].
    pub varying: Plain,
    /// Norm of the mean gradient before clipping, if the host knows it already.
    pub norm: Option<f64>,
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

/// Fused operations. Some of them are made of others and need no implementation; [`composed`] is what they must equal,
/// bit for bit, in results and gradients. Tensors may be tracked unless their type is [`Plain`]; shapes are checked by the
/// caller, [`Exec`](crate::exec::Exec).
#[allow(clippy::too_many_arguments)]
pub trait Kernels: Debug + Send + Sync {
    /// Name in logs and manifests.
    fn name(&self) -> &str;

    /// Type of the tensors that pass from operation to operation of a model.
    fn activations(&self) -> DType {
        DType::F32
    }

    /// Whether the bits of a row of the batch in every forward here depend neither on the other rows nor on their number,
    /// so that a row that was computed elsewhere, or for another row with the same operands, may be taken instead. A matrix
    /// product that chooses another order of additions for few rows is not so. If unsure, no.
    fn is_row_independent(&self) -> bool {
        false
    }

    /// The kernels that matrix products got so far, by sizes, sorted, for logs and manifests; empty where there is one for all.
    fn products(&self) -> Vec<String> {
        Vec::new()
    }

    /// The operations of a feature cache. Those of the processor, unless these kernels have others: kernels of another device
    /// must.
    fn lanes(&self) -> &dyn LaneKernels {
        &HostLanes
    }

    /// `activation(x Wᵀ + b + scale · (x Aᵀ) Bᵀ)` over the last axis of `x [.., in]`; gives `[.., out]`.
    fn linear(
        &self,
        stash: &dyn Stash,
        x: &DispatchTensor,
        weights: &LinearWeights,
        activation: Activation,
    ) -> DispatchTensor;

    /// The operations of a mixture of experts. `None` if these kernels have none; a model with experts cannot run on them.
    fn experts(&self) -> Option<&dyn ExpertKernels> {
        None
    }

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

    /// `layer_norm(x) · weight + bias`; `x [B, S, D]`, `weight` and `bias` `[D]` (Ba et al. 2016, arXiv:1607.06450). The
    /// mean and the variance (of the deviations from the mean, divided by `D`) are those of
    /// [`modulated_layer_norm`](Self::modulated_layer_norm). Backward gives gradients of all three.
    ///
    /// The default computes it of the modulated layer norm and two elementwise operations of Burn.
    fn layer_norm(
        &self,
        x: &DispatchTensor,
        weight: &DispatchTensor,
        bias: &DispatchTensor,
        epsilon: f32,
    ) -> DispatchTensor {
        composed::layer_norm(self, x, weight, bias, epsilon)
    }

    /// `residual + modulation[:, gate] · branch`; `[B, S, D]`, `modulation [B, K, D]`.
    fn gated_residual(
        &self,
        residual: &DispatchTensor,
        branch: &DispatchTensor,
        modulation: &DispatchTensor,
        gate: usize,
    ) -> DispatchTensor;

    /// The same kernels with the operations below, which are made of others, computed as one each; `on_fused` is called
    /// for each of them. `None` if there are none, or if these are they.
    fn fused(&self, _on_fused: OnFused) -> Option<Arc<dyn Kernels>> {
        None
    }

    /// What records computations of this device, if it has graphs.
    fn recorder(&self) -> Option<Arc<dyn Recorder>> {
        None
    }

    /// [`gated_residual`](Self::gated_residual) of `residual` and of the linear layer of `x [B, S, in]`.
    fn linear_gated_residual(
        &self,
        stash: &dyn Stash,
        residual: &DispatchTensor,
        x: &DispatchTensor,
        weights: &LinearWeights,
        modulation: &DispatchTensor,
        gate: usize,
    ) -> DispatchTensor {
        composed::linear_gated_residual(self, stash, residual, x, weights, modulation, gate)
    }

    /// The linear layer, with activation, of [`modulated_layer_norm`](Self::modulated_layer_norm) of `x [B, S, D]`.
    fn modulated_linear(
        &self,
        stash: &dyn Stash,
        x: &DispatchTensor,
        modulation: &DispatchTensor,
        norm: NormChunks,
        weights: &LinearWeights,
        activation: Activation,
    ) -> DispatchTensor {
        composed::modulated_linear(self, stash, x, modulation, norm, weights, activation)
    }

    /// Several linear layers, three at most, of one [`modulated_layer_norm`](Self::modulated_layer_norm) of `x [B, S, D]`:
    /// queries, keys and values.
    fn modulated_linears(
        &self,
        stash: &dyn Stash,
        x: &DispatchTensor,
        modulation: &DispatchTensor,
        norm: NormChunks,
        weights: &[LinearWeights],
    ) -> Vec<DispatchTensor> {
        composed::modulated_linears(self, stash, x, modulation, norm, weights)
    }

    /// A block's feed-forward part: [`gated_residual`](Self::gated_residual) of `x [B, S, D]` and of two linear layers
    /// of its [`modulated_layer_norm`](Self::modulated_layer_norm).
    fn modulated_feed_forward(
        &self,
        stash: &dyn Stash,
        x: &DispatchTensor,
        modulation: &DispatchTensor,
        norm: NormChunks,
        weights: &FeedForwardWeights,
        gate: usize,
    ) -> DispatchTensor {
        composed::modulated_feed_forward(self, stash, x, modulation, norm, weights, gate)
    }

    /// `x / sqrt(mean(x²) + epsilon) · weight` over the last axis (Zhang and Sennrich 2019, arXiv:1910.07467).
    fn rms_norm(&self, x: &DispatchTensor, weight: Option<&DispatchTensor>, epsilon: f32) -> DispatchTensor;

    /// Rotates pairs `(2i, 2i+1)` of the last axis of `x [B, S, H, D]` by tables `cos`, `sin` of `[S, D/2]`
    /// (Su et al. 2021, arXiv:2104.09864).
    fn rotary(&self, x: &DispatchTensor, cos: &Plain, sin: &Plain) -> DispatchTensor;

    /// [`rotary`](Self::rotary) of [`rms_norm`](Self::rms_norm), by tables `[cos, sin]` of `[S, D/2]`: of `x [B, S, H, D]` head by
    /// head, or of `x [B, S, H · D]` over all heads of a token at once; gives `[B, S, H, D]`.
    fn rms_norm_rotary(
        &self,
        x: &DispatchTensor,
        weight: Option<&DispatchTensor>,
        epsilon: f32,
        tables: [&Plain; 2],
    ) -> DispatchTensor {
        composed::rms_norm_rotary(self, x, weight, epsilon, tables)
    }

    /// Rows of `table [V, D]` at `index [B, L]` (integers); gives `[B, L, D]`. An index out of range is a panic, or
    /// on a device that would have to be waited for a row of NaN: tokens are checked when a prompt is read.
    fn embedding(&self, table: &DispatchTensor, index: &Plain) -> DispatchTensor;

    /// One SDE step. `x`, `v`, `noise` are `[B, N]`; `coefficients [B, 5]` holds per row `a, b, c, k, offset` of
    /// `mean = a x + b v`, `x_next = mean + c noise`, `log_prob = mean over N of -(x_next - mean)² · k + offset`.
    fn sde_step(&self, x: &Plain, v: &Plain, noise: &Plain, coefficients: &Plain) -> SdeOutputs;

    /// Standard normal values, [`Noise::drawn_by_host`] unless the device draws them itself: the same bits.
    fn noise(&self, noise: &Noise<'_>, device: &ComputeDevice) -> Plain {
        noise.drawn_by_host(device)
    }

    /// [`sde_step`](Self::sde_step) with this [`noise`](Self::noise), which need not be a tensor then.
    fn sde_step_drawn(
        &self,
        x: &Plain,
        v: &Plain,
        noise: &Noise<'_>,
        coefficients: &Plain,
        device: &ComputeDevice,
    ) -> SdeOutputs {
        self.sde_step(x, v, &self.noise(noise, device), coefficients)
    }

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

    /// Sum of squares of the values of each tensor, in a fixed order: in f64, or in f32 for a few thousand of them and then
    /// in f64. Asked for all at once, since a device has to be waited for.
    fn sums_of_squares(&self, tensors: &[&Plain]) -> Vec<f64>;

    /// The factors of a step with these sums of gradients. A device computes them itself, so that nobody waits for it
    /// between the gradients and the step.
    fn step_values(&self, gradients: &[&Plain], factors: &StepFactors, device: &ComputeDevice) -> StepValues {
        factors.values(self.sums_of_squares(gradients).into_iter().sum(), device)
    }

    /// `accumulated += gradient`.
    fn accumulate(&self, accumulated: &mut Plain, gradient: &Plain);

    /// One AdamW step, computed in f32, on each of `weights`. A weight's result does not depend on what else is given: devices take
    /// many in one launch.
    fn adamw_all(&self, weights: Vec<Updated<'_>>, step: &AdamWStep);

    /// An f32 tensor in two halves.
    fn split(&self, value: &Plain) -> Halves;

    /// The f32 tensors of halves. Devices make many in one launch.
    fn join(&self, halves: &[Halves]) -> Vec<Plain>;

    /// The same kernels with gradients of the matrices of linear layers stored as `dtype`; `None` if they cannot.
    fn with_matrix_gradients(&self, _dtype: FloatDType) -> Option<Arc<dyn Kernels>> {
        None
    }

    /// One AdamW step of one weight in f32. See [`adamw_all`](Self::adamw_all).
    fn adamw(
        &self,
        weight: &mut Plain,
        copy: Option<&mut Plain>,
        gradient: &Plain,
        first: &mut Plain,
        second: &mut Plain,
        step: &AdamWStep,
    ) {
        let of = Updated {
            weight,
            beside: copy.map_or(Beside::Nothing, Beside::Copy),
            gradient,
            first,
            second,
        };
        self.adamw_all(vec![of], step);
    }

    /// Makes each copy the values of the tensor beside it, in the type that the copy has. A copy that nothing else holds stays
    /// where it is on a device with recordings, which read it there.
    fn copy_all(&self, copies: Vec<(&mut Plain, &Plain)>) {
        for (copy, of) in copies {
            copy_again(copy, of);
        }
    }

    /// `average = decay · average + (1 - decay) · value` of each pair; `decay [1]` on the device.
    fn average_all(&self, averages: Vec<(&mut Plain, &Plain)>, decay: &Plain);

    /// One moving average. See [`average_all`](Self::average_all).
    fn average(&self, average: &mut Plain, value: &Plain, decay: &Plain) {
        self.average_all(vec![(average, value)], decay);
    }
}

/// The operations of [`Kernels`] that are made of others, as sequences of those: what fused kernels must equal.
pub mod composed {
    use super::{
        Activation, DispatchTensor, FeedForwardWeights, Kernels, LinearWeights, NormChunks, Plain, Stash,
    };
    use crate::tensors::{plain, shape, zeros_like};
    use burn::tensor::Tensor;

    /// See [`Kernels::layer_norm`]. The one operation here whose own implementations may round otherwise.
    pub fn layer_norm<K: Kernels + ?Sized>(
        kernels: &K,
        x: &DispatchTensor,
        weight: &DispatchTensor,
        bias: &DispatchTensor,
        epsilon: f32,
    ) -> DispatchTensor {
        let first_token = Tensor::<3>::from_dispatch(plain(x)).narrow(1, 0, 1);
        let identity = zeros_like(&first_token.into_dispatch());
        let normed = kernels.modulated_layer_norm(x, &identity, 0, 0, epsilon);
        let [weight, bias] = [weight, bias].map(|of| Tensor::<1>::from_dispatch(of.clone()).unsqueeze::<3>());
        (Tensor::<3>::from_dispatch(normed) * weight + bias).into_dispatch()
    }

    /// See [`Kernels::rms_norm_rotary`].
    pub fn rms_norm_rotary<K: Kernels + ?Sized>(
        kernels: &K,
        x: &DispatchTensor,
        weight: Option<&DispatchTensor>,
        epsilon: f32,
        [cos, sin]: [&Plain; 2],
    ) -> DispatchTensor {
        let normed = kernels.rms_norm(x, weight, epsilon);
        let normed = match *shape(&normed).as_slice() {
            [batch, tokens, width] => {
                let head_dim = 2 * shape(cos)[1];
                let heads = [batch, tokens, width / head_dim, head_dim];
                Tensor::<3>::from_dispatch(normed).reshape(heads).into_dispatch()
            }
            _ => normed,
        };
        kernels.rotary(&normed, cos, sin)
    }

    /// See [`Kernels::linear_gated_residual`].
    pub fn linear_gated_residual<K: Kernels + ?Sized>(
        kernels: &K,
        stash: &dyn Stash,
        residual: &DispatchTensor,
        x: &DispatchTensor,
        weights: &LinearWeights,
        modulation: &DispatchTensor,
        gate: usize,
    ) -> DispatchTensor {
        let branch = kernels.linear(stash, x, weights, Activation::None);
        kernels.gated_residual(residual, &branch, modulation, gate)
    }

    /// See [`Kernels::modulated_linear`].
    pub fn modulated_linear<K: Kernels + ?Sized>(
        kernels: &K,
        stash: &dyn Stash,
        x: &DispatchTensor,
        modulation: &DispatchTensor,
        norm: NormChunks,
        weights: &LinearWeights,
        activation: Activation,
    ) -> DispatchTensor {
        let normed = kernels.modulated_layer_norm(x, modulation, norm.shift, norm.scale, norm.epsilon);
        kernels.linear(stash, &normed, weights, activation)
    }

    /// See [`Kernels::modulated_linears`].
    pub fn modulated_linears<K: Kernels + ?Sized>(
        kernels: &K,
        stash: &dyn Stash,
        x: &DispatchTensor,
        modulation: &DispatchTensor,
        norm: NormChunks,
        weights: &[LinearWeights],
    ) -> Vec<DispatchTensor> {
        let normed = kernels.modulated_layer_norm(x, modulation, norm.shift, norm.scale, norm.epsilon);
        let linear = |weights| kernels.linear(stash, &normed, weights, Activation::None);
        weights.iter().map(linear).collect()
    }

    /// See [`Kernels::modulated_feed_forward`].
    pub fn modulated_feed_forward<K: Kernels + ?Sized>(
        kernels: &K,
        stash: &dyn Stash,
        x: &DispatchTensor,
        modulation: &DispatchTensor,
        norm: NormChunks,
        weights: &FeedForwardWeights,
        gate: usize,
    ) -> DispatchTensor {
        let inner = modulated_linear(
            kernels,
            stash,
            x,
            modulation,
            norm,
            &weights.up,
            weights.activation,
        );
        linear_gated_residual(kernels, stash, x, &inner, &weights.down, modulation, gate)
    }
}
