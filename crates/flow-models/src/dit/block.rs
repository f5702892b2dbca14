//! A transformer block with adaLN-zero.

use super::DitConfig;
use crate::layers::{NORM_EPSILON, Parts, RotaryTable, SelfAttention, feed_forward, modulation, norm};
use burn::tensor::Tensor;
use flow_core::Init;
use flow_core::exec::{AttentionKind, Block, Exec, FeedForward, Linear, RegionKind};
use std::sync::Arc;

/// Order of the modulation's chunks (Peebles and Xie 2022; diffusers' `AdaLayerNormZero`).
mod chunk {
    pub const ATTENTION_SHIFT: usize = 0;
    pub const ATTENTION_SCALE: usize = 1;
    pub const ATTENTION_GATE: usize = 2;
    pub const MLP_SHIFT: usize = 3;
    pub const MLP_SCALE: usize = 4;
    pub const MLP_GATE: usize = 5;
    pub const COUNT: usize = 6;
}

/// One block. Carries `x [B, S, D]`, reads the activated conditioning `[B, D]`.
#[derive(Debug)]
pub(super) struct DitBlock {
    modulation: Linear,
    attention: SelfAttention,
    mlp: FeedForward,
}

impl DitBlock {
    pub fn new(mut parts: Parts<'_>, config: &DitConfig, rotary: Option<RotaryTable>) -> Self {
        let hidden = config.hidden;
        let modulation = parts
            .under("norm1")
            .linear("linear", hidden, chunk::COUNT * hidden, Init::Zeros);
        let attention = SelfAttention::new(
            &mut parts.under("attn"),
            hidden,
            config.heads,
            config.qk_norm,
            rotary,
        );
        let mlp = feed_forward(parts.under("ff"), hidden, config.mlp_width());
        Self {
            modulation,
            attention,
            mlp,
        }
    }

    fn modulate(self: &Arc<Self>, exec: &Exec<'_>, c_bd: Tensor<2>) -> Tensor<3> {
        modulation(exec, "norm1", &self.modulation, c_bd, chunk::COUNT)
    }

    fn attend(self: &Arc<Self>, exec: &Exec<'_>, (x, modulation): (Tensor<3>, Tensor<3>)) -> Tensor<3> {
        let normed = normed(exec, x.clone(), modulation.clone());
        let attended = exec.attention_layer("attn", AttentionKind::Spatial, normed, |exec, normed| {
            self.attention.attend(exec, normed)
        });
        let gate = chunk::ATTENTION_GATE;
        self.attention.gated_residual(exec, x, attended, modulation, gate)
    }

    fn feed_forward(self: &Arc<Self>, exec: &Exec<'_>, (x, modulation): (Tensor<3>, Tensor<3>)) -> Tensor<3> {
        let norm = norm(chunk::MLP_SHIFT, chunk::MLP_SCALE);
        exec.modulated_feed_forward(x, modulation, norm, &self.mlp, chunk::MLP_GATE)
    }
}

/// What the attention reads.
fn normed(exec: &Exec<'_>, x: Tensor<3>, modulation: Tensor<3>) -> Tensor<3> {
    let (shift, scale) = (chunk::ATTENTION_SHIFT, chunk::ATTENTION_SCALE);
    exec.modulated_layer_norm(x, modulation, shift, scale, NORM_EPSILON)
}

impl Block for DitBlock {
    type Carried = Tensor<3>;
    type Shared = Tensor<2>;

    fn forward(self: &Arc<Self>, exec: &Exec<'_>, x_bsd: Tensor<3>, c_bd: Tensor<2>) -> Tensor<3> {
        let modulation = exec.region(RegionKind::AdaLn, self, c_bd, Self::modulate);
        let x = exec.region(
            RegionKind::Attention,
            self,
            (x_bsd, modulation.clone()),
            Self::attend,
        );
        exec.region(RegionKind::Mlp, self, (x, modulation), Self::feed_forward)
    }
    fn modulated_input(
        self: &Arc<Self>,
        exec: &Exec<'_>,
        x_bsd: &Tensor<3>,
        c_bd: &Tensor<2>,
    ) -> Option<Tensor<3>> {
        let modulation = self.modulate(exec, c_bd.clone());
        Some(normed(exec, x_bsd.clone(), modulation))
    }
}
