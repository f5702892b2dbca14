//! Attention of the video to itself and to the text.

use super::WanConfig;
use crate::layers::{Parts, RotaryTable, heads_to_width};
use burn::tensor::Tensor;
use flow_core::exec::{Exec, Linear};
use flow_core::ops::NormChunks;
use flow_core::{Handle, Init, Rows};

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
    /// With keys and values of `context`.
    pub fn new(mut parts: Parts<'_>, config: &WanConfig, context: Rows) -> Self {
        let hidden = config.hidden();
        let mut linear = |name, rows| {
            let mut parts = parts.applied_to(rows);
            parts.linear(name, hidden, hidden, Init::XavierUniform)
        };
        let query = linear("to_q", Rows::Tokens);
        let (key, value) = (linear("to_k", context), linear("to_v", context));
        let out = linear("to_out.0", Rows::Tokens);
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

    /// Queries or keys of what was `projected`.
    fn normed(
        &self,
        exec: &Exec<'_>,
        norm: Handle<1>,
        projected: Tensor<3>,
        rotary: Option<&RotaryTable>,
    ) -> Tensor<4> {
        match rotary {
            Some(RotaryTable { cos, sin }) => {
                exec.rms_norm_rotary(projected, Some(norm), self.epsilon, [cos, sin])
            }
            None => self.heads(exec.rms_norm(projected, Some(norm), self.epsilon)),
        }
    }

    /// Keys and values `[B, L, H, D / H]` of `context [B, L, D]`.
    pub fn keys_and_values(&self, exec: &Exec<'_>, context_bld: Tensor<3>) -> (Tensor<4>, Tensor<4>) {
        let k = exec.linear(&self.key, context_bld.clone());
        let k = self.normed(exec, self.key_norm, k, None);
        (k, self.heads(exec.linear(&self.value, context_bld)))
    }

    /// What the heads of `x [B, S, D]` attend to in a context, side by side and before the output projection.
    pub fn attend(&self, exec: &Exec<'_>, x_bsd: Tensor<3>, (k, v): (Tensor<4>, Tensor<4>)) -> Tensor<3> {
        let q = exec.linear(&self.query, x_bsd);
        let q = self.normed(exec, self.query_norm, q, None);
        heads_to_width(exec.attention(q, k, v))
    }

    /// What the heads attend to in the modulated layer norm of `x [B, S, D]`, side by side and before the output projection.
    /// `rotary` turns queries and keys.
    pub fn attend_to_itself(
        &self,
        exec: &Exec<'_>,
        (x_bsd, modulation_bkd): (Tensor<3>, Tensor<3>),
        norm: NormChunks,
        rotary: &RotaryTable,
    ) -> Tensor<3> {
        // In the order of their use: the graph adds up their gradients from the last to the first, as the fused operation does.
        let layers = [&self.query, &self.key, &self.value];
        let [q, k, v] = exec.modulated_linears(x_bsd, modulation_bkd, norm, layers);
        let k = self.normed(exec, self.key_norm, k, Some(rotary));
        let q = self.normed(exec, self.query_norm, q, Some(rotary));
        heads_to_width(exec.attention(q, k, self.heads(v)))
    }

    /// The output projection.
    pub fn out(&self) -> &Linear {
        &self.out
    }
}
