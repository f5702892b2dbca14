//! One block of either of CLIP's towers.

use super::config::ClipActivation;
use crate::parts::{LayerNorm, heads_of, linear, side_by_side};
use burn::tensor::Tensor;
use flow_core::exec::{Block, Exec, Linear, RegionKind};
use flow_core::params::LayoutBuilder;
use flow_core::{Activation, AttentionSpec};
use std::sync::Arc;

/// What a tower's blocks have in common.
#[derive(Clone, Debug)]
pub(super) struct BlockShape {
    /// Channels.
    pub width: usize,
    /// Channels within the feed-forward parts.
    pub inner: usize,
    /// Attention heads.
    pub heads: usize,
    /// Between the feed-forward layers.
    pub activation: ClipActivation,
    /// Added to the variance in layer norms.
    pub epsilon: f32,
    /// Which token sees which.
    pub attention: AttentionSpec,
}

/// Sharpness of [`ClipActivation::QuickGelu`].
const QUICK: f32 = 1.702;

/// Attention, then a feed-forward part, each after a layer norm.
#[derive(Debug)]
pub(super) struct ClipBlock {
    attention_norm: LayerNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    inner_norm: LayerNorm,
    up: Linear,
    down: Linear,
    heads: usize,
    activation: ClipActivation,
    epsilon: f32,
    attention: AttentionSpec,
}

impl ClipBlock {
    pub fn new(mut parts: LayoutBuilder<'_>, shape: &BlockShape) -> Self {
        let (width, inner) = (shape.width, shape.inner);
        let mut attention = parts.under("self_attn");
        let [key, value, query, out] =
            ["k_proj", "v_proj", "q_proj", "out_proj"].map(|name| linear(&mut attention, name, width, width));
        Self {
            attention_norm: LayerNorm::new(&mut parts, "layer_norm1", width),
            query,
            key,
            value,
            out,
            up: linear(&mut parts, "mlp.fc1", width, inner),
            down: linear(&mut parts, "mlp.fc2", inner, width),
            inner_norm: LayerNorm::new(&mut parts, "layer_norm2", width),
            heads: shape.heads,
            activation: shape.activation,
            epsilon: shape.epsilon,
            attention: shape.attention.clone(),
        }
    }

    fn attend(self: &Arc<Self>, exec: &Exec<'_>, x_bsd: Tensor<3>) -> Tensor<3> {
        let normed = self.attention_norm.forward(exec, x_bsd.clone(), self.epsilon);
        let [q, k, v] = [&self.query, &self.key, &self.value]
            .map(|layer| heads_of(exec, layer, normed.clone(), self.heads));
        let attended = exec.attention_with(q, [(k, v)], &self.attention);
        x_bsd + exec.linear(&self.out, side_by_side(attended))
    }

    fn feed_forward(self: &Arc<Self>, exec: &Exec<'_>, x_bsd: Tensor<3>) -> Tensor<3> {
        let normed = self.inner_norm.forward(exec, x_bsd.clone(), self.epsilon);
        let inner = exec.linear(&self.up, normed);
        let inner = match self.activation {
            // x · sigmoid(a x) = silu(a x) / a.
            ClipActivation::QuickGelu => exec
                .activation(inner.mul_scalar(QUICK), Activation::Silu)
                .div_scalar(QUICK),
            ClipActivation::Gelu => burn::tensor::activation::gelu(inner),
        };
        x_bsd + exec.linear(&self.down, inner)
    }
}

impl Block for ClipBlock {
    /// The tokens, and what the block before was given.
    type Carried = (Tensor<3>, Tensor<3>);
    type Shared = ();

    fn forward(self: &Arc<Self>, exec: &Exec<'_>, (x_bsd, _): Self::Carried, (): ()) -> Self::Carried {
        let attended = exec.region(RegionKind::Attention, self, x_bsd.clone(), Self::attend);
        (
            exec.region(RegionKind::Mlp, self, attended, Self::feed_forward),
            x_bsd,
        )
    }
}
