//! A CubeCL device's answer to every operation of [`Kernels`], with the kernels of `flow-kernels-cube`.

mod adapter;
mod elementwise;
mod experts;
#[cfg(any(feature = "cuda", all(test, feature = "lavapipe")))]
mod foreseen;
mod fused;
mod lanes;
mod latents;
mod linear;
mod norm;
mod operand;
mod optimizer;
mod products;

use burn::backend::DispatchTensor;
use burn::tensor::{DType, FloatDType};
use flow_core::cube::CubeRecorder;
use flow_core::device::ComputeDevice;
use flow_core::exec::Stash;
use flow_core::kernels::{FeedForwardWeights, LinearWeights, NormChunks, OnFused, SdeOutputs, composed};
use flow_core::{
    Activation, AdamWStep, ExpertKernels, Halves, Kernels, LaneKernels, Noise, Plain, Recorder, StepFactors,
    StepValues, Updated,
};
use flow_kernels_cube::Element;
use products::Products;
use std::fmt;
use std::sync::Arc;

/// Kernels of a CubeCL device. What passes between operations of a model is of one type, f32 or bf16; operands of the
/// other are cast. Statistics, log-probabilities, losses, latents, gradients of weights (those of matrices unless asked for
/// otherwise) and the optimizer's state are f32.
#[derive(Clone)]
pub struct CubeKernels {
    /// Without fused operations, and with them.
    names: [&'static str; 2],
    element: Element,
    products: Arc<Products>,
    /// Whether operations made of others are computed as one, and whom to tell of each.
    on_fused: Option<OnFused>,
}

impl fmt::Debug for CubeKernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl CubeKernels {
    /// `cuda`: NVIDIA GPUs, everything in f32.
    #[cfg(feature = "cuda")]
    pub fn cuda() -> Self {
        Self {
            names: ["cuda", "cuda-fused"],
            element: Element::F32,
            products: Products::storing(Element::F32),
            on_fused: None,
        }
    }

    /// `cuda-bf16`: NVIDIA GPUs, activations and the operands of products in bf16.
    #[cfg(feature = "cuda")]
    pub fn cuda_bf16() -> Self {
        Self {
            names: ["cuda-bf16", "cuda-bf16-fused"],
            element: Element::Bf16,
            products: Products::storing(Element::F32),
            on_fused: None,
        }
    }

    /// `vulkan`: what Burn's `wgpu` backend reaches, everything in f32.
    #[cfg(feature = "lavapipe")]
    pub fn vulkan() -> Self {
        Self {
            names: ["vulkan", "vulkan-fused"],
            element: Element::F32,
            products: Products::storing(Element::F32),
            on_fused: None,
        }
    }
}

impl CubeKernels {
    /// Tells who wants to know that an operation made of others is about to be computed as one; with what it is, if so.
    fn fuses<'a>(&'a self, stash: &'a dyn Stash) -> Option<fused::With<'a>> {
        let on_fused = self.on_fused.as_ref()?;
        on_fused();
        Some(fused::With {
            stash,
            element: self.element,
            products: &self.products,
        })
    }
}

impl Kernels for CubeKernels {
    fn name(&self) -> &str {
        self.names[usize::from(self.on_fused.is_some())]
    }

    fn activations(&self) -> DType {
        operand::dtype(self.element)
    }

    // The kernel of a forward product is chosen by columns, type and device, and adds up a row's summands in one order
    // whatever the number of rows (`flow-matmul-cube`, "What bits depend on"); so do norms and steps, by the length of a row.
    fn is_row_independent(&self) -> bool {
        true
    }

    fn products(&self) -> Vec<String> {
        self.products.names()
    }

