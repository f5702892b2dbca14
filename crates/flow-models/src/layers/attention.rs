//! Attention of one token stream to itself, and the projections that joint attention is made of.

use super::{NORM_EPSILON, Parts, RotaryTable};
use burn::tensor::Tensor;
use flow_core::exec::{Exec, Linear};
use flow_core::ops::NormChunks;
use flow_core::{Handle, Init, Rows};

/// `[B, S, H, D]` to `[B, S, H·D]`.
pub(crate) fn heads_to_width(x_bshd: Tensor<4>) -> Tensor<3> {
    let [batch, tokens, heads, channels] = x_bshd.dims();
    x_bshd.reshape([batch, tokens, heads * channels])
}

/// A stream `[B, S, D]` and its modulation `[B, K, D]`.
pub(crate) type Modulated = (Tensor<3>, Tensor<3>);

/// Names of a stream's projections within an attention layer.
pub(crate) struct ProjectionNames {
    query: &'static str,
    key: &'static str,
    value: &'static str,
    query_norm: &'static str,
    key_norm: &'static str,
}

impl ProjectionNames {
    /// Those of the sample.
    pub const SAMPLE: Self = Self {
        query: "to_q",
        key: "to_k",
        value: "to_v",
        query_norm: "norm_q",
        key_norm: "norm_k",
    };
    /// Those of the context.
    pub const CONTEXT: Self = Self {
        query: "add_q_proj",
        key: "add_k_proj",
        value: "add_v_proj",
        query_norm: "norm_added_q",
        key_norm: "norm_added_k",
    };
}

/// Queries, keys and values of one stream, with an RMS norm per head on queries and keys if asked for.
#[derive(Debug)]
pub(crate) struct Projection {
    query: Linear,
    key: Linear,
    value: Linear,
    norms: Option<(Handle<1>, Handle<1>)>,
    heads: usize,
}

impl Projection {
    fn new(
        parts: &mut Parts<'_>,
        names: &ProjectionNames,
        hidden: usize,
        heads: usize,
        qk_norm: bool,
    ) -> Self {
        let mut linear = |name| parts.linear(name, hidden, hidden, Init::XavierUniform);
        let (query, key, value) = (linear(names.query), linear(names.key), linear(names.value));
        let head_dim = hidden / heads;
        let mut norm = |name| parts.under(name).param("weight", [head_dim], Init::Ones);
        let norms = qk_norm.then(|| (norm(names.query_norm), norm(names.key_norm)));
        Self {
            query,
            key,
            value,
            norms,
            heads,
        }
    }

    /// The sample's projections.
    pub fn sample(parts: &mut Parts<'_>, hidden: usize, heads: usize, qk_norm: bool) -> Self {
        Self::new(parts, &ProjectionNames::SAMPLE, hidden, heads, qk_norm)
    }

    /// The context's projections.
    pub fn context(parts: &mut Parts<'_>, hidden: usize, heads: usize, qk_norm: bool) -> Self {
        let mut parts = parts.applied_to(Rows::Text);
        Self::new(&mut parts, &ProjectionNames::CONTEXT, hidden, heads, qk_norm)
    }

    /// `(q, k, v)`, each `[B, S, H, D]`, of the modulated layer norm of `x_BSD`; `rotary` turns queries and keys.
    pub fn forward(
        &self,
        exec: &Exec<'_>,
        (x_bsd, modulation_bkd): Modulated,
        norm: NormChunks,
        rotary: Option<&RotaryTable>,
    ) -> (Tensor<4>, Tensor<4>, Tensor<4>) {
        let [batch, tokens, width] = x_bsd.dims();
        let layers = [&self.query, &self.key, &self.value];
        let projected = exec.modulated_linears(x_bsd, modulation_bkd, norm, layers);
        let [q, k, v] = projected.map(|x| x.reshape([batch, tokens, self.heads, width / self.heads]));
        let placed = |x: Tensor<4>, norm: Option<Handle<1>>| match (norm, rotary) {
            (Some(_), Some(RotaryTable { cos, sin })) => {
                exec.rms_norm_rotary(x, norm, NORM_EPSILON, [cos, sin])
            }
            (Some(_), None) => exec.rms_norm(x, norm, NORM_EPSILON),
            (None, Some(RotaryTable { cos, sin })) => exec.rotary(x, cos, sin),
            (None, None) => x,
        };
        let (of_queries, of_keys) = self.norms.unzip();
        (placed(q, of_queries), placed(k, of_keys), v)
    }
}

/// Attention within one stream.
#[derive(Debug)]
pub(crate) struct SelfAttention {
    projection: Projection,
    out: Linear,
    rotary: Option<RotaryTable>,
}

impl SelfAttention {
    pub fn new(
        parts: &mut Parts<'_>,
        hidden: usize,
        heads: usize,
        qk_norm: bool,
        rotary: Option<RotaryTable>,
    ) -> Self {
        Self {
            projection: Projection::sample(parts, hidden, heads, qk_norm),
            out: parts.linear("to_out.0", hidden, hidden, Init::XavierUniform),
            rotary,
        }
    }

    /// What the heads attend to in the modulated layer norm of `x_BSD`, side by side and before the output projection,
    /// `[B, S, D]`.
    pub fn attend(&self, exec: &Exec<'_>, modulated: Modulated, norm: NormChunks) -> Tensor<3> {
        let (q, k, v) = self
            .projection
            .forward(exec, modulated, norm, self.rotary.as_ref());
        heads_to_width(exec.attention(q, k, v))
    }

    /// `residual + modulation[:, gate] · projection(attended)`, all `[B, S, D]`.
    pub fn gated_residual(
        &self,
        exec: &Exec<'_>,
        residual_bsd: Tensor<3>,
        attended_bsd: Tensor<3>,
        modulation_bkd: Tensor<3>,
        gate: usize,
    ) -> Tensor<3> {
        exec.linear_gated_residual(residual_bsd, &self.out, attended_bsd, modulation_bkd, gate)
    }
}
