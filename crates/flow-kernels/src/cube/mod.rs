//! A CubeCL device's answer to every operation of [`Kernels`], with the kernels of `flow-kernels-cube`.

mod adapter;
#[cfg(any(feature = "cuda", all(test, feature = "lavapipe")))]
mod backward_products;
mod elementwise;
mod experts;
mod feature_cache;
mod fused;
mod latents;
mod layer_input;
mod linear;
mod low_precision;
mod norm;
mod operand;
mod optimizer;
mod products;

use burn::backend::DispatchTensor;
use burn::tensor::{DType, FloatDType};
use flow_core::cube::CubeRecorder;
use flow_core::device::ComputeDevice;
use flow_core::ops::{
    FeedForwardWeights, FusedOps, GatedResidual, KernelOps, LinearWeights, LossOps, ModelOps, ModulatedNorm,
    OnFused, OptimizerOps, RotaryTables, SamplerOps, SdeOutputs, SdeStep, Stash, WeightOps,
};
use flow_core::{
    Activation, AdamWFactors, AdamWParam, AdamWScalars, AdamWStep, Kernels, Noise, RawTensor, Recorder,
    SplitF32, Squares,
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
    /// Tells who wants to know that an operation made of others is about to be computed as one.
    fn note_fused(&self) {
        if let Some(on_fused) = &self.on_fused {
            on_fused();
        }
    }

    /// What a fused operation computes with, which is told of.
    fn fusing<'a>(&'a self, stash: &'a dyn Stash) -> fused::With<'a> {
        self.note_fused();
        fused::With {
            stash,
            element: self.element,
            products: &self.products,
        }
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

    fn recorder(&self) -> Option<Arc<dyn Recorder>> {
        Some(Arc::new(CubeRecorder))
    }

    fn fused(&self, on_fused: OnFused) -> Option<Arc<dyn Kernels>> {
        self.on_fused.is_none().then(|| {
            Arc::new(Self {
                on_fused: Some(on_fused),
                ..self.clone()
            }) as Arc<dyn Kernels>
        })
    }

    fn with_matrix_gradients(&self, dtype: FloatDType) -> Option<Arc<dyn Kernels>> {
        let stored = [Element::F32, self.element];
        let gradients = (stored.into_iter()).find(|element| operand::dtype(*element) == dtype.into())?;
        Some(Arc::new(Self {
            products: Products::storing(gradients),
            ..self.clone()
        }))
    }

    fn ops(&self) -> KernelOps<'_> {
        KernelOps {
            model: self,
            fused: self.on_fused.is_some().then_some(self as &dyn FusedOps),
            experts: Some(self),
            sampler: self,
            loss: self,
            optimizer: self,
            weights: self,
            feature_cache: &feature_cache::CubeFeatureCache,
        }
    }
}

impl ModelOps for CubeKernels {
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

    fn modulated_layer_norm(&self, norm: ModulatedNorm<'_>) -> DispatchTensor {
        norm::modulated_layer_norm(norm.x, norm.modulation, norm.chunks, self.element)
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

    fn gated_residual(&self, gated: GatedResidual<'_>, branch: &DispatchTensor) -> DispatchTensor {
        let GatedResidual {
            residual,
            modulation,
            gate,
        } = gated;
        elementwise::gated_residual(residual, branch, modulation, gate, self.element)
    }

    fn rms_norm(&self, x: &DispatchTensor, weight: Option<&DispatchTensor>, epsilon: f32) -> DispatchTensor {
        norm::rms_norm(x, weight, epsilon, None, self.element)
    }

    fn rotary(&self, x: &DispatchTensor, tables: RotaryTables<'_>) -> DispatchTensor {
        elementwise::rotary(x, tables.cos, tables.sin, self.element)
    }

    fn embedding(&self, table: &DispatchTensor, index: &RawTensor) -> DispatchTensor {
        elementwise::embedding(table, index, self.element)
    }
}

impl FusedOps for CubeKernels {
    fn linear_gated_residual(
        &self,
        stash: &dyn Stash,
        gated: GatedResidual<'_>,
        x: &[&DispatchTensor],
        weights: &LinearWeights,
    ) -> DispatchTensor {
        fused::linear_gated_residual(self.fusing(stash), gated, x, weights)
    }

