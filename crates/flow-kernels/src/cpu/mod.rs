//! The CPU's answer to every operation of [`Kernels`].

mod activation;
mod embedding;
mod experts;
mod feature_cache;
pub(crate) mod frequencies;
mod fused;
mod gated_residual;
mod layer_norm;
pub(crate) mod linear;
mod low_precision;
mod modulated_layer_norm;
pub(crate) mod noise;
mod optimizer;
mod rms_norm;
mod rotary;
mod sde;
mod split_f32;

pub use feature_cache::{CpuFeatureCache, combine};
pub use frequencies::{low_frequency_radius, split_frequencies};
pub use noise::draw_noise;

use crate::host::bf16;
use crate::host::matrix::Precision;
use burn::backend::{DispatchTensor, TensorMetadata};
use burn::tensor::{DType, FloatDType};
use experts::CpuExperts;
use flow_core::device::ComputeDevice;
use flow_core::ops::{
    Composed, FeedForwardWeights, FusedOps, GatedResidual, KernelOps, LinearWeights, LossOps, ModelOps,
    ModulatedNorm, OnFused, OptimizerOps, RotaryTables, SamplerOps, SdeOutputs, SdeStep, Stash, WeightOps,
};
use flow_core::tensors::{cast, copy_again};
use flow_core::{
    Activation, AdamWFactors, AdamWParam, AdamWScalars, AdamWStep, Kernels, MasterWeight, Noise, RawTensor,
    Recorder, SplitF32, Squares,
};
use std::fmt;
use std::sync::Arc;

/// Kernels on the host. Results do not depend on the number of threads.
#[derive(Clone, Default)]
pub struct CpuKernels {
    precision: Precision,
    experts: CpuExperts,
    /// Whether operations made of others are computed as one, and whom to tell of each.
    on_fused: Option<OnFused>,
}

impl fmt::Debug for CpuKernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The processor has no dot products of bf16 pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this processor has no dot products of bf16 pairs (AVX512_BF16 on x86-64)")]
pub struct NoBf16;

impl CpuKernels {
    /// Linear layers round the operands of their matrix products to bf16 and add up in f32; everything else is f32. This
    /// is what PyTorch's `autocast` does to them, except that results stay f32.
    ///
    /// # Errors
    /// If the processor lacks the instructions. Nothing is emulated.
    pub fn bf16() -> Result<Self, NoBf16> {
        let precision = Precision::Bf16;
        let kernels = Self {
            precision,
            experts: CpuExperts { precision },
            on_fused: None,
        };
        bf16::is_supported().then_some(kernels).ok_or(NoBf16)
    }

    /// Tells who wants to know that an operation made of others is about to be computed as one.
    fn note_fused(&self) {
        if let Some(on_fused) = &self.on_fused {
            on_fused();
        }
    }
}

/// Makes `tensor` one of type `dtype`, if it is not.
fn as_type(tensor: &mut RawTensor, dtype: DType) {
    if tensor.dtype() != dtype {
        *tensor = cast(tensor, dtype.into());
    }
}

impl Kernels for CpuKernels {
    fn name(&self) -> &str {
        match (self.precision, &self.on_fused) {
            (Precision::F32, None) => "cpu",
            (Precision::F32, Some(_)) => "cpu-fused",
            (Precision::Bf16, None) => "cpu-bf16",
            (Precision::Bf16, Some(_)) => "cpu-bf16-fused",
        }
    }

    fn activations(&self) -> DType {
        DType::F32
    }

    // Linear layers go through `multiply_rows`; everything else sees one row, or one value, at a time.
    fn is_row_independent(&self) -> bool {
        true
    }

    fn products(&self) -> Vec<String> {
        Vec::new()
    }

    fn recorder(&self) -> Option<Arc<dyn Recorder>> {
        None
    }

    fn fused(&self, on_fused: OnFused) -> Option<Arc<dyn Kernels>> {
        self.on_fused.is_none().then(|| {
            Arc::new(Self {
                on_fused: Some(on_fused),
                ..self.clone()
            }) as Arc<dyn Kernels>
        })
    }

