//! Kernels whose operations are counted and timed.

use super::{OpProfiler, ProfiledStash};
use crate::block_policy::{GROUPED_LINEAR, LINEAR};
use burn::backend::DispatchTensor;
use flow_core::ops::{
    ExpertOps, FeedForwardWeights, FusedOps, GatedResidual, GroupedWeights, Grouping, KernelOps,
    LayeredKernels, LinearWeights, ModelOps, ModulatedNorm, RotaryTables, Routed, Stash,
};
use flow_core::tensors::{is_tracked, shape};
use flow_core::{Activation, Kernels, RawTensor};
use std::sync::Arc;

/// Forward and backward of a linear layer: `x Wᵀ`, and a product for each of the gradients of `x` and `W` that is wanted;
/// the adapter's factors likewise.
fn linear_flops(x: &DispatchTensor, weights: &LinearWeights) -> (u64, u64) {
    let dims = shape(x);
    let rows: usize = dims[..dims.len() - 1].iter().product();
    let product = |weight: &DispatchTensor| 2 * (rows * shape(weight).iter().product::<usize>()) as u64;
    let wanted = |tensor: &DispatchTensor| u64::from(is_tracked(tensor));
    let main = 2 * (rows * weights.channels().iter().product::<usize>()) as u64;
    let (mut forward, mut backward) = (main, main * (wanted(x) + wanted(&weights.weight)));
    if let Some((down, up, _)) = &weights.adapter {
        let (a, b) = (product(down), product(up));
        forward += a + b;
        // The gradient of `A` and that of `x` both need `G B`; that of `B` needs `x Aᵀ` again.
        backward += wanted(x) * (b + a) + wanted(down) * (b + a) + wanted(up) * (a + b);
    }
    (forward, backward)
}

/// Meters what a model asks for; a sampler, a loss, an optimizer and a feature cache get the kernels within.
#[derive(Debug)]
pub(super) struct ProfiledKernels {
    pub inner: Arc<dyn Kernels>,
    pub profiler: Arc<OpProfiler>,
}

impl ProfiledKernels {
    fn model(&self) -> &dyn ModelOps {
        self.inner.ops().model
    }

    fn fused(&self) -> &dyn FusedOps {
        let fused = self.inner.ops().fused;
        fused.expect("these are handed out only where there are such")
    }

    fn experts(&self) -> &dyn ExpertOps {
        let experts = self.inner.ops().experts;
        experts.expect("these are handed out only where there are such")
    }
}

impl LayeredKernels for ProfiledKernels {
    fn inner(&self) -> &dyn Kernels {
        &*self.inner
    }

    fn around(&self, inner: Arc<dyn Kernels>) -> Arc<dyn Kernels> {
        let profiler = self.profiler.clone();
        Arc::new(Self { inner, profiler })
    }

    fn ops(&self) -> KernelOps<'_> {
        let inner = self.inner.ops();
        KernelOps {
            model: self,
            fused: inner.fused.map(|_| self as &dyn FusedOps),
            experts: inner.experts.map(|_| self as &dyn ExpertOps),
            ..inner
        }
    }
}

impl ExpertOps for ProfiledKernels {
    /// The whole is `route`, and the choice within it, which may come from the store, `router`.
    fn route(&self, stash: &dyn Stash, logits: &DispatchTensor, top_k: usize, normalize: bool) -> Routed {
        let stash = ProfiledStash {
            inner: stash,
            profiler: &self.profiler,
            flops: 0,
        };
        self.profiler.forward("route", 0, || {
            self.experts().route(&stash, logits, top_k, normalize)
        })
    }

    fn group(&self, choices: &RawTensor, experts: usize) -> Grouping {
        self.profiler
            .forward("group", 0, || self.experts().group(choices, experts))
    }

    fn permute(&self, x: &DispatchTensor, grouping: &Grouping) -> DispatchTensor {
        self.profiler
            .whole("permute", || self.experts().permute(x, grouping))
    }

    fn grouped_linear(
        &self,
        stash: &dyn Stash,
        x: &DispatchTensor,
        grouping: &Grouping,
        weights: &GroupedWeights,
    ) -> DispatchTensor {
        // Each row is multiplied by the matrix of one expert.
        let of_expert: usize = shape(&weights.weight)[1..].iter().product();
        let product = 2 * (shape(x)[0] * of_expert) as u64;
        let wanted = |tensor: &DispatchTensor| u64::from(is_tracked(tensor));
        let flops = (product, product * (wanted(x) + wanted(&weights.weight)));
        self.profiler.stored(GROUPED_LINEAR, flops, stash, |stash| {
            self.experts().grouped_linear(stash, x, grouping, weights)
        })
    }

