//! A CubeCL device's answer to every operation of [`Kernels`], with the kernels of `flow-kernels-cube`.

mod elementwise;
mod experts;
mod latents;
mod linear;
mod norm;
mod operand;
mod optimizer;
mod products;

use burn::backend::DispatchTensor;
use burn::tensor::DType;
use flow_core::exec::Stash;
use flow_core::kernels::{LinearWeights, NormChunks, SdeOutputs};
use flow_core::{Activation, AdamWStep, ExpertKernels, Kernels, Plain};
use flow_kernels_cube::Element;
use products::Products;
use std::sync::Arc;

/// Kernels of a CubeCL device. What passes between operations of a model is of one type, f32 or bf16; operands of the
/// other are cast. Statistics, log-probabilities, losses, latents, gradients of weights and the optimizer's state are f32.
#[derive(Clone, Debug)]
pub struct CubeKernels {
    name: &'static str,
    element: Element,
    products: Arc<Products>,
}

impl CubeKernels {
    /// `cuda`: NVIDIA GPUs, everything in f32.
    #[cfg(feature = "cuda")]
    pub fn cuda() -> Self {
        Self {
            name: "cuda",
            element: Element::F32,
            products: Arc::default(),
        }
    }

    /// `cuda-bf16`: NVIDIA GPUs, activations and the operands of products in bf16.
    #[cfg(feature = "cuda")]
    pub fn cuda_bf16() -> Self {
        Self {
            name: "cuda-bf16",
            element: Element::Bf16,
            products: Arc::default(),
        }
    }

    /// `vulkan`: what Burn's `wgpu` backend reaches, everything in f32.
    #[cfg(feature = "lavapipe")]
    pub fn vulkan() -> Self {
        Self {
            name: "vulkan",
            element: Element::F32,
            products: Arc::default(),
        }
    }
}

impl CubeKernels {
    /// [`rotary`](Kernels::rotary) of [`rms_norm`](Kernels::rms_norm) of `x [B, S, H, D]` in one pass over memory: what
    /// queries and keys go through. What lies between is not rounded, so in bf16 it is nearer to the truth than the two.
    pub fn rms_norm_rotary(
        &self,
        x: &DispatchTensor,
        weight: Option<&DispatchTensor>,
        epsilon: f32,
        cos: &Plain,
        sin: &Plain,
    ) -> DispatchTensor {
        let tables = norm::Tables::read(cos, sin);
        norm::rms_norm(x, weight, epsilon, Some(tables), self.element)
    }
}

impl Kernels for CubeKernels {
    fn name(&self) -> &str {
        self.name
    }

    fn activations(&self) -> DType {
        operand::dtype(self.element)
    }

    fn experts(&self) -> Option<&dyn ExpertKernels> {
        Some(self)
    }

    fn linear(
        &self,
        stash: &dyn Stash,
        x: &DispatchTensor,
        weights: &LinearWeights,
        activation: Activation,
    ) -> DispatchTensor {
        linear::linear(stash, x, weights, activation, self.element, &self.products)
    }

    fn activation(&self, x: &DispatchTensor, activation: Activation) -> DispatchTensor {
        elementwise::activation(x, activation, self.element)
    }

    fn modulated_layer_norm(
        &self,
        x: &DispatchTensor,
        modulation: &DispatchTensor,
        shift: usize,
        scale: usize,
        epsilon: f32,
    ) -> DispatchTensor {
        let norm = NormChunks {
            shift,
            scale,
            epsilon,
        };
        norm::modulated_layer_norm(x, modulation, norm, self.element)
    }

    fn gated_residual(
        &self,
        residual: &DispatchTensor,
        branch: &DispatchTensor,
        modulation: &DispatchTensor,
        gate: usize,
    ) -> DispatchTensor {
        elementwise::gated_residual(residual, branch, modulation, gate, self.element)
    }

    fn rms_norm(&self, x: &DispatchTensor, weight: Option<&DispatchTensor>, epsilon: f32) -> DispatchTensor {
        norm::rms_norm(x, weight, epsilon, None, self.element)
    }

    fn rotary(&self, x: &DispatchTensor, cos: &Plain, sin: &Plain) -> DispatchTensor {
        elementwise::rotary(x, cos, sin, self.element)
    }

    fn embedding(&self, table: &DispatchTensor, index: &Plain) -> DispatchTensor {
        elementwise::embedding(table, index, self.element)
    }

    fn sde_step(&self, x: &Plain, v: &Plain, noise: &Plain, coefficients: &Plain) -> SdeOutputs {
        latents::step(x, v, noise, coefficients)
    }

    fn sde_log_prob(
        &self,
        x: &Plain,
        v: &DispatchTensor,
        x_next: &Plain,
        coefficients: &Plain,
    ) -> (DispatchTensor, DispatchTensor) {
        latents::log_prob(x, v, x_next, coefficients)
    }

    fn mean_squared_distance(&self, a: &DispatchTensor, b: &Plain) -> DispatchTensor {
        latents::mean_squared_distance(a, b)
    }

    fn sum_of_squares(&self, tensor: &Plain) -> f64 {
        optimizer::sum_of_squares(tensor)
    }

    fn accumulate(&self, accumulated: &mut Plain, gradient: &Plain) {
        optimizer::accumulate(accumulated, gradient);
    }

    fn adamw(
        &self,
        weight: &mut Plain,
        gradient: &Plain,
        first: &mut Plain,
        second: &mut Plain,
        step: &AdamWStep,
    ) {
        optimizer::adamw(weight, gradient, first, second, step);
    }

    fn average(&self, average: &mut Plain, value: &Plain, decay: &Plain) {
        optimizer::average(average, value, decay);
    }
}