    fn modulated_linear(
        &self,
        stash: &dyn Stash,
        norm: ModulatedNorm<'_>,
        weights: &LinearWeights,
        activation: Activation,
    ) -> DispatchTensor {
        fused::modulated_linear(self.fusing(stash), norm, weights, activation)
    }

    fn modulated_linears(
        &self,
        stash: &dyn Stash,
        norm: ModulatedNorm<'_>,
        weights: &[LinearWeights],
    ) -> Vec<DispatchTensor> {
        fused::modulated_linears(self.fusing(stash), norm, weights)
    }

    fn modulated_feed_forward(
        &self,
        stash: &dyn Stash,
        norm: ModulatedNorm<'_>,
        weights: &FeedForwardWeights,
        gate: usize,
    ) -> DispatchTensor {
        fused::modulated_feed_forward(self.fusing(stash), norm, weights, gate)
    }

    fn rms_norm_rotary(
        &self,
        x: &DispatchTensor,
        weight: Option<&DispatchTensor>,
        epsilon: f32,
        tables: RotaryTables<'_>,
    ) -> DispatchTensor {
        self.note_fused();
        let tables = norm::Tables::read(tables.cos, tables.sin);
        norm::rms_norm(x, weight, epsilon, Some(tables), self.element)
    }
}

impl SamplerOps for CubeKernels {
    fn noise(&self, noise: &Noise<'_>, device: &ComputeDevice) -> RawTensor {
        latents::noise(noise, device)
    }

    fn sde_step(&self, step: SdeStep<'_>, noise: &RawTensor) -> SdeOutputs {
        latents::step(step, noise)
    }

    fn sde_step_drawn(&self, step: SdeStep<'_>, noise: &Noise<'_>, device: &ComputeDevice) -> SdeOutputs {
        latents::step_drawn(step, noise, device)
    }
}

impl LossOps for CubeKernels {
    fn sde_log_prob(&self, step: SdeStep<'_>, x_next: &RawTensor) -> (DispatchTensor, DispatchTensor) {
        latents::log_prob(step, x_next)
    }

    fn mean_squared_distance(&self, a: &DispatchTensor, b: &RawTensor) -> DispatchTensor {
        latents::mean_squared_distance(a, b)
    }
}

impl OptimizerOps for CubeKernels {
    fn sums_of_squares(&self, tensors: &[&RawTensor]) -> Vec<f64> {
        optimizer::sums_of_squares(tensors)
    }

    fn adamw_scalars(
        &self,
        gradients: &[&RawTensor],
        factors: &AdamWFactors,
        device: &ComputeDevice,
    ) -> AdamWScalars {
        // Without gradients there is no tensor to say which device it is.
        optimizer::adamw_scalars(gradients, factors).unwrap_or_else(|| factors.values(0.0, device))
    }

    fn squares_piece(&self) -> usize {
        flow_kernels_cube::optimizer::SQUARES_PIECE
    }

    fn squares(&self, gradient: &RawTensor, length: usize) -> Squares {
        optimizer::squares(gradient, length)
    }

    fn adamw_scalars_of(
        &self,
        squares: &[Squares],
        factors: &AdamWFactors,
        device: &ComputeDevice,
    ) -> AdamWScalars {
        optimizer::adamw_scalars_of(squares, factors).unwrap_or_else(|| factors.values(0.0, device))
    }

    fn accumulate(&self, accumulated: &mut RawTensor, gradient: &RawTensor) {
        optimizer::accumulate(accumulated, gradient);
    }

    fn adamw_all(&self, weights: Vec<AdamWParam<'_>>, step: &AdamWStep) {
        optimizer::adamw_all(weights, step);
    }

    fn average_all(&self, averages: Vec<(&mut RawTensor, &RawTensor)>, decay: &RawTensor) {
        optimizer::average_all(averages, decay);
    }
}

impl WeightOps for CubeKernels {
    fn split(&self, value: &RawTensor) -> SplitF32 {
        optimizer::split(value)
    }

    fn join(&self, halves: &[SplitF32]) -> Vec<RawTensor> {
        optimizer::join(halves)
    }

    fn copy_all(&self, copies: Vec<(&mut RawTensor, &RawTensor)>) {
        optimizer::copy_all(copies);
    }
}
