//! A block with one stream for the sample and one for the text, and joint attention of both, which hides the text's padding.

use super::QwenImageConfig;
use crate::layers::adaln_zero as chunk;
use crate::layers::{
    NORM_EPSILON, Parts, Projection, RotaryTable, feed_forward, heads_to_width, modulation, norm,
};
use burn::tensor::Tensor;
use flow_core::exec::{AttentionKind, Block, DependsOn, Exec, FeedForward, Linear, RegionKind};
use flow_core::ops::attention::Mask;
use flow_core::{AttentionSpec, Init, Rows};
use std::sync::Arc;

/// Rotary tables of a model.
#[derive(Clone, Debug)]
pub(super) struct Positions {
    pub sample: RotaryTable,
    /// Of as many tokens as a text may have.
    pub text: RotaryTable,
}

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
pub(super) struct QwenImageBlock {
    sample: StreamLayers,
    text: StreamLayers,
    positions: Positions,
    is_first: bool,
    is_last: bool,
}

/// Sample, text, and the modulation of each.
type Streams = (Tensor<3>, Tensor<3>, Tensor<3>, Tensor<3>);

/// Queries, and keys and values, of both streams, each `[B, S, H, D]`; the sample's first.
struct Joint {
    queries: [Tensor<4>; 2],
    parts: [(Tensor<4>, Tensor<4>); 2],
    spec: AttentionSpec,
}

impl Joint {
    /// What the heads attend to for `q_BSHD`, before the output projection, `[B, S, D]`.
    fn attend(&self, exec: &Exec<'_>, q_bshd: Tensor<4>) -> Tensor<3> {
        heads_to_width(exec.attention_with(q_bshd, self.parts.clone(), &self.spec))
    }
}

impl QwenImageBlock {
    /// Block `index`.
    pub fn new(mut parts: Parts<'_>, config: &QwenImageConfig, index: usize, positions: Positions) -> Self {
        let (hidden, heads) = (config.hidden(), config.num_attention_heads);
        // `1`: in diffusers the layer stands behind the activation, which all blocks share here.
        let mut modulation = |name| {
            let mut parts = parts.under(name);
            let mut parts = parts.applied_to(Rows::Sample);
            parts.linear("1", hidden, chunk::COUNT * hidden, Init::Zeros)
        };
        let (of_sample, of_text) = (modulation("img_mod"), modulation("txt_mod"));
        let mut attention = parts.under("attn");
        let sample = Projection::sample(&mut attention, hidden, heads, true);
        let text = Projection::context(&mut attention, hidden, heads, true);
        let sample_out = attention.linear("to_out.0", hidden, hidden, Init::XavierUniform);
        let text_out =
            attention
                .applied_to(Rows::Text)
                .linear("to_add_out", hidden, hidden, Init::XavierUniform);
        // Four times the width: diffusers' `FeedForward` default, which Qwen-Image keeps.
        let sample_mlp = feed_forward(parts.under("img_mlp"), hidden, 4 * hidden);
        let text_mlp = feed_forward(parts.applied_to(Rows::Text).under("txt_mlp"), hidden, 4 * hidden);
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
            positions,
            is_first: index == 0,
            is_last: index + 1 == config.num_layers,
        }
    }

    fn modulate(self: &Arc<Self>, exec: &Exec<'_>, c_bd: Tensor<2>) -> (Tensor<3>, Tensor<3>) {
        (
            modulation(
                exec,
                "img_mod",
                &self.sample.modulation,
                c_bd.clone(),
                chunk::COUNT,
            ),
            modulation(exec, "txt_mod", &self.text.modulation, c_bd, chunk::COUNT),
        )
    }

    fn attend(
        self: &Arc<Self>,
        exec: &Exec<'_>,
        (x, text, x_mod, text_mod): Streams,
    ) -> (Tensor<3>, Tensor<3>) {
        let inputs = (x.clone(), text.clone(), x_mod.clone(), text_mod.clone());
        let spatial = AttentionKind::Spatial;
        let gated = |residual, layers: &StreamLayers, joint, modulation| {
            exec.linear_gated_residual(
                residual,
                &layers.attention_out,
                joint,
                modulation,
                chunk::ATTENTION_GATE,
            )
        };
        if self.is_last {
            let x_joint = exec.attention_layer("attn", spatial, inputs, |exec, streams| {
                let tokens = streams.0.dims()[1];
                let joint = self.joint(exec, streams);
                // Nobody reads the rest; it is asked for so that the text's queries have a gradient, as in diffusers.
                let q = Tensor::cat(joint.queries.to_vec(), 1);
                joint.attend(exec, q).narrow(1, 0, tokens)
            });
            return (gated(x, &self.sample, x_joint, x_mod), text);
        }
        let (x_joint, text_joint) = exec.attention_layer("attn", spatial, inputs, |exec, streams| {
            let joint = self.joint(exec, streams);
            let [q, text_q] = joint.queries.clone();
            (joint.attend(exec, q), joint.attend(exec, text_q))
        });
        (
            gated(x, &self.sample, x_joint, x_mod),
            gated(text, &self.text, text_joint, text_mod),
        )
    }

    /// The projections of both streams. The queries of each look at the keys and values of both where they are, so neither is
    /// copied to stand behind the other; the text's keys are the second part, and so a row's padding is behind all of its keys.
    fn joint(&self, exec: &Exec<'_>, (x, text, x_mod, text_mod): Streams) -> Joint {
        let norm = norm(chunk::ATTENTION_SHIFT, chunk::ATTENTION_SCALE);
        let ([_, tokens, _], [_, text_tokens, _]) = (x.dims(), text.dims());
        let rotary = &self.positions.sample;
        let (q, k, v) = self
            .sample
            .projection
            .forward(exec, (x, x_mod), norm, Some(rotary));
        let rotary = self.positions.text.first(text_tokens);
        let project = |exec: &Exec<'_>, text| self.text.projection.forward(exec, text, norm, Some(&rotary));
        let text = (text, text_mod);
        let (text_q, text_k, text_v) = if self.is_first {
            // The text has not met a latent yet.
            exec.reusable("context_projections", DependsOn::SigmaAndCondition, text, project)
        } else {
            project(exec, text)
        };
        let mask = exec.text_lengths().and_then(|lengths| {
            let keys = lengths.iter().map(|length| tokens + length);
            // There is none of no rows.
            Mask::key_padding(keys.collect()).ok().map(Arc::new)
        });
        Joint {
            queries: [q, text_q],
            parts: [(k, v), (text_k, text_v)],
            spec: AttentionSpec {
                mask,
                ..AttentionSpec::default()
            },
        }
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
        let text = if self.is_last {
            text
        } else {
            run(&self.text, text, text_mod)
        };
        (run(&self.sample, x, x_mod), text)
    }
}

impl Block for QwenImageBlock {
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
