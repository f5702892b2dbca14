//! Attention of Burn's tensor operations, on any device: for calls that need what no kernel of the plan's backend has.
//!
//! It holds the scores of all pairs of tokens in f32, so it is for text encoders, whose sequences are short, and not for
//! latents.

use super::{AttentionCall, KeyValue};
use burn::backend::DispatchTensor;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

/// Name in logs and manifests.
pub(crate) const NAME: &str = "composed";

/// What is added to a score that the mask forbids: finite, so that a query that sees no key gives no NaN.
const FORBIDDEN: f32 = -1e30;

/// The output `[B, S, H, D]` of `call`, whose operands these are; differentiable in all of them.
pub(crate) fn attend(q: &DispatchTensor, parts: &[KeyValue<'_>], call: &AttentionCall) -> DispatchTensor {
    let device = Tensor::<4>::from_dispatch(q.clone()).device();
    let q_bhsd = heads_first(q);
    let [k_bhtd, v_bhtd] = [
        joined(parts.iter().map(|part| part.k), call),
        joined(parts.iter().map(|part| part.v), call),
    ];
    let mut scores = q_bhsd.mul_scalar(call.scale).matmul(k_bhtd.swap_dims(2, 3));
    if call.bias.is_some() {
        scores = scores + bias(call, &device);
    }
    let allowed = allowed(call, &device);
    if let Some(allowed) = &allowed {
        scores = scores + (allowed.clone() - 1.0).mul_scalar(-FORBIDDEN);
    }
    let top = scores.clone().max_dim(3);
    let mut weights = (scores - top).exp();
    if let Some(allowed) = allowed {
        weights = weights * allowed;
    }
    // At least 1 where a query sees any key, and 0 where it sees none.
    let sum = weights.clone().sum_dim(3).clamp_min(0.5);
    let output = (weights / sum).matmul(v_bhtd).swap_dims(1, 2);
    in_type(output, call.dtype).into_dispatch()
}

fn in_type(tensor: Tensor<4>, dtype: DType) -> Tensor<4> {
    if tensor.dtype() == dtype {
        return tensor;
    }
    tensor.cast(dtype)
}

/// `[B, T, H, D]` as `[B, H, T, D]` in f32.
fn heads_first(tensor: &DispatchTensor) -> Tensor<4> {
    in_type(Tensor::<4>::from_dispatch(tensor.clone()), DType::F32).swap_dims(1, 2)
}

/// Keys or values of all parts, `[B, H, T, D]`: each head as often as heads of queries read it.
fn joined<'a>(parts: impl Iterator<Item = &'a DispatchTensor>, call: &AttentionCall) -> Tensor<4> {
    let parts: Vec<Tensor<4>> = parts.map(heads_first).collect();
    let joined = Tensor::cat(parts, 2);
    let ([batch, kv_heads, tokens, channels], group) = (joined.dims(), call.heads / call.kv_heads);
    if group == 1 {
        return joined;
    }
    joined
        .reshape([batch, kv_heads, 1, tokens, channels])
        .expand([batch, kv_heads, group, tokens, channels])
        .reshape([batch, call.heads, tokens, channels])
}

/// The bias of all pairs, `[1, H, S, T]`.
fn bias(call: &AttentionCall, device: &Device) -> Tensor<4> {
    let bias = call.bias.as_ref().expect("asked for where there is one");
    let values = Tensor::<2>::from_dispatch(bias.values().clone());
    let (queries, keys) = (call.queries, call.key_count());
    let of_pairs =
        (0..queries).flat_map(|query| (0..keys).map(move |key| (key + queries - 1 - query) as i64));
    let index = TensorData::new(of_pairs.collect::<Vec<i64>>(), [queries * keys]);
    let pairs = values.select(1, Tensor::<1, Int>::from_data(index, device));
    in_type(pairs.reshape([1, call.heads, queries, keys]), DType::F32)
}

/// 1 where a query sees a key and 0 where it does not, `[B or 1, 1, S, T]`.
fn allowed(call: &AttentionCall, device: &Device) -> Option<Tensor<4>> {
    let mask = call.mask.as_ref()?;
    let bound = mask.bind(call.sizes()).ok()?;
    let samples = if mask.depends_on_batch() { call.batch } else { 1 };
    let (queries, keys) = (call.queries, call.key_count());
    let mut values = Vec::with_capacity(samples * queries * keys);
    for sample in 0..samples {
        for query in 0..queries {
            values.extend((0..keys).map(|key| f32::from(u8::from(bound.allows(sample, query, key)))));
        }
    }
    let values = TensorData::new(values, [samples, 1, queries, keys]);
    Some(Tensor::from_data(values, device))
}
