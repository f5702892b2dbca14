//! One block of Qwen2.5's decoder.

use super::config::QwenConfig;
use crate::parts::{heads_of, linear, product, rms, side_by_side};
use burn::tensor::{Device, Tensor, TensorData};
use flow_core::exec::{Block, Exec, Linear, RegionKind};
use flow_core::ops::attention::Mask;
use flow_core::params::LayoutBuilder;
use flow_core::{Activation, AttentionSpec, Handle};
use std::sync::Arc;

/// Attention of grouped heads with rotary positions, then a gated feed-forward part, each after an RMS norm.
#[derive(Debug)]
pub(super) struct QwenBlock {
    attention_norm: Handle<1>,
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    inner_norm: Handle<1>,
    gate: Linear,
    up: Linear,
    down: Linear,
    heads: usize,
    kv_heads: usize,
    epsilon: f32,
}

impl QwenBlock {
    pub fn new(mut parts: LayoutBuilder<'_>, config: &QwenConfig) -> Self {
        let (width, inner, of_keys) = (config.width, config.inner, config.kv_heads * config.head_dim());
        let mut attention = parts.under("self_attn");
        let query = linear(&mut attention, "q_proj", width, width);
        let key = linear(&mut attention, "k_proj", width, of_keys);
        let value = linear(&mut attention, "v_proj", width, of_keys);
        let out = product(&mut attention, "o_proj", width, width);
        let mut dense = parts.under("mlp");
        let gate = product(&mut dense, "gate_proj", width, inner);
        let up = product(&mut dense, "up_proj", width, inner);
        let down = product(&mut dense, "down_proj", inner, width);
        Self {
            attention_norm: rms(&mut parts, "input_layernorm", width),
            query,
            key,
            value,
            out,
            inner_norm: rms(&mut parts, "post_attention_layernorm", width),
            gate,
            up,
            down,
            heads: config.heads,
            kv_heads: config.kv_heads,
            epsilon: config.epsilon,
        }
    }
}

/// Cosines and sines of the positions `0..S`, `[S, head_dim / 2]`.
#[derive(Clone, Debug)]
pub(super) struct Positions {
    cos: Tensor<2>,
    sin: Tensor<2>,
}

impl Positions {
    /// Of `tokens` tokens, as transformers computes them: frequencies and angles are rounded to f32 before their cosines are
    /// taken, which positions of some hundreds show.
    pub fn new(config: &QwenConfig, tokens: usize, device: &Device) -> Self {
        let pairs = config.head_dim() / 2;
        let frequency = |pair: usize| {
            let share = (2 * pair) as f32 / (2 * pairs) as f32;
            1.0 / libm::pow(config.theta, f64::from(share)) as f32
        };
        let frequencies: Vec<f32> = (0..pairs).map(frequency).collect();
        let angles = (0..tokens)
            .flat_map(|position| frequencies.iter().map(move |of| f64::from(position as f32 * of)));
        let angles: Vec<f64> = angles.collect();
        let table = |of: fn(f64) -> f64| {
            let values: Vec<f32> = angles.iter().map(|angle| of(*angle) as f32).collect();
            Tensor::from_data(TensorData::new(values, [tokens, pairs]), device)
        };
        Self {
            cos: table(libm::cos),
            sin: table(libm::sin),
        }
    }

    /// Turns `x_BSHD`, whose channels `i` and `i + D / 2` are a pair, and leaves the pairs side by side. Queries and keys are
    /// turned alike, so their products are what they were.
    fn turn(&self, exec: &Exec<'_>, x_bshd: Tensor<4>) -> Tensor<4> {
        let [batch, tokens, heads, channels] = x_bshd.dims();
        let pairs = x_bshd
            .reshape([batch, tokens, heads, 2, channels / 2])
            .swap_dims(3, 4);
        exec.rotary(
            pairs.reshape([batch, tokens, heads, channels]),
            &self.cos,
            &self.sin,
        )
    }
}

/// A block, and what its attention needs in a call besides tokens.
#[derive(Debug)]
pub(super) struct QwenCall {
    pub block: Arc<QwenBlock>,
    /// What hides padding and what comes after.
    pub mask: Arc<Mask>,
    pub positions: Positions,
}

impl QwenCall {
    fn attend(self: &Arc<Self>, exec: &Exec<'_>, x_bsd: Tensor<3>) -> Tensor<3> {
        let block = &*self.block;
        let normed = exec.rms_norm(x_bsd.clone(), Some(block.attention_norm), block.epsilon);
        let q = heads_of(exec, &block.query, normed.clone(), block.heads);
        let [k, v] =
            [&block.key, &block.value].map(|layer| heads_of(exec, layer, normed.clone(), block.kv_heads));
        let [q, k] = [q, k].map(|x| self.positions.turn(exec, x));
        let spec = AttentionSpec {
            mask: Some(self.mask.clone()),
            ..AttentionSpec::default()
        };
        let attended = exec.attention_with(q, [(k, v)], &spec);
        x_bsd + exec.linear(&block.out, side_by_side(attended))
    }

    fn feed_forward(self: &Arc<Self>, exec: &Exec<'_>, x_bsd: Tensor<3>) -> Tensor<3> {
        let block = &*self.block;
        let normed = exec.rms_norm(x_bsd.clone(), Some(block.inner_norm), block.epsilon);
        let gate = exec.linear_activated(&block.gate, normed.clone(), Activation::Silu);
        x_bsd + exec.linear(&block.down, gate * exec.linear(&block.up, normed))
    }
}

impl Block for QwenCall {
    type Carried = Tensor<3>;
    type Shared = ();

    fn forward(self: &Arc<Self>, exec: &Exec<'_>, x_bsd: Tensor<3>, (): ()) -> Tensor<3> {
        let attended = exec.region(RegionKind::Attention, self, x_bsd, Self::attend);
        exec.region(RegionKind::Mlp, self, attended, Self::feed_forward)
    }
}
