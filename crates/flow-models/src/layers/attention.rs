//! Attention of one token stream to itself, and the projections that joint attention is made of.

use super::{NORM_EPSILON, Parts, RotaryTable};
use burn::tensor::Tensor;
use flow_core::exec::{Exec, Linear};
use flow_core::kernels::NormChunks;
use flow_core::{Handle, Init};

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
        Self::new(parts, &ProjectionNames::CONTEXT, hidden, heads, qk_norm)
    }

    /// `(q, k, v)`, each `[B, S, H, D]`, of the modulated layer norm of `x_BSD`.
    pub fn forward(
        &self,
        exec: &Exec<'_>,
        (x_bsd, modulation_bkd): Modulated,
        norm: NormChunks,
    ) -> (Tensor<4>, Tensor<4>, Tensor<4>) {
        let [batch, tokens, width] = x_bsd.dims();
        let layers = [&self.query, &self.key, &self.value];
        let projected = exec.modulated_linears(x_bsd, modulation_bkd, norm, layers);
        let [mut q, mut k, v] = projected.map(|x| x.reshape([batch, tokens, self.heads, width / self.heads]));
        if let Some((query_norm, key_norm)) = self.norms {
            q = exec.rms_norm(q, Some(query_norm), NORM_EPSILON);
            k = exec.rms_norm(k, Some(key_norm), NORM_EPSILON);
        }
        (q, k, v)
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
        let (mut q, mut k, v) = self.projection.forward(exec, modulated, norm);
        if let Some(rotary) = &self.rotary {
            q = exec.rotary(q, &rotary.cos, &rotary.sin);
            k = exec.rotary(k, &rotary.cos, &rotary.sin);
        }
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
