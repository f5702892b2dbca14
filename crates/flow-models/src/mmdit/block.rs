//! A block with joint attention of sample and context.

use super::MmditConfig;
use crate::layers::{
    NORM_EPSILON, Parts, Projection, SelfAttention, feed_forward, heads_to_width, modulation, norm,
};
use burn::tensor::Tensor;
use flow_core::exec::{AttentionKind, Block, DependsOn, Exec, FeedForward, Linear, RegionKind};
use flow_core::{AttentionSpec, Init, Rows};
use std::sync::Arc;

/// Order of the chunks of a full modulation (diffusers' `AdaLayerNormZero`); with a second attention three more
/// follow (`SD35AdaLayerNormZeroX`).
mod chunk {
    pub use crate::layers::adaln_zero::*;

    pub const DUAL_SHIFT: usize = 6;
    pub const DUAL_SCALE: usize = 7;
    pub const DUAL_GATE: usize = 8;
    pub const COUNT_WITH_DUAL: usize = 9;
}

/// Order of the chunks of the last block's context modulation (diffusers' `AdaLayerNormContinuous`).
mod context_only {
    pub const SCALE: usize = 0;
    pub const SHIFT: usize = 1;
    pub const COUNT: usize = 2;
}

/// What carries the context on; the last block lacks it.
#[derive(Debug)]
struct ContextOut {
    attention_out: Linear,
    mlp: FeedForward,
}

/// One block. Carries the sample `[B, S, D]` and the context `[B, L, D]`, reads the activated conditioning `[B, D]`.
/// The last block of a stack hands its context on as it came.
#[derive(Debug)]
pub(super) struct MmditBlock {
    sample_modulation: Linear,
    context_modulation: Linear,
    sample: Projection,
    context: Projection,
    attention_out: Linear,
    dual: Option<SelfAttention>,
    mlp: FeedForward,
    context_out: Option<ContextOut>,
    is_first: bool,
}

impl MmditBlock {
    pub fn new(mut parts: Parts<'_>, config: &MmditConfig, index: usize) -> Self {
        let (hidden, heads, qk_norm) = (config.hidden(), config.num_attention_heads, config.qk_norm);
        let carries_context = index + 1 < config.num_layers;
        let has_dual = config.dual_attention_layers.contains(&index);
        let chunks = if has_dual {
            chunk::COUNT_WITH_DUAL
        } else {
            chunk::COUNT
        };
        let context_chunks = if carries_context {
            chunk::COUNT
        } else {
            context_only::COUNT
        };
        let mut modulation = |name, chunks| {
            let mut parts = parts.under(name);
            let mut parts = parts.applied_to(Rows::Sample);
            parts.linear("linear", hidden, chunks * hidden, Init::Zeros)
        };
        let sample_modulation = modulation("norm1", chunks);
        let context_modulation = modulation("norm1_context", context_chunks);
        let mut attention = parts.under("attn");
        let sample = Projection::sample(&mut attention, hidden, heads, qk_norm);
        let context = Projection::context(&mut attention, hidden, heads, qk_norm);
        let attention_out = attention.linear("to_out.0", hidden, hidden, Init::XavierUniform);
        let context_attention_out = carries_context.then(|| {
            let mut attention = attention.applied_to(Rows::Text);
            attention.linear("to_add_out", hidden, hidden, Init::XavierUniform)
        });
        let dual =
            has_dual.then(|| SelfAttention::new(&mut parts.under("attn2"), hidden, heads, qk_norm, None));
        // Four times the width: diffusers' `FeedForward` default, which SD3 keeps.
        let mlp = feed_forward(parts.under("ff"), hidden, 4 * hidden);
        let context_out = context_attention_out.map(|attention_out| ContextOut {
            attention_out,
            mlp: feed_forward(
                parts.applied_to(Rows::Text).under("ff_context"),
                hidden,
                4 * hidden,
            ),
        });
        Self {
            sample_modulation,
            context_modulation,
            sample,
            context,
            attention_out,
            dual,
            mlp,
            context_out,
            is_first: index == 0,
        }
    }

    fn modulate(self: &Arc<Self>, exec: &Exec<'_>, c_bd: Tensor<2>) -> (Tensor<3>, Tensor<3>) {
        let chunks = match self.dual {
            Some(_) => chunk::COUNT_WITH_DUAL,
            None => chunk::COUNT,
        };
        let context_chunks = match self.context_out {
            Some(_) => chunk::COUNT,
            None => context_only::COUNT,
        };
        (
            modulation(exec, "norm1", &self.sample_modulation, c_bd.clone(), chunks),
            modulation(
                exec,
                "norm1_context",
                &self.context_modulation,
                c_bd,
                context_chunks,
            ),
        )
    }

    /// What the heads of each stream attend to.
    fn attended(self: &Arc<Self>, exec: &Exec<'_>, streams: Streams) -> (Tensor<3>, Tensor<3>) {
        let joint = self.joint(exec, streams);
        let [q, context_q] = joint.queries.clone();
        (joint.attend(exec, q), joint.attend(exec, context_q))
    }

    /// What those of both attend to, the context's behind the sample's. Nobody reads the context's; it is asked for so that every weight has
    /// a gradient, as in diffusers.
    fn attended_at_once(self: &Arc<Self>, exec: &Exec<'_>, streams: Streams) -> Tensor<3> {
        let joint = self.joint(exec, streams);
        let q = Tensor::cat(joint.queries.to_vec(), 1);
        joint.attend(exec, q)
    }

