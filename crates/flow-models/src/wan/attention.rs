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

    fn heads(&self, x: Tensor<3>) -> Tensor<4> {
        let [batch, tokens, width] = x.dims();
        x.reshape([batch, tokens, self.heads, width / self.heads])
    }

    fn normed(
        &self,
        exec: &Exec<'_>,
        (layer, norm): (&Linear, Handle<1>),
        x: Tensor<3>,
        rotary: Option<&RotaryTable>,
    ) -> Tensor<4> {
        let projected = exec.linear(layer, x);
        let projected = self.heads(exec.rms_norm(projected, Some(norm), self.epsilon));
        match rotary {
            Some(rotary) => exec.rotary(projected, &rotary.cos, &rotary.sin),
            None => projected,
        }
    }

    /// Keys and values `[B, L, H, D / H]` of `context [B, L, D]`. `rotary` turns the keys.
    pub fn keys_and_values(
        &self,
        exec: &Exec<'_>,
        context_bld: Tensor<3>,
        rotary: Option<&RotaryTable>,
    ) -> (Tensor<4>, Tensor<4>) {
        let key = (&self.key, self.key_norm);
        let k = self.normed(exec, key, context_bld.clone(), rotary);
        (k, self.heads(exec.linear(&self.value, context_bld)))
    }

    /// What the heads of `x [B, S, D]` attend to, side by side and before the output projection. `rotary` turns the queries.
    pub fn attend(
        &self,
        exec: &Exec<'_>,
        x_bsd: Tensor<3>,
        (k, v): (Tensor<4>, Tensor<4>),
        rotary: Option<&RotaryTable>,
    ) -> Tensor<3> {
        let q = self.normed(exec, (&self.query, self.query_norm), x_bsd, rotary);
        heads_to_width(exec.attention(q, k, v))
    }

    /// The output projection.
    pub fn out(&self) -> &Linear {
        &self.out
    }
}
