//! Kernels whose operations are counted and timed.

use super::{Meter, MeteredStash};
use crate::treatment::{GROUPED_LINEAR, LINEAR};
use burn::backend::DispatchTensor;
use burn::tensor::DType;
use flow_core::exec::Stash;
use flow_core::experts::{ExpertKernels, GroupedWeights, Grouping, Routed};
use flow_core::kernels::{FeedForwardWeights, LinearWeights, NormChunks, OnFused, SdeOutputs, composed};
use flow_core::tensors::{is_tracked, shape};
use flow_core::{Activation, AdamWStep, Kernels, LaneKernels, Plain, Updated};
use std::sync::Arc;

/// Forward and backward of a linear layer: `x Wᵀ`, and a product for each of the gradients of `x` and `W` that is wanted;
/// the adapter's factors likewise.
fn linear_flops(x: &DispatchTensor, weights: &LinearWeights) -> (u64, u64) {
    let dims = shape(x);
    let rows: usize = dims[..dims.len() - 1].iter().product();
    let product = |weight: &DispatchTensor| 2 * (rows * shape(weight).iter().product::<usize>()) as u64;
    let wanted = |tensor: &DispatchTensor| u64::from(is_tracked(tensor));
    let main = product(&weights.weight);
    let (mut forward, mut backward) = (main, main * (wanted(x) + wanted(&weights.weight)));
    if let Some((down, up, _)) = &weights.adapter {
        let (a, b) = (product(down), product(up));
        forward += a + b;
        // The gradient of `A` and that of `x` both need `G B`; that of `B` needs `x Aᵀ` again.
        backward += wanted(x) * (b + a) + wanted(down) * (b + a) + wanted(up) * (a + b);
    }
    (forward, backward)
}

#[derive(Debug)]
pub(super) struct MeteredKernels {
    pub inner: Arc<dyn Kernels>,
    /// Whether operations that are made of others are computed as one.
    pub is_fused: bool,
    pub meter: Arc<Meter>,
}

impl MeteredKernels {
    fn inner_experts(&self) -> &dyn ExpertKernels {
        self.inner
            .experts()
            .expect("these are handed out only where there are such")
    }
}

impl ExpertKernels for MeteredKernels {
    /// The whole is `route`, and the choice within it, which may come from the store, `router`.
    fn route(&self, stash: &dyn Stash, logits: &DispatchTensor, top_k: usize, normalize: bool) -> Routed {
        let stash = MeteredStash {
            inner: stash,
            meter: &self.meter,
            flops: 0,
        };
        self.meter.forward("route", 0, || {
            self.inner_experts().route(&stash, logits, top_k, normalize)
        })
    }

    fn group(&self, choices: &Plain, experts: usize) -> Grouping {
        self.meter
            .forward("group", 0, || self.inner_experts().group(choices, experts))
    }

    fn permute(&self, x: &DispatchTensor, grouping: &Grouping) -> DispatchTensor {
        self.meter
            .whole("permute", || self.inner_experts().permute(x, grouping))
    }

    fn grouped_linear(
        &self,
        stash: &dyn Stash,
        x: &DispatchTensor,
        grouping: &Grouping,
        weights: &GroupedWeights,
        activation: Activation,
    ) -> DispatchTensor {
        // Each row is multiplied by the matrix of one expert.
        let of_expert: usize = shape(&weights.weight)[1..].iter().product();
        let product = 2 * (shape(x)[0] * of_expert) as u64;
        let wanted = |tensor: &DispatchTensor| u64::from(is_tracked(tensor));
        let flops = (product, product * (wanted(x) + wanted(&weights.weight)));
        self.meter.stored(GROUPED_LINEAR, flops, stash, |stash| {
            self.inner_experts()
                .grouped_linear(stash, x, grouping, weights, activation)
        })
    }

    fn combine(&self, y: &DispatchTensor, weights: &DispatchTensor, grouping: &Grouping) -> DispatchTensor {
        self.meter
            .whole("combine", || self.inner_experts().combine(y, weights, grouping))
    }
}

impl Kernels for MeteredKernels {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn activations(&self) -> DType {
        self.inner.activations()
    }

    fn is_row_independent(&self) -> bool {
        self.inner.is_row_independent()
    }

    fn products(&self) -> Vec<String> {
        self.inner.products()
    }

    fn lanes(&self) -> &dyn LaneKernels {
        self.inner.lanes()
    }

    fn experts(&self) -> Option<&dyn ExpertKernels> {
        self.inner.experts().map(|_| self as &dyn ExpertKernels)
    }

    fn layer_norm(
        &self,
        x: &DispatchTensor,
        weight: &DispatchTensor,
        bias: &DispatchTensor,
        epsilon: f32,
    ) -> DispatchTensor {
        self.meter
            .whole("layer_norm", || self.inner.layer_norm(x, weight, bias, epsilon))
    }

    fn linear(
        &self,
        stash: &dyn Stash,
        x: &DispatchTensor,
        weights: &LinearWeights,
        activation: Activation,
    ) -> DispatchTensor {
        self.meter
            .stored(LINEAR, linear_flops(x, weights), stash, |stash| {
                self.inner.linear(stash, x, weights, activation)
            })
    }

    fn activation(&self, x: &DispatchTensor, activation: Activation) -> DispatchTensor {
        self.meter
            .whole("activation", || self.inner.activation(x, activation))
    }

    fn modulated_layer_norm(
        &self,
        x: &DispatchTensor,
        modulation: &DispatchTensor,
        shift: usize,
        scale: usize,
        epsilon: f32,
    ) -> DispatchTensor {
        self.meter.whole("modulated_layer_norm", || {
            self.inner
                .modulated_layer_norm(x, modulation, shift, scale, epsilon)
        })
    }

