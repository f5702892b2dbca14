//! The CPU's answer to every operation of [`Kernels`].

use crate::experts::CpuExperts;
use crate::host::bf16;
use crate::host::matrix::Precision;
use crate::{
    activation, embedding, fused, gated_residual, layer_norm, linear, modulated_layer_norm, narrow,
    optimizer, rms_norm, rotary, sde,
};
use burn::backend::{DispatchTensor, TensorMetadata};
use burn::tensor::{DType, FloatDType};
use flow_core::exec::Stash;
use flow_core::kernels::{FeedForwardWeights, LinearWeights, NormChunks, OnFused, SdeOutputs, composed};
use flow_core::tensors::{cast, copy_again};
use flow_core::{Activation, AdamWStep, Beside, ExpertKernels, Halves, Kernels, Plain, Updated};
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

    /// Tells who wants to know that an operation made of others is about to be computed as one; whether it is to be.
    fn fuses(&self) -> bool {
        if let Some(on_fused) = &self.on_fused {
            on_fused();
        }
        self.on_fused.is_some()
    }
}

/// Makes `tensor` one of type `dtype`, if it is not.
fn as_type(tensor: &mut Plain, dtype: DType) {
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

    // Linear layers go through `multiply_rows`; everything else sees one row, or one value, at a time.
    fn is_row_independent(&self) -> bool {
        true
    }

    fn linear(
        &self,
        stash: &dyn Stash,
        x: &DispatchTensor,
        weights: &LinearWeights,
        activation: Activation,
    ) -> DispatchTensor {
        linear::linear(stash, x, weights, activation, self.precision)
    }

    fn experts(&self) -> Option<&dyn ExpertKernels> {
        Some(&self.experts)
    }

    fn activation(&self, x: &DispatchTensor, activation: Activation) -> DispatchTensor {
        activation::activation(x, activation)
    }

    fn modulated_layer_norm(
        &self,
        x: &DispatchTensor,
        modulation: &DispatchTensor,
        shift: usize,
        scale: usize,
        epsilon: f32,
    ) -> DispatchTensor {
        modulated_layer_norm::modulated_layer_norm(x, modulation, shift, scale, epsilon)
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

    fn gated_residual(
        &self,
        residual: &DispatchTensor,
        branch: &DispatchTensor,
        modulation: &DispatchTensor,
        gate: usize,
    ) -> DispatchTensor {
        gated_residual::gated_residual(residual, branch, modulation, gate)
    }

    fn fused(&self, on_fused: OnFused) -> Option<Arc<dyn Kernels>> {
        self.on_fused.is_none().then(|| {
            Arc::new(Self {
                on_fused: Some(on_fused),
                ..self.clone()
            }) as Arc<dyn Kernels>
        })
    }

    fn linear_gated_residual(
        &self,
        stash: &dyn Stash,
        residual: &DispatchTensor,
        x: &DispatchTensor,
        weights: &LinearWeights,
        modulation: &DispatchTensor,
        gate: usize,
    ) -> DispatchTensor {
        if self.fuses() {
            fused::linear_gated_residual(stash, residual, x, weights, modulation, gate, self.precision)
        } else {
            composed::linear_gated_residual(self, stash, residual, x, weights, modulation, gate)
        }
    }

    fn modulated_linear(
        &self,
        stash: &dyn Stash,
        x: &DispatchTensor,
        modulation: &DispatchTensor,
        norm: NormChunks,
        weights: &LinearWeights,
        activation: Activation,
    ) -> DispatchTensor {
        if self.fuses() {
            fused::modulated_linear(stash, x, modulation, norm, weights, activation, self.precision)
        } else {
            composed::modulated_linear(self, stash, x, modulation, norm, weights, activation)
        }
    }

    fn modulated_feed_forward(
        &self,
        stash: &dyn Stash,
        x: &DispatchTensor,
        modulation: &DispatchTensor,
        norm: NormChunks,
        weights: &FeedForwardWeights,
        gate: usize,
    ) -> DispatchTensor {
        if self.fuses() {
            fused::modulated_feed_forward(stash, x, modulation, norm, weights, gate, self.precision)
        } else {
            composed::modulated_feed_forward(self, stash, x, modulation, norm, weights, gate)
        }
    }

    fn rms_norm(&self, x: &DispatchTensor, weight: Option<&DispatchTensor>, epsilon: f32) -> DispatchTensor {
        rms_norm::rms_norm(x, weight, epsilon)
    }

    fn rotary(&self, x: &DispatchTensor, cos: &Plain, sin: &Plain) -> DispatchTensor {
        rotary::rotary(x, cos, sin)
    }

    fn embedding(&self, table: &DispatchTensor, index: &Plain) -> DispatchTensor {
        embedding::embedding(table, index)
    }

    fn sde_step(&self, x: &Plain, v: &Plain, noise: &Plain, coefficients: &Plain) -> SdeOutputs {
        sde::step(x, v, noise, coefficients)
    }

    fn sde_log_prob(
        &self,
        x: &Plain,
        v: &DispatchTensor,
        x_next: &Plain,
        coefficients: &Plain,
    ) -> (DispatchTensor, DispatchTensor) {
        sde::log_prob(x, v, x_next, coefficients)
    }

    fn mean_squared_distance(&self, a: &DispatchTensor, b: &Plain) -> DispatchTensor {
        sde::mean_squared_distance(a, b)
    }

    fn sums_of_squares(&self, tensors: &[&Plain]) -> Vec<f64> {
        tensors
            .iter()
            .map(|tensor| optimizer::sum_of_squares(tensor))
            .collect()
    }

    fn accumulate(&self, accumulated: &mut Plain, gradient: &Plain) {
        optimizer::accumulate(accumulated, gradient);
    }

    fn adamw_all(&self, weights: Vec<Updated<'_>>, step: &AdamWStep) {
        for of in weights {
            // Moments of another type are rounded after the step, which is f32.
            let stored = [of.first.dtype(), of.second.dtype()];
            for moment in [&mut *of.first, &mut *of.second] {
                as_type(moment, DType::F32);
            }
            let weight = of.weight;
            let mut step_in_f32 = |weight: &mut Plain| {
                optimizer::adamw(weight, of.gradient, of.first, of.second, step);
            };
            match of.beside {
                Beside::Nothing => step_in_f32(weight),
                Beside::Copy(copy) => {
                    step_in_f32(weight);
                    copy_again(copy, weight);
                }
                Beside::Lower(lower) => {
                    let mut value = narrow::join(weight, lower);
                    step_in_f32(&mut value);
                    Halves {
                        upper: *weight,
                        lower: *lower,
                    } = narrow::split(&value);
                }
                Beside::Stream(stream) => {
                    let mut value = cast(weight, FloatDType::F32);
                    step_in_f32(&mut value);
                    *weight = narrow::rounded(&value, step.rounding, stream);
                }
            }
            for (moment, dtype) in [of.first, of.second].into_iter().zip(stored) {
                as_type(moment, dtype);
            }
        }
    }

    fn split(&self, value: &Plain) -> Halves {
        narrow::split(value)
    }

    fn join(&self, halves: &[Halves]) -> Vec<Plain> {
        let join = |of: &Halves| narrow::join(&of.upper, &of.lower);
        halves.iter().map(join).collect()
    }

    fn average_all(&self, averages: Vec<(&mut Plain, &Plain)>, decay: &Plain) {
        for (average, value) in averages {
            optimizer::average(average, value, decay);
        }
    }
}