    fn with_matrix_gradients(&self, _: FloatDType) -> Option<Arc<dyn Kernels>> {
        None
    }

    fn ops(&self) -> KernelOps<'_> {
        KernelOps {
            model: self,
            fused: self.on_fused.is_some().then_some(self as &dyn FusedOps),
            experts: Some(&self.experts),
            sampler: self,
            loss: self,
            optimizer: self,
            weights: self,
            feature_cache: &CpuFeatureCache,
        }
    }
}

impl ModelOps for CpuKernels {
    fn linear(
        &self,
        stash: &dyn Stash,
        x: &DispatchTensor,
        weights: &LinearWeights,
        activation: Activation,
    ) -> DispatchTensor {
        linear::linear(stash, x, weights, activation, self.precision)
    }

    fn activation(&self, x: &DispatchTensor, activation: Activation) -> DispatchTensor {
        activation::activation(x, activation)
    }

    fn modulated_layer_norm(&self, norm: ModulatedNorm<'_>) -> DispatchTensor {
        modulated_layer_norm::modulated_layer_norm(norm)
    }

    fn layer_norm(
        &self,
        x: &DispatchTensor,
        weight: &DispatchTensor,
        bias: &DispatchTensor,
        epsilon: f32,
    ) -> DispatchTensor {
        layer_norm::layer_norm(x, weight, bias, epsilon)
    }

    fn gated_residual(&self, gated: GatedResidual<'_>, branch: &DispatchTensor) -> DispatchTensor {
        gated_residual::gated_residual(gated.residual, branch, gated.modulation, gated.gate)
    }

    fn rms_norm(&self, x: &DispatchTensor, weight: Option<&DispatchTensor>, epsilon: f32) -> DispatchTensor {
        rms_norm::rms_norm(x, weight, epsilon)
    }

    fn rotary(&self, x: &DispatchTensor, tables: RotaryTables<'_>) -> DispatchTensor {
        rotary::rotary(x, tables.cos, tables.sin)
    }

    fn embedding(&self, table: &DispatchTensor, index: &RawTensor) -> DispatchTensor {
        embedding::embedding(table, index)
    }
}

impl FusedOps for CpuKernels {
    fn linear_gated_residual(
        &self,
        stash: &dyn Stash,
        gated: GatedResidual<'_>,
        x: &[&DispatchTensor],
        weights: &LinearWeights,
    ) -> DispatchTensor {
        self.note_fused();
        fused::linear_gated_residual(stash, gated, x, weights, self.precision)
    }

    fn modulated_linear(
        &self,
        stash: &dyn Stash,
        norm: ModulatedNorm<'_>,
        weights: &LinearWeights,
        activation: Activation,
    ) -> DispatchTensor {
        self.note_fused();
        fused::modulated_linear(stash, norm, weights, activation, self.precision)
    }

    // Each layer would normalise the rows anew.
    fn modulated_linears(
        &self,
        stash: &dyn Stash,
        norm: ModulatedNorm<'_>,
        weights: &[LinearWeights],
    ) -> Vec<DispatchTensor> {
        Composed(self).modulated_linears(stash, norm, weights)
    }

    fn modulated_feed_forward(
        &self,
        stash: &dyn Stash,
        norm: ModulatedNorm<'_>,
        weights: &FeedForwardWeights,
        gate: usize,
    ) -> DispatchTensor {
        self.note_fused();
        fused::modulated_feed_forward(stash, norm, weights, gate, self.precision)
    }

    fn rms_norm_rotary(
        &self,
        x: &DispatchTensor,
        weight: Option<&DispatchTensor>,
        epsilon: f32,
        tables: RotaryTables<'_>,
    ) -> DispatchTensor {
        Composed(self).rms_norm_rotary(x, weight, epsilon, tables)
    }
}

impl SamplerOps for CpuKernels {
    fn noise(&self, noise: &Noise<'_>, device: &ComputeDevice) -> RawTensor {
        noise::draw_noise(noise, device)
    }