    fn lanes(&self) -> &dyn LaneKernels {
        &lanes::CubeLanes
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

    fn fused(&self, on_fused: OnFused) -> Option<Arc<dyn Kernels>> {
        self.on_fused.is_none().then(|| {
            Arc::new(Self {
                on_fused: Some(on_fused),
                ..self.clone()
            }) as Arc<dyn Kernels>
        })
    }

    fn layer_norm(
        &self,
        x: &DispatchTensor,
        weight: &DispatchTensor,
        bias: &DispatchTensor,
        epsilon: f32,
    ) -> DispatchTensor {
        norm::layer_norm(x, weight, bias, epsilon, self.element)
    }

    fn recorder(&self) -> Option<Arc<dyn Recorder>> {
        Some(Arc::new(CubeRecorder))
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
        match self.fuses(stash) {
            Some(with) => fused::linear_gated_residual(with, residual, x, weights, modulation, gate),
            None => composed::linear_gated_residual(self, stash, residual, x, weights, modulation, gate),
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
        match self.fuses(stash) {
            Some(with) => fused::modulated_linear(with, x, modulation, norm, weights, activation),
            None => composed::modulated_linear(self, stash, x, modulation, norm, weights, activation),
        }
    }

    fn modulated_linears(
        &self,
        stash: &dyn Stash,
        x: &DispatchTensor,
        modulation: &DispatchTensor,
        norm: NormChunks,
        weights: &[LinearWeights],
    ) -> Vec<DispatchTensor> {
        match self.fuses(stash) {
            Some(with) => fused::modulated_linears(with, x, modulation, norm, weights),
            None => composed::modulated_linears(self, stash, x, modulation, norm, weights),
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
        match self.fuses(stash) {
            Some(with) => fused::modulated_feed_forward(with, x, modulation, norm, weights, gate),
            None => composed::modulated_feed_forward(self, stash, x, modulation, norm, weights, gate),
        }
    }

    fn rms_norm(&self, x: &DispatchTensor, weight: Option<&DispatchTensor>, epsilon: f32) -> DispatchTensor {
        norm::rms_norm(x, weight, epsilon, None, self.element)
    }

    fn rotary(&self, x: &DispatchTensor, cos: &Plain, sin: &Plain) -> DispatchTensor {
        elementwise::rotary(x, cos, sin, self.element)
    }

    fn rms_norm_rotary(
        &self,
        x: &DispatchTensor,
        weight: Option<&DispatchTensor>,
        epsilon: f32,
        [cos, sin]: [&Plain; 2],
    ) -> DispatchTensor {
        let Some(on_fused) = &self.on_fused else {
            return composed::rms_norm_rotary(self, x, weight, epsilon, [cos, sin]);
        };
        on_fused();
        let tables = norm::Tables::read(cos, sin);
        norm::rms_norm(x, weight, epsilon, Some(tables), self.element)
    }

    fn embedding(&self, table: &DispatchTensor, index: &Plain) -> DispatchTensor {
        elementwise::embedding(table, index, self.element)
    }

    fn sde_step(&self, x: &Plain, v: &Plain, noise: &Plain, coefficients: &Plain) -> SdeOutputs {
        latents::step(x, v, noise, coefficients)
    }

    fn noise(&self, noise: &Noise<'_>, device: &ComputeDevice) -> Plain {
        latents::noise(noise, device)
    }

    fn sde_step_drawn(
        &self,
        x: &Plain,
        v: &Plain,
        noise: &Noise<'_>,
        coefficients: &Plain,
        device: &ComputeDevice,
    ) -> SdeOutputs {
        latents::step_drawn(x, v, noise, coefficients, device)
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

    fn sums_of_squares(&self, tensors: &[&Plain]) -> Vec<f64> {
        optimizer::sums_of_squares(tensors)
    }

    fn step_values(&self, gradients: &[&Plain], factors: &StepFactors, device: &ComputeDevice) -> StepValues {
        // Without gradients there is no tensor to say which device it is.
        optimizer::step_values(gradients, factors).unwrap_or_else(|| factors.values(0.0, device))
    }

    fn accumulate(&self, accumulated: &mut Plain, gradient: &Plain) {
        optimizer::accumulate(accumulated, gradient);
    }

    fn adamw_all(&self, weights: Vec<Updated<'_>>, step: &AdamWStep) {
        optimizer::adamw_all(weights, step);
    }

    fn split(&self, value: &Plain) -> Halves {
        optimizer::split(value)
    }

    fn join(&self, halves: &[Halves]) -> Vec<Plain> {
        optimizer::join(halves)
    }

    fn with_matrix_gradients(&self, dtype: FloatDType) -> Option<Arc<dyn Kernels>> {
        let stored = [Element::F32, self.element];
        let gradients = (stored.into_iter()).find(|element| operand::dtype(*element) == dtype.into())?;
        Some(Arc::new(Self {
            products: Products::storing(gradients),
            ..self.clone()
        }))
    }

    fn copy_all(&self, copies: Vec<(&mut Plain, &Plain)>) {
        optimizer::copy_all(copies);
    }

    fn average_all(&self, averages: Vec<(&mut Plain, &Plain)>, decay: &Plain) {
        optimizer::average_all(averages, decay);
    }
}
