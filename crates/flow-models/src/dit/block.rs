//! A transformer block with adaLN-zero.

use super::DitConfig;
pub(super) use crate::layers::adaln_zero as chunk;
use crate::layers::{NORM_EPSILON, Parts, RotaryTable, SelfAttention, feed_forward, modulation, norm};
use burn::tensor::Tensor;
use flow_core::exec::{AttentionKind, Block, Exec, FeedForward, Linear, RegionKind};
use flow_core::{Init, Rows};
use std::sync::Arc;

/// What a block has before its feed-forward part, whatever that is.
#[derive(Debug)]
pub(super) struct Front {
    modulation: Linear,
    attention: SelfAttention,
}

impl Front {
    pub fn new(parts: &mut Parts<'_>, config: &DitConfig, rotary: Option<RotaryTable>) -> Arc<Self> {
        let (hidden, heads) = (config.hidden, config.heads);
        let modulation = parts.applied_to(Rows::Sample).under("norm1").linear(
            "linear",
            hidden,
            chunk::COUNT * hidden,
            Init::Zeros,
        );
        let mut attention = parts.under("attn");
        Arc::new(Self {
            modulation,
            attention: SelfAttention::new(&mut attention, hidden, heads, config.qk_norm, rotary),
        })
    }

    fn modulate(self: &Arc<Self>, exec: &Exec<'_>, c_bd: Tensor<2>) -> Tensor<3> {
        modulation(exec, "norm1", &self.modulation, c_bd, chunk::COUNT)
    }

    /// What the heads attend to.
    fn attended(self: &Arc<Self>, exec: &Exec<'_>, inputs: (Tensor<3>, Tensor<3>)) -> Tensor<3> {
        let norm = norm(chunk::ATTENTION_SHIFT, chunk::ATTENTION_SCALE);
        self.attention.attend(exec, inputs, norm)
    }

    fn attend(self: &Arc<Self>, exec: &Exec<'_>, (x, modulation): (Tensor<3>, Tensor<3>)) -> Tensor<3> {
        let inputs = (x.clone(), modulation.clone());
        let attended = exec.attention_layer("attn", AttentionKind::Spatial, inputs, |exec, inputs| {
            exec.deferrable(self, inputs, Self::attended)
        });
        let gate = chunk::ATTENTION_GATE;
        self.attention.gated_residual(exec, x, attended, modulation, gate)
    }

    /// The residual stream `[B, S, D]` after attention, and the modulation `[B, 6, D]`.
    pub fn forward(
        self: &Arc<Self>,
        exec: &Exec<'_>,
        x_bsd: Tensor<3>,
        c_bd: Tensor<2>,
    ) -> (Tensor<3>, Tensor<3>) {
        let modulation = exec.region(RegionKind::AdaLn, self, c_bd, Self::modulate);
        let inputs = (x_bsd, modulation.clone());
        let x = exec.region(RegionKind::Attention, self, inputs, Self::attend);
        (x, modulation)
    }

    /// What the attention reads.
    pub fn modulated_input(
        self: &Arc<Self>,
        exec: &Exec<'_>,
        x_bsd: &Tensor<3>,
        c_bd: &Tensor<2>,
    ) -> Tensor<3> {
        let modulation = self.modulate(exec, c_bd.clone());
        normed(exec, x_bsd.clone(), modulation)
    }
}

fn normed(exec: &Exec<'_>, x: Tensor<3>, modulation: Tensor<3>) -> Tensor<3> {
    let (shift, scale) = (chunk::ATTENTION_SHIFT, chunk::ATTENTION_SCALE);
    exec.modulated_layer_norm(x, modulation, shift, scale, NORM_EPSILON)
}

/// One block. Carries `x [B, S, D]`, reads the activated conditioning `[B, D]`.
#[derive(Debug)]
pub(super) struct DitBlock {
    front: Arc<Front>,
    mlp: FeedForward,
}

impl DitBlock {
    pub fn new(mut parts: Parts<'_>, config: &DitConfig, rotary: Option<RotaryTable>) -> Self {
        Self {
            front: Front::new(&mut parts, config, rotary),
            mlp: feed_forward(parts.under("ff"), config.hidden, config.mlp_width()),
        }
    }

    fn feed_forward(self: &Arc<Self>, exec: &Exec<'_>, (x, modulation): (Tensor<3>, Tensor<3>)) -> Tensor<3> {
        let norm = norm(chunk::MLP_SHIFT, chunk::MLP_SCALE);
        exec.modulated_feed_forward(x, modulation, norm, &self.mlp, chunk::MLP_GATE)
    }
}

impl Block for DitBlock {
    type Carried = Tensor<3>;
    type Shared = Tensor<2>;

    fn forward(self: &Arc<Self>, exec: &Exec<'_>, x_bsd: Tensor<3>, c_bd: Tensor<2>) -> Tensor<3> {
        let streams = self.front.forward(exec, x_bsd, c_bd);
        exec.region(RegionKind::Mlp, self, streams, Self::feed_forward)
    }

    fn modulated_input(
        self: &Arc<Self>,
        exec: &Exec<'_>,
        x_bsd: &Tensor<3>,
        c_bd: &Tensor<2>,
    ) -> Option<Tensor<3>> {
        Some(self.front.modulated_input(exec, x_bsd, c_bd))
    }
}
