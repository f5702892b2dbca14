//! A block with one stream for the sample and one for the text, and joint attention of both.

use super::FluxConfig;
use crate::layers::adaln_zero as chunk;
use crate::layers::{
    NORM_EPSILON, Parts, Projection, RotaryTable, feed_forward, heads_to_width, modulation, norm,
};
use burn::tensor::Tensor;
use flow_core::exec::{AttentionKind, Block, DependsOn, Exec, FeedForward, Linear, RegionKind};
use flow_core::{AttentionSpec, Init, Rows};
use std::sync::Arc;

/// The layers of one stream.
#[derive(Debug)]
struct StreamLayers {
    modulation: Linear,
    projection: Projection,
    attention_out: Linear,
    mlp: FeedForward,
}

/// One block. Carries the sample `[B, S, D]` and the text `[B, L, D]`, reads the activated conditioning `[B, D]`.
#[derive(Debug)]
pub(super) struct DoubleBlock {
    sample: StreamLayers,
    text: StreamLayers,
    /// Of the sample's tokens; the text's stand at the origin, where nothing turns.
    rotary: RotaryTable,
    is_first: bool,
}

/// Sample, text, and the modulation of each.
type Streams = (Tensor<3>, Tensor<3>, Tensor<3>, Tensor<3>);

impl DoubleBlock {
    /// Block `index`; `rotary` is of the sample's tokens.
    pub fn new(mut parts: Parts<'_>, config: &FluxConfig, index: usize, rotary: RotaryTable) -> Self {
        let (hidden, heads) = (config.hidden(), config.num_attention_heads);
        let mut modulation = |name| {
            let mut parts = parts.under(name);
            let mut parts = parts.applied_to(Rows::Sample);
            parts.linear("linear", hidden, chunk::COUNT * hidden, Init::Zeros)
        };
        let (of_sample, of_text) = (modulation("norm1"), modulation("norm1_context"));
        let mut attention = parts.under("attn");
        let sample = Projection::sample(&mut attention, hidden, heads, true);
        let text = Projection::context(&mut attention, hidden, heads, true);
        let sample_out = attention.linear("to_out.0", hidden, hidden, Init::XavierUniform);
        let text_out =
            attention
                .applied_to(Rows::Text)
                .linear("to_add_out", hidden, hidden, Init::XavierUniform);
        // Four times the width: diffusers' `FeedForward` default, which FLUX.1 keeps.
        let sample_mlp = feed_forward(parts.under("ff"), hidden, 4 * hidden);
        let text_mlp = feed_forward(
            parts.applied_to(Rows::Text).under("ff_context"),
            hidden,
            4 * hidden,
        );
        Self {
            sample: StreamLayers {
                modulation: of_sample,
                projection: sample,
                attention_out: sample_out,
                mlp: sample_mlp,
            },
            text: StreamLayers {
                modulation: of_text,
                projection: text,
                attention_out: text_out,
                mlp: text_mlp,
            },
            rotary,
            is_first: index == 0,
        }
    }

    fn modulate(self: &Arc<Self>, exec: &Exec<'_>, c_bd: Tensor<2>) -> (Tensor<3>, Tensor<3>) {
        (
            modulation(exec, "norm1", &self.sample.modulation, c_bd.clone(), chunk::COUNT),
            modulation(exec, "norm1_context", &self.text.modulation, c_bd, chunk::COUNT),
        )
    }

    fn attend(
        self: &Arc<Self>,
        exec: &Exec<'_>,
        (x, text, x_mod, text_mod): Streams,
    ) -> (Tensor<3>, Tensor<3>) {
        let inputs = (x.clone(), text.clone(), x_mod.clone(), text_mod.clone());
        let (x_joint, text_joint) =
            exec.attention_layer("attn", AttentionKind::Spatial, inputs, |exec, streams| {
                self.joint(exec, streams)
            });
        let gated = |residual, layers: &StreamLayers, joint, modulation| {
            exec.linear_gated_residual(
                residual,
                &layers.attention_out,
                joint,
                modulation,
                chunk::ATTENTION_GATE,
            )
        };
        (
            gated(x, &self.sample, x_joint, x_mod),
            gated(text, &self.text, text_joint, text_mod),
        )
    }

    /// What the heads of both streams attend to, before the output projections. Each stream's queries look at the keys and values of
    /// both where they are, so neither is copied to stand behind the other.
    fn joint(&self, exec: &Exec<'_>, (x, text, x_mod, text_mod): Streams) -> (Tensor<3>, Tensor<3>) {
        let norm = norm(chunk::ATTENTION_SHIFT, chunk::ATTENTION_SCALE);
        let (q, k, v) = self
            .sample
            .projection
            .forward(exec, (x, x_mod), norm, Some(&self.rotary));
        let project = |exec: &Exec<'_>, text| self.text.projection.forward(exec, text, norm, None);
        let text = (text, text_mod);
        let (text_q, text_k, text_v) = if self.is_first {
            // The text has not met a latent yet.
            exec.reusable("context_projections", DependsOn::SigmaAndCondition, text, project)
        } else {
            project(exec, text)
        };
        let parts = [(k, v), (text_k, text_v)];
        let attend = |q| heads_to_width(exec.attention_with(q, parts.clone(), &AttentionSpec::default()));
        (attend(q), attend(text_q))
    }

    fn feed_forward(
        self: &Arc<Self>,
        exec: &Exec<'_>,
        (x, text, x_mod, text_mod): Streams,
    ) -> (Tensor<3>, Tensor<3>) {
        let norm = norm(chunk::MLP_SHIFT, chunk::MLP_SCALE);
        let run = |layers: &StreamLayers, x, modulation| {
            exec.modulated_feed_forward(x, modulation, norm, &layers.mlp, chunk::MLP_GATE)
        };
        (run(&self.sample, x, x_mod), run(&self.text, text, text_mod))
    }
}

impl Block for DoubleBlock {
    type Carried = (Tensor<3>, Tensor<3>);
    type Shared = Tensor<2>;

    fn forward(
        self: &Arc<Self>,
        exec: &Exec<'_>,
        (x, text): Self::Carried,
        c_bd: Tensor<2>,
    ) -> Self::Carried {
        let (x_mod, text_mod) = exec.region(RegionKind::AdaLn, self, c_bd, Self::modulate);
        let streams = (x, text, x_mod.clone(), text_mod.clone());
        let (x, text) = exec.region(RegionKind::Attention, self, streams, Self::attend);
        let streams = (x, text, x_mod, text_mod);
        exec.region(RegionKind::Mlp, self, streams, Self::feed_forward)
    }

    fn modulated_input(
        self: &Arc<Self>,
        exec: &Exec<'_>,
        (x, _): &Self::Carried,
        c_bd: &Tensor<2>,
    ) -> Option<Tensor<3>> {
        let (modulation, _) = self.modulate(exec, c_bd.clone());
        let (shift, scale) = (chunk::ATTENTION_SHIFT, chunk::ATTENTION_SCALE);
        Some(exec.modulated_layer_norm(x.clone(), modulation, shift, scale, NORM_EPSILON))
    }
}
