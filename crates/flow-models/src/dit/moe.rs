//! A block whose feed-forward part is a mixture of experts, some chosen for each token and one that all share.
//!
//! Sources: DiT-MoE (Fei et al. 2024, arXiv:2407.11633) and DeepSeekMoE (Dai et al. 2024, arXiv:2401.06066), whose shared
//! expert and unnormalised weights it has.

use super::block::{Front, chunk};
use super::{DitConfig, MoeConfig};
use crate::layers::{NORM_EPSILON, Parts, RotaryTable, feed_forward};
use burn::tensor::{Int, Tensor};
use flow_core::exec::{Block, Exec, ExpertLayer, FeedForward, Linear, RegionKind, Routing};
use flow_core::{Activation, Init};
use std::sync::Arc;

/// One block. Carries `x [B, S, D]` and the sum of the load balances so far `[B]`, reads the activated conditioning
/// `[B, D]`.
#[derive(Debug)]
pub(super) struct MoeBlock {
    front: Arc<Front>,
    /// From `D` to one score per expert.
    router: Linear,
    up: ExpertLayer,
    down: ExpertLayer,
    shared: Option<FeedForward>,
    top_k: usize,
    normalize: bool,
}

fn experts(mut parts: Parts<'_>, count: usize, input: usize, output: usize) -> ExpertLayer {
    // The deviation of Glorot and Bengio's uniform values for one expert's matrix.
    let deviation = (2.0 / (input + output) as f32).sqrt();
    ExpertLayer {
        weight: parts.param("weight", [count, output, input], Init::Normal(deviation)),
        bias: parts.param("bias", [count, output], Init::Zeros),
    }
}

impl MoeBlock {
    pub fn new(
        mut parts: Parts<'_>,
        config: &DitConfig,
        moe: &MoeConfig,
        rotary: Option<RotaryTable>,
    ) -> Self {
        let hidden = config.hidden;
        let front = Front::new(&mut parts, config, rotary);
        let mut parts = parts.under("ff");
        let router = parts.linear_without_bias("router", hidden, moe.experts, Init::Normal(0.02));
        let mut routed = parts.under("experts");
        let up = experts(routed.under("up"), moe.experts, hidden, moe.inner);
        let down = experts(routed.under("down"), moe.experts, moe.inner, hidden);
        let shared = (moe.shared > 0).then(|| feed_forward(parts.under("shared"), hidden, moe.shared));
        Self {
            front,
            router,
            up,
            down,
            shared,
            top_k: moe.top_k,
            normalize: moe.normalize,
        }
    }

    fn route(self: &Arc<Self>, exec: &Exec<'_>, normed: Tensor<3>) -> (Tensor<3>, Tensor<3, Int>, Tensor<1>) {
        let logits = exec.linear(&self.router, normed);
        let Routing {
            weights,
            experts,
            balance,
        } = exec.route(logits, self.top_k, self.normalize);
        (weights, experts, balance)
    }

    fn mix(
        self: &Arc<Self>,
        exec: &Exec<'_>,
        (x, modulation): (Tensor<3>, Tensor<3>),
    ) -> (Tensor<3>, Tensor<1>) {
        let (shift, scale) = (chunk::MLP_SHIFT, chunk::MLP_SCALE);
        let normed = exec.modulated_layer_norm(x.clone(), modulation.clone(), shift, scale, NORM_EPSILON);
        let routed = exec.region(RegionKind::Router, self, normed.clone(), Self::route);
        let (weights, experts, balance) = routed;
        let layers = [&self.up, &self.down];
        let mut mixed = exec.experts(normed.clone(), weights, experts, layers, Activation::GeluTanh);
        if let Some(FeedForward { up, activation, down }) = &self.shared {
            let inner = exec.linear_activated(up, normed, *activation);
            mixed = mixed + exec.linear(down, inner);
        }
        (
            exec.gated_residual(x, mixed, modulation, chunk::MLP_GATE),
            balance,
        )
    }
}

impl Block for MoeBlock {
    type Carried = (Tensor<3>, Tensor<1>);
    type Shared = Tensor<2>;

    fn forward(
        self: &Arc<Self>,
        exec: &Exec<'_>,
        (x_bsd, balance_b): Self::Carried,
        c_bd: Tensor<2>,
    ) -> Self::Carried {
        let streams = self.front.forward(exec, x_bsd, c_bd);
        let (x, balance) = exec.region(RegionKind::Moe, self, streams, Self::mix);
        (x, balance_b + balance)
    }

    fn modulated_input(
        self: &Arc<Self>,
        exec: &Exec<'_>,
        (x_bsd, _): &Self::Carried,
        c_bd: &Tensor<2>,
    ) -> Option<Tensor<3>> {
        Some(self.front.modulated_input(exec, x_bsd, c_bd))
    }
}
