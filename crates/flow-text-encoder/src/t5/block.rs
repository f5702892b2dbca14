//! One block of a T5 encoder.

use super::config::T5Config;
use crate::parts::{heads_of, product, rms, side_by_side, table};
use burn::tensor::{Int, Tensor};
use flow_core::exec::{Block, Exec, Linear, RegionKind};
use flow_core::ops::attention::{Mask, RelativeBias};
use flow_core::params::LayoutBuilder;
use flow_core::{Activation, AttentionSpec, Handle, Stopped};
use std::sync::Arc;

/// Attention with relative positions, then a gated feed-forward part, each after an RMS norm; no layer has a bias.
#[derive(Debug)]
pub(super) struct T5Block {
    attention_norm: Handle<1>,
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    /// `[buckets, heads]`; blocks without one use the first block's.
    pub(super) positions: Option<Handle<2>>,
    inner_norm: Handle<1>,
    gate: Linear,
    up: Linear,
    down: Linear,
    heads: usize,
    epsilon: f32,
}

impl T5Block {
    pub fn new(mut parts: LayoutBuilder<'_>, config: &T5Config, has_positions: bool) -> Self {
        let (width, inner, heads) = (config.width, config.inner, config.heads * config.head_dim);
        let mut first = parts.under("layer.0");
        let mut attention = first.under("SelfAttention");
        let [query, key, value] = ["q", "k", "v"].map(|name| product(&mut attention, name, width, heads));
        let out = product(&mut attention, "o", heads, width);
        let positions = has_positions.then(|| {
            table(
                &mut attention,
                "relative_attention_bias",
                config.buckets,
                config.heads,
            )
        });
        let attention_norm = rms(&mut first, "layer_norm", width);
        let mut second = parts.under("layer.1");
        let mut dense = second.under("DenseReluDense");
        let [gate, up] = ["wi_0", "wi_1"].map(|name| product(&mut dense, name, width, inner));
        let down = product(&mut dense, "wo", inner, width);
        Self {
            attention_norm,
            query,
            key,
            value,
            out,
            positions,
            inner_norm: rms(&mut second, "layer_norm", width),
            gate,
            up,
            down,
            heads: config.heads,
            epsilon: config.epsilon,
        }
    }
}

/// What `table` adds to the scores, for the buckets `[1, distances]`.
pub(super) fn bias_of(exec: &Exec<'_>, table: Handle<2>, buckets: Tensor<2, Int>) -> Arc<RelativeBias> {
    let values = exec.embedding(table, buckets);
    let [_, distances, heads] = values.dims();
    let by_head = values.reshape([distances, heads]).swap_dims(0, 1).into_dispatch();
    match RelativeBias::new(&by_head) {
        Ok(bias) => Arc::new(bias),
        Err(declined) => Stopped::AttentionDeclined {
            backend: exec.backends().attention.name().to_owned(),
            why: declined.why,
        }
        .stop(),
    }
}

/// A block, and what its attention needs in a call besides tokens.
#[derive(Debug)]
pub(super) struct T5Call {
    pub block: Arc<T5Block>,
    /// What hides padding.
    pub mask: Option<Arc<Mask>>,
    /// What the first block's table adds to the scores, for blocks without a table.
    pub bias: Option<Arc<RelativeBias>>,
    /// Buckets of all distances, `[1, 2 S - 1]`.
    pub buckets: Tensor<2, Int>,
}

impl T5Call {
    fn attend(self: &Arc<Self>, exec: &Exec<'_>, x_bsd: Tensor<3>) -> Tensor<3> {
        let block = &*self.block;
        let normed = exec.rms_norm(x_bsd.clone(), Some(block.attention_norm), block.epsilon);
        let [q, k, v] = [&block.query, &block.key, &block.value]
            .map(|layer| heads_of(exec, layer, normed.clone(), block.heads));
        let own = |table| bias_of(exec, table, self.buckets.clone());
        let spec = AttentionSpec {
            // T5 was trained without 1/sqrt(D): its initial values make up for it.
            scale: Some(1.0),
            mask: self.mask.clone(),
            bias: self.bias.clone().or_else(|| block.positions.map(own)),
        };
        let attended = exec.attention_with(q, [(k, v)], &spec);
        x_bsd + exec.linear(&block.out, side_by_side(attended))
    }

    fn feed_forward(self: &Arc<Self>, exec: &Exec<'_>, x_bsd: Tensor<3>) -> Tensor<3> {
        let block = &*self.block;
        let normed = exec.rms_norm(x_bsd.clone(), Some(block.inner_norm), block.epsilon);
        let gate = exec.linear_activated(&block.gate, normed.clone(), Activation::GeluTanh);
        x_bsd + exec.linear(&block.down, gate * exec.linear(&block.up, normed))
    }
}

impl Block for T5Call {
    type Carried = Tensor<3>;
    type Shared = ();

    fn forward(self: &Arc<Self>, exec: &Exec<'_>, x_bsd: Tensor<3>, (): ()) -> Tensor<3> {
        let attended = exec.region(RegionKind::Attention, self, x_bsd, Self::attend);
        exec.region(RegionKind::Mlp, self, attended, Self::feed_forward)
    }
}