    fn sde_step(&self, step: SdeStep<'_>, noise: &RawTensor) -> SdeOutputs {
        sde::step(step, noise)
    }

    fn sde_step_drawn(&self, step: SdeStep<'_>, noise: &Noise<'_>, device: &ComputeDevice) -> SdeOutputs {
        self.sde_step(step, &noise::draw_noise(noise, device))
    }
}

impl LossOps for CpuKernels {
    fn sde_log_prob(&self, step: SdeStep<'_>, x_next: &RawTensor) -> (DispatchTensor, DispatchTensor) {
        sde::log_prob(step, x_next)
    }

    fn mean_squared_distance(&self, a: &DispatchTensor, b: &RawTensor) -> DispatchTensor {
        sde::mean_squared_distance(a, b)
    }
}

impl OptimizerOps for CpuKernels {
    fn sums_of_squares(&self, tensors: &[&RawTensor]) -> Vec<f64> {
        tensors
            .iter()
            .map(|tensor| optimizer::sum_of_squares(tensor))
            .collect()
    }

    fn adamw_scalars(
        &self,
        gradients: &[&RawTensor],
        factors: &AdamWFactors,
        device: &ComputeDevice,
    ) -> AdamWScalars {
        factors.values(self.sums_of_squares(gradients).into_iter().sum(), device)
    }

    fn squares_piece(&self) -> usize {
        crate::host::threads::PIECE
    }

    fn squares(&self, gradient: &RawTensor, _: usize) -> Squares {
        Squares::Host(optimizer::squares_of_pieces(gradient))
    }

    fn adamw_scalars_of(
        &self,
        squares: &[Squares],
        factors: &AdamWFactors,
        device: &ComputeDevice,
    ) -> AdamWScalars {
        factors.values(squares.iter().map(Squares::total).sum(), device)
    }

    fn accumulate(&self, accumulated: &mut RawTensor, gradient: &RawTensor) {
        optimizer::accumulate(accumulated, gradient);
    }

    fn adamw_all(&self, weights: Vec<AdamWParam<'_>>, step: &AdamWStep) {
        for of in weights {
            // Moments of another type are rounded after the step, which is f32.
            let stored = [of.first.dtype(), of.second.dtype()];
            for moment in [&mut *of.first, &mut *of.second] {
                as_type(moment, DType::F32);
            }
            let weight = of.weight;
            let mut step_in_f32 = |weight: &mut RawTensor| {
                optimizer::adamw(weight, of.gradient, of.first, of.second, step);
            };
            match of.master {
                MasterWeight::F32 => step_in_f32(weight),
                MasterWeight::F32WithCopy(copy) => {
                    step_in_f32(weight);
                    copy_again(copy, weight);
                }
                MasterWeight::SplitF32(lower) => {
                    let mut value = split_f32::join(weight, lower);
                    step_in_f32(&mut value);
                    SplitF32 {
                        upper: *weight,
                        lower: *lower,
                    } = split_f32::split(&value);
                }
                MasterWeight::StochasticRounding { stream, first } => {
                    let mut value = cast(weight, FloatDType::F32);
                    step_in_f32(&mut value);
                    *weight = split_f32::rounded(&value, step.rounding, (stream, first));
                }
            }
            for (moment, dtype) in [of.first, of.second].into_iter().zip(stored) {
                as_type(moment, dtype);
            }
        }
    }

    fn average_all(&self, averages: Vec<(&mut RawTensor, &RawTensor)>, decay: &RawTensor) {
        for (average, value) in averages {
            optimizer::average(average, value, decay);
        }
    }
}

impl WeightOps for CpuKernels {
    fn split(&self, value: &RawTensor) -> SplitF32 {
        split_f32::split(value)
    }

    fn join(&self, halves: &[SplitF32]) -> Vec<RawTensor> {
        let join = |of: &SplitF32| split_f32::join(&of.upper, &of.lower);
        halves.iter().map(join).collect()
    }

    fn copy_all(&self, copies: Vec<(&mut RawTensor, &RawTensor)>) {
        for (copy, of) in copies {
            copy_again(copy, of);
        }
    }
}
