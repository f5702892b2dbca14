//! A block with one stream for the sample and one for the text, and joint attention of both: that of FLUX.1 and of Qwen-Image.

use super::adaln_zero as chunk;
use super::{NORM_EPSILON, Parts, Projection, RotaryTable, feed_forward, heads_to_width, modulation, norm};
use burn::tensor::Tensor;
use flow_core::exec::{AttentionKind, Block, DependsOn, Exec, FeedForward, Linear, RegionKind};
use flow_core::ops::attention::Mask;
use flow_core::{AttentionSpec, Init, Rows};
use std::sync::Arc;

/// Names of a stream's layers, below the block's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamNames {
    /// Of the modulation, and of the linear layer in it.
    pub modulation: (&'static str, &'static str),
    /// Of the feed-forward part.
    pub feed_forward: &'static str,
}

/// What differs between the blocks of architectures.
#[derive(Clone, Debug)]
pub(crate) struct TwoStreamSettings {
    /// Width of both streams.
    pub hidden: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Names of the sample's layers.
    pub sample: StreamNames,
    /// Names of the text's layers.
    pub text: StreamNames,
    /// Positions of the sample's tokens.
    pub positions: RotaryTable,
    /// Positions of as many tokens as a text may have; none where the text stands at the origin, where nothing turns.
    pub text_positions: Option<RotaryTable>,
}

/// Where a block stands among those of its stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Its text has not met a latent yet.
    pub is_first: bool,
    /// Nobody reads the text that it gives.
    pub text_is_last: bool,
}

/// The layers of one stream.
#[derive(Debug)]
struct StreamLayers {
    modulation_name: &'static str,
    modulation: Linear,
    projection: Projection,
    attention_out: Linear,
    mlp: FeedForward,
}

/// One block. Carries the sample `[B, S, D]` and the text `[B, L, D]`, reads the activated conditioning `[B, D]`. Padding of texts
/// whose lengths the call has ([`Exec::text_lengths`]) is hidden.
#[derive(Debug)]
pub(crate) struct TwoStreamBlock {
    sample: StreamLayers,
    text: StreamLayers,
    positions: RotaryTable,
    text_positions: Option<RotaryTable>,
    place: Place,
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

impl TwoStreamBlock {
    /// The block at `place`.
    pub fn new(mut parts: Parts<'_>, settings: &TwoStreamSettings, place: Place) -> Self {
        let (hidden, heads) = (settings.hidden, settings.heads);
        let (of_sample, of_text) = (settings.sample, settings.text);
        let mut modulation = |(name, inner): (&str, &str)| {
            let mut parts = parts.under(name);
            let mut parts = parts.applied_to(Rows::Sample);
            parts.linear(inner, hidden, chunk::COUNT * hidden, Init::Zeros)
        };
        let modulations = (modulation(of_sample.modulation), modulation(of_text.modulation));
        let mut attention = parts.under("attn");
        let sample = Projection::sample(&mut attention, hidden, heads, true);
        let text = Projection::context(&mut attention, hidden, heads, true);
        let sample_out = attention.linear("to_out.0", hidden, hidden, Init::XavierUniform);
        let text_out =
            attention
                .applied_to(Rows::Text)
                .linear("to_add_out", hidden, hidden, Init::XavierUniform);
        // Four times the width: diffusers' `FeedForward` default, which these models keep.
        let sample_mlp = feed_forward(parts.under(of_sample.feed_forward), hidden, 4 * hidden);
        let text_mlp = feed_forward(
            parts.applied_to(Rows::Text).under(of_text.feed_forward),
            hidden,
            4 * hidden,
        );
        Self {
            sample: StreamLayers {
                modulation_name: of_sample.modulation.0,
                modulation: modulations.0,
                projection: sample,
                attention_out: sample_out,
                mlp: sample_mlp,
            },
            text: StreamLayers {
                modulation_name: of_text.modulation.0,
                modulation: modulations.1,
                projection: text,
                attention_out: text_out,
                mlp: text_mlp,
            },
            positions: settings.positions.clone(),
            text_positions: settings.text_positions.clone(),
            place,
        }
    }

    fn modulate(self: &Arc<Self>, exec: &Exec<'_>, c_bd: Tensor<2>) -> (Tensor<3>, Tensor<3>) {
        let of = |layers: &StreamLayers, c_bd| {
            modulation(
                exec,
                layers.modulation_name,
                &layers.modulation,
                c_bd,
                chunk::COUNT,
            )
        };
        (of(&self.sample, c_bd.clone()), of(&self.text, c_bd))
    }

    /// What the heads of each stream attend to.
    fn attended(self: &Arc<Self>, exec: &Exec<'_>, streams: Streams) -> (Tensor<3>, Tensor<3>) {
        let joint = self.joint(exec, streams);
        let [q, text_q] = joint.queries.clone();
        (joint.attend(exec, q), joint.attend(exec, text_q))
    }

    /// What those of both attend to, the text's behind the sample's. Nobody reads the text's; it is asked for so that its queries have a
    /// gradient, as in diffusers.
    fn attended_at_once(self: &Arc<Self>, exec: &Exec<'_>, streams: Streams) -> Tensor<3> {
        let joint = self.joint(exec, streams);
        let q = Tensor::cat(joint.queries.to_vec(), 1);
        joint.attend(exec, q)
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
        if self.place.text_is_last {
            let x_joint = exec.attention_layer("attn", spatial, inputs, |exec, streams| {
                let tokens = streams.0.dims()[1];
                exec.deferrable(self, streams, Self::attended_at_once)
                    .narrow(1, 0, tokens)
            });
            return (gated(x, &self.sample, x_joint, x_mod), text);
        }
        let (x_joint, text_joint) = exec.attention_layer("attn", spatial, inputs, |exec, streams| {
            exec.deferrable(self, streams, Self::attended)
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
        let (q, k, v) = self
            .sample
            .projection
            .forward(exec, (x, x_mod), norm, Some(&self.positions));
        let rotary = self.text_positions.as_ref().map(|table| table.first(text_tokens));
        let project = |exec: &Exec<'_>, text| self.text.projection.forward(exec, text, norm, rotary.as_ref());
        let text = (text, text_mod);
        let (text_q, text_k, text_v) = if self.place.is_first {
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
        let text = if self.place.text_is_last {
            text
        } else {
            run(&self.text, text, text_mod)
        };
        (run(&self.sample, x, x_mod), text)
    }
}

impl Block for TwoStreamBlock {
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
