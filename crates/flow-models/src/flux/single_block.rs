//! A block with one stream for sample and text, whose attention and feed-forward part read the same and are projected together.

use super::FluxConfig;
use crate::layers::{NORM_EPSILON, Parts, Projection, RotaryTable, heads_to_width, modulation, norm};
use burn::tensor::Tensor;
use flow_core::exec::{AttentionKind, Block, Exec, Linear, RegionKind};
use flow_core::ops::NormChunks;
use flow_core::{Activation, Init, Rows};
use std::sync::Arc;

/// Order of the chunks of a modulation (diffusers' `AdaLayerNormZeroSingle`).
mod chunk {
    pub const SHIFT: usize = 0;
    pub const SCALE: usize = 1;
    pub const GATE: usize = 2;
    pub const COUNT: usize = 3;
}

const NORM: NormChunks = norm(chunk::SHIFT, chunk::SCALE);

/// One block. Carries the tokens of the sample and behind them those of the text, `[B, S + L, D]`, reads the activated conditioning
/// `[B, D]`.
#[derive(Debug)]
pub(super) struct SingleBlock {
    modulation: Linear,
    projection: Projection,
    mlp: Linear,
    out: Linear,
    /// Of the sample's tokens and, behind them, of as many that do not turn as a text may have.
    rotary: RotaryTable,
}

/// The stream and its modulation.
type Stream = (Tensor<3>, Tensor<3>);

impl SingleBlock {
    /// `rotary` is of the sample's tokens and of those of the longest text.
    pub fn new(mut parts: Parts<'_>, config: &FluxConfig, rotary: RotaryTable) -> Self {
        let (hidden, heads) = (config.hidden(), config.num_attention_heads);
        let mut parts = parts.applied_to(Rows::TokensAndText);
        let modulation = parts.applied_to(Rows::Sample).under("norm").linear(
            "linear",
            hidden,
            chunk::COUNT * hidden,
            Init::Zeros,
        );
        let inner = 4 * hidden;
        let mlp = parts.linear("proj_mlp", hidden, inner, Init::XavierUniform);
        let out = parts.linear("proj_out", hidden + inner, hidden, Init::XavierUniform);
        let projection = Projection::sample(&mut parts.under("attn"), hidden, heads, true);
        Self {
            modulation,
            projection,
            mlp,
            out,
            rotary,
        }
    }

    fn modulate(self: &Arc<Self>, exec: &Exec<'_>, c_bd: Tensor<2>) -> Tensor<3> {
        modulation(exec, "norm", &self.modulation, c_bd, chunk::COUNT)
    }

    /// What the heads attend to, before the output projection, `[B, S + L, D]`.
    fn attend(self: &Arc<Self>, exec: &Exec<'_>, stream: Stream) -> Tensor<3> {
        exec.attention_layer("attn", AttentionKind::Spatial, stream, |exec, stream| {
            exec.deferrable(self, stream, Self::attended)
        })
    }

    fn attended(self: &Arc<Self>, exec: &Exec<'_>, stream: Stream) -> Tensor<3> {
        let tokens = stream.0.dims()[1];
        let rotary = self.rotary.first(tokens);
        let (q, k, v) = self.projection.forward(exec, stream, NORM, Some(&rotary));
        heads_to_width(exec.attention(q, k, v))
    }

    /// The feed-forward part, and the projection of both.
    fn project(
        self: &Arc<Self>,
        exec: &Exec<'_>,
        (x, attended, modulation): (Tensor<3>, Tensor<3>, Tensor<3>),
    ) -> Tensor<3> {
        let inner = exec.modulated_linear_activated(
            x.clone(),
            modulation.clone(),
            NORM,
            &self.mlp,
            Activation::GeluTanh,
        );
        exec.linear_gated_residual_of_parts(x, &self.out, [attended, inner], modulation, chunk::GATE)
    }
}

impl Block for SingleBlock {
    type Carried = Tensor<3>;
    type Shared = Tensor<2>;

    fn forward(self: &Arc<Self>, exec: &Exec<'_>, x: Tensor<3>, c_bd: Tensor<2>) -> Tensor<3> {
        let modulation = exec.region(RegionKind::AdaLn, self, c_bd, Self::modulate);
        let stream = (x.clone(), modulation.clone());
        let attended = exec.region(RegionKind::Attention, self, stream, Self::attend);
        exec.region(RegionKind::Mlp, self, (x, attended, modulation), Self::project)
    }

    fn modulated_input(
        self: &Arc<Self>,
        exec: &Exec<'_>,
        x: &Tensor<3>,
        c_bd: &Tensor<2>,
    ) -> Option<Tensor<3>> {
        let modulation = self.modulate(exec, c_bd.clone());
        Some(exec.modulated_layer_norm(x.clone(), modulation, chunk::SHIFT, chunk::SCALE, NORM_EPSILON))
    }
}