    fn gated_residual(
        &self,
        residual: &DispatchTensor,
        branch: &DispatchTensor,
        modulation: &DispatchTensor,
        gate: usize,
    ) -> DispatchTensor {
        self.meter.whole("gated_residual", || {
            self.inner.gated_residual(residual, branch, modulation, gate)
        })
    }

    fn fused(&self, on_fused: OnFused) -> Option<Arc<dyn Kernels>> {
        let inner = self.inner.fused(on_fused)?;
        Some(Arc::new(Self {
            inner,
            is_fused: true,
            meter: self.meter.clone(),
        }))
    }

    fn recorder(&self) -> Option<Arc<dyn flow_core::Recorder>> {
        self.inner.recorder()
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
        if !self.is_fused {
            return composed::linear_gated_residual(self, stash, residual, x, weights, modulation, gate);
        }
        self.meter.whole("linear_gated_residual", || {
            self.inner
                .linear_gated_residual(stash, residual, x, weights, modulation, gate)
        })
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
        if !self.is_fused {
            return composed::modulated_linear(self, stash, x, modulation, norm, weights, activation);
        }
        self.meter.whole("modulated_linear", || {
            self.inner
                .modulated_linear(stash, x, modulation, norm, weights, activation)
        })
    }

    fn modulated_linears(
        &self,
        stash: &dyn Stash,
        x: &DispatchTensor,
        modulation: &DispatchTensor,
        norm: NormChunks,
        weights: &[LinearWeights],
    ) -> Vec<DispatchTensor> {
        if !self.is_fused {
            return composed::modulated_linears(self, stash, x, modulation, norm, weights);
        }
        self.meter.all("modulated_linears", || {
            self.inner.modulated_linears(stash, x, modulation, norm, weights)
        })
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
        if !self.is_fused {
            return composed::modulated_feed_forward(self, stash, x, modulation, norm, weights, gate);
        }
        self.meter.whole("modulated_feed_forward", || {
            self.inner
                .modulated_feed_forward(stash, x, modulation, norm, weights, gate)
        })
    }

    fn rms_norm(&self, x: &DispatchTensor, weight: Option<&DispatchTensor>, epsilon: f32) -> DispatchTensor {
        self.meter
            .whole("rms_norm", || self.inner.rms_norm(x, weight, epsilon))
    }

    fn rotary(&self, x: &DispatchTensor, cos: &Plain, sin: &Plain) -> DispatchTensor {
        self.meter.whole("rotary", || self.inner.rotary(x, cos, sin))
    }

    fn rms_norm_rotary(
        &self,
        x: &DispatchTensor,
        weight: Option<&DispatchTensor>,
        epsilon: f32,
        tables: [&Plain; 2],
    ) -> DispatchTensor {
        if !self.is_fused {
            return composed::rms_norm_rotary(self, x, weight, epsilon, tables);
        }
        self.meter.whole("rms_norm_rotary", || {
            self.inner.rms_norm_rotary(x, weight, epsilon, tables)
        })
    }

    fn embedding(&self, table: &DispatchTensor, index: &Plain) -> DispatchTensor {
        self.meter
            .whole("embedding", || self.inner.embedding(table, index))
    }

    fn sde_step(&self, x: &Plain, v: &Plain, noise: &Plain, coefficients: &Plain) -> SdeOutputs {
        self.inner.sde_step(x, v, noise, coefficients)
    }

    fn noise(&self, noise: &flow_core::Noise<'_>, device: &flow_core::device::ComputeDevice) -> Plain {
        self.inner.noise(noise, device)
    }

    fn sde_step_drawn(
        &self,
        x: &Plain,
        v: &Plain,
        noise: &flow_core::Noise<'_>,
        coefficients: &Plain,
        device: &flow_core::device::ComputeDevice,
    ) -> SdeOutputs {
        self.inner.sde_step_drawn(x, v, noise, coefficients, device)
    }

    fn sde_log_prob(
        &self,
        x: &Plain,
        v: &DispatchTensor,
        x_next: &Plain,
        coefficients: &Plain,
    ) -> (DispatchTensor, DispatchTensor) {
        self.inner.sde_log_prob(x, v, x_next, coefficients)
    }

    fn mean_squared_distance(&self, a: &DispatchTensor, b: &Plain) -> DispatchTensor {
        self.inner.mean_squared_distance(a, b)
    }

    fn sums_of_squares(&self, tensors: &[&Plain]) -> Vec<f64> {
        self.inner.sums_of_squares(tensors)
    }

    fn step_values(
        &self,
        gradients: &[&Plain],
        factors: &flow_core::StepFactors,
        device: &flow_core::device::ComputeDevice,
    ) -> flow_core::StepValues {
        self.inner.step_values(gradients, factors, device)
    }

    fn accumulate(&self, accumulated: &mut Plain, gradient: &Plain) {
        self.inner.accumulate(accumulated, gradient);
    }

    fn adamw_all(&self, weights: Vec<Updated<'_>>, step: &AdamWStep) {
        self.inner.adamw_all(weights, step);
    }

    fn split(&self, value: &Plain) -> flow_core::Halves {
        self.inner.split(value)
    }

    fn join(&self, halves: &[flow_core::Halves]) -> Vec<Plain> {
        self.inner.join(halves)
    }

    fn copy_all(&self, copies: Vec<(&mut Plain, &Plain)>) {
        self.inner.copy_all(copies);
    }

    fn average_all(&self, averages: Vec<(&mut Plain, &Plain)>, decay: &Plain) {
        self.inner.average_all(averages, decay);
    }
}