    fn combine(&self, y: &DispatchTensor, weights: &DispatchTensor, grouping: &Grouping) -> DispatchTensor {
        self.profiler
            .whole("combine", || self.experts().combine(y, weights, grouping))
    }
}

impl ModelOps for ProfiledKernels {
    fn linear(
        &self,
        stash: &dyn Stash,
        x: &DispatchTensor,
        weights: &LinearWeights,
        activation: Activation,
    ) -> DispatchTensor {
        self.profiler
            .stored(LINEAR, linear_flops(x, weights), stash, |stash| {
                self.model().linear(stash, x, weights, activation)
            })
    }

    fn activation(&self, x: &DispatchTensor, activation: Activation) -> DispatchTensor {
        self.profiler
            .whole("activation", || self.model().activation(x, activation))
    }

    fn modulated_layer_norm(&self, norm: ModulatedNorm<'_>) -> DispatchTensor {
        self.profiler
            .whole("modulated_layer_norm", || self.model().modulated_layer_norm(norm))
    }

    fn layer_norm(
        &self,
        x: &DispatchTensor,
        weight: &DispatchTensor,
        bias: &DispatchTensor,
        epsilon: f32,
    ) -> DispatchTensor {
        self.profiler
            .whole("layer_norm", || self.model().layer_norm(x, weight, bias, epsilon))
    }

    fn gated_residual(&self, gated: GatedResidual<'_>, branch: &DispatchTensor) -> DispatchTensor {
        self.profiler
            .whole("gated_residual", || self.model().gated_residual(gated, branch))
    }

    fn rms_norm(&self, x: &DispatchTensor, weight: Option<&DispatchTensor>, epsilon: f32) -> DispatchTensor {
        self.profiler
            .whole("rms_norm", || self.model().rms_norm(x, weight, epsilon))
    }

    fn rotary(&self, x: &DispatchTensor, tables: RotaryTables<'_>) -> DispatchTensor {
        self.profiler.whole("rotary", || self.model().rotary(x, tables))
    }

    fn embedding(&self, table: &DispatchTensor, index: &RawTensor) -> DispatchTensor {
        self.profiler
            .whole("embedding", || self.model().embedding(table, index))
    }
}

impl FusedOps for ProfiledKernels {
    fn linear_gated_residual(
        &self,
        stash: &dyn Stash,
        gated: GatedResidual<'_>,
        x: &[&DispatchTensor],
        weights: &LinearWeights,
    ) -> DispatchTensor {
        self.profiler.whole("linear_gated_residual", || {
            self.fused().linear_gated_residual(stash, gated, x, weights)
        })
    }

    fn modulated_linear(
        &self,
        stash: &dyn Stash,
        norm: ModulatedNorm<'_>,
        weights: &LinearWeights,
        activation: Activation,
    ) -> DispatchTensor {
        self.profiler.whole("modulated_linear", || {
            self.fused().modulated_linear(stash, norm, weights, activation)
        })
    }

    fn modulated_linears(
        &self,
        stash: &dyn Stash,
        norm: ModulatedNorm<'_>,
        weights: &[LinearWeights],
    ) -> Vec<DispatchTensor> {
        self.profiler.all("modulated_linears", || {
            self.fused().modulated_linears(stash, norm, weights)
        })
    }

    fn modulated_feed_forward(
        &self,
        stash: &dyn Stash,
        norm: ModulatedNorm<'_>,
        weights: &FeedForwardWeights,
        gate: usize,
    ) -> DispatchTensor {
        self.profiler.whole("modulated_feed_forward", || {
            self.fused().modulated_feed_forward(stash, norm, weights, gate)
        })
    }

    fn rms_norm_rotary(
        &self,
        x: &DispatchTensor,
        weight: Option<&DispatchTensor>,
        epsilon: f32,
        tables: RotaryTables<'_>,
    ) -> DispatchTensor {
        self.profiler.whole("rms_norm_rotary", || {
            self.fused().rms_norm_rotary(x, weight, epsilon, tables)
        })
    }
}
