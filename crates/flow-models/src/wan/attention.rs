//! Attention of the video to itself and to the text.

use super::WanConfig;
use crate::layers::{Parts, RotaryTable, heads_to_width};
use burn::tensor::Tensor;
use flow_core::exec::{Exec, Linear};
use flow_core::{Handle, Init};

/// Projections and attention, queries and keys normalised over all heads at once (diffusers' `WanAttention`).
#[derive(Debug)]
pub(super) struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    query_norm: Handle<1>,
    key_norm: Handle<1>,
    out: Linear,
    heads: usize,
    epsilon: f32,
}

impl Attention {
    pub fn new(mut parts: Parts<'_>, config: &WanConfig) -> Self {
        let hidden = config.hidden();
        let mut linear = |name| parts.linear(name, hidden, hidden, Init::XavierUniform);
        let (query, key, value) = (linear("to_q"), linear("to_k"), linear("to_v"));
        let out = linear("to_out.0");
        let mut norm = |name| parts.under(name).param("weight", [hidden], Init::Ones);
        Self {
            query,
            key,
            value,
            query_norm: norm("norm_q"),
            key_norm: norm("norm_k"),
            out,
            heads: config.num_attention_heads,
            epsilon: config.eps,
        }
    }

    /// What the heads of `x [B, S, D]` attend to in `context [B, L, D]`, side by side and before the output projection.
    /// `rotary` turns queries and keys.
    pub fn attend(
        &self,
        exec: &Exec<'_>,
        x_bsd: Tensor<3>,
        context_bld: Tensor<3>,
        rotary: Option<&RotaryTable>,
    ) -> Tensor<3> {
        let heads = |x: Tensor<3>| {
            let [batch, tokens, width] = x.dims();
            x.reshape([batch, tokens, self.heads, width / self.heads])
        };
        let normed = |layer, norm, x| {
            let projected = exec.linear(layer, x);
            let mut projected = heads(exec.rms_norm(projected, Some(norm), self.epsilon));
            if let Some(rotary) = rotary {
                projected = exec.rotary(projected, &rotary.cos, &rotary.sin);
            }
            projected
        };
        let q = normed(&self.query, self.query_norm, x_bsd);
        let k = normed(&self.key, self.key_norm, context_bld.clone());
        let v = heads(exec.linear(&self.value, context_bld));
        heads_to_width(exec.attention(q, k, v))
    }

    /// The output projection.
    pub fn out(&self) -> &Linear {
        &self.out
    }
}