    /// What the heads of the sample's second attention attend to, of a block that has one.
    fn attended_alone(self: &Arc<Self>, exec: &Exec<'_>, sample: (Tensor<3>, Tensor<3>)) -> Tensor<3> {
        let dual = self.dual.as_ref().expect("asked for by a block that has one");
        dual.attend(exec, sample, norm(chunk::DUAL_SHIFT, chunk::DUAL_SCALE))
    }

    /// Joint attention and, where there is one, the sample's second attention. Sample tokens come first.
    fn attend(
        self: &Arc<Self>,
        exec: &Exec<'_>,
        (x, context, x_mod, context_mod): Streams,
    ) -> (Tensor<3>, Tensor<3>) {
        let spatial = AttentionKind::Spatial;
        let inputs = (x.clone(), context.clone(), x_mod.clone(), context_mod.clone());
        let gated = |residual, layer, x, modulation| {
            exec.linear_gated_residual(residual, layer, x, modulation, chunk::ATTENTION_GATE)
        };
        let (x_joint, context) = match &self.context_out {
            None => {
                let joint = exec.attention_layer("attn", spatial, inputs, |exec, streams| {
                    let tokens = streams.0.dims()[1];
                    exec.deferrable(self, streams, Self::attended_at_once)
                        .narrow(1, 0, tokens)
                });
                (joint, context)
            }
            Some(out) => {
                let (x_joint, context_joint) =
                    exec.attention_layer("attn", spatial, inputs, |exec, streams| {
                        exec.deferrable(self, streams, Self::attended)
                    });
                let context = gated(context, &out.attention_out, context_joint, context_mod);
                (x_joint, context)
            }
        };
        let mut x_out = gated(x.clone(), &self.attention_out, x_joint, x_mod.clone());
        if let Some(dual) = &self.dual {
            let inputs = (x, x_mod.clone());
            let attended = exec.attention_layer("attn2", spatial, inputs, |exec, inputs| {
                exec.deferrable(self, inputs, Self::attended_alone)
            });
            x_out = dual.gated_residual(exec, x_out, attended, x_mod, chunk::DUAL_GATE);
        }
        (x_out, context)
    }

    /// The projections of both streams.
    fn joint(&self, exec: &Exec<'_>, (x, context, x_mod, context_mod): Streams) -> Joint {
        let of_x = norm(chunk::ATTENTION_SHIFT, chunk::ATTENTION_SCALE);
        let of_context = match self.context_out {
            Some(_) => of_x,
            None => norm(context_only::SHIFT, context_only::SCALE),
        };
        let (q, k, v) = self.sample.forward(exec, (x, x_mod), of_x, None);
        let project = |exec: &Exec<'_>, context| self.context.forward(exec, context, of_context, None);
        let context = (context, context_mod);
        let (context_q, context_k, context_v) = if self.is_first {
            // The context has not met a latent yet.
            let depends_on = DependsOn::SigmaAndCondition;
            exec.reusable("context_projections", depends_on, context, project)
        } else {
            project(exec, context)
        };
        Joint {
            queries: [q, context_q],
            parts: [(k, v), (context_k, context_v)],
        }
    }

    fn feed_forward(
        self: &Arc<Self>,
        exec: &Exec<'_>,
        (x, context, x_mod, context_mod): Streams,
    ) -> (Tensor<3>, Tensor<3>) {
        let run = |mlp: &FeedForward, x: Tensor<3>, modulation: Tensor<3>| {
            let norm = norm(chunk::MLP_SHIFT, chunk::MLP_SCALE);
            exec.modulated_feed_forward(x, modulation, norm, mlp, chunk::MLP_GATE)
        };
        let context = match &self.context_out {
            None => context,
            Some(out) => run(&out.mlp, context, context_mod),
        };
        (run(&self.mlp, x, x_mod), context)
    }
}

/// Queries, and keys and values, of both streams, each `[B, S, H, D]`; the sample's first.
///
/// Each stream's queries look at the keys and values of both, which are read where they are: so no stream is copied to stand
/// behind the other, and no result is taken apart.
struct Joint {
    queries: [Tensor<4>; 2],
    parts: [(Tensor<4>, Tensor<4>); 2],
}

impl Joint {
    /// What the heads attend to for `q_BSHD`, before the output projection, `[B, S, D]`.
    fn attend(&self, exec: &Exec<'_>, q_bshd: Tensor<4>) -> Tensor<3> {
        heads_to_width(exec.attention_with(q_bshd, self.parts.clone(), &AttentionSpec::default()))
    }
}

/// Sample, context, and the modulation of each.
type Streams = (Tensor<3>, Tensor<3>, Tensor<3>, Tensor<3>);

impl Block for MmditBlock {
    type Carried = (Tensor<3>, Tensor<3>);
    type Shared = Tensor<2>;

    fn forward(
        self: &Arc<Self>,
        exec: &Exec<'_>,
        (x, context): Self::Carried,
        c_bd: Tensor<2>,
    ) -> Self::Carried {
        let (x_mod, context_mod) = exec.region(RegionKind::AdaLn, self, c_bd, Self::modulate);
        let streams = (x, context, x_mod.clone(), context_mod.clone());
        let (x, context) = exec.region(RegionKind::Attention, self, streams, Self::attend);
        let streams = (x, context, x_mod, context_mod);
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
