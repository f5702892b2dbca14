//! Attention of one head over the pixels of a picture.

#[cfg(test)]
mod tests;

use crate::layers::Place;
use burn::tensor::{FloatDType, Tensor};
use flow_core::ops::attention::{AttentionCall, AttentionSpec, KeyValue};

/// Scores that are held at a time where attention is composed.
const SCORES: usize = 1 << 26;

/// `softmax(q kᵀ / sqrt(C)) v` of `[B, S, C]`, by the plan's backend, or by the convolutions' own where the backend does not take so many
/// channels.
pub(crate) fn attention(at: Place<'_>, q: Tensor<3>, k: Tensor<3>, v: Tensor<3>) -> Tensor<3> {
    let exec = at.exec;
    let [batch, tokens, channels] = q.dims();
    let heads = [&q, &k, &v].map(|it| it.clone().reshape([batch, tokens, 1, channels]).into_dispatch());
    let parts = [KeyValue {
        k: &heads[1],
        v: &heads[2],
    }];
    let call = AttentionCall::new(&heads[0], &parts, &AttentionSpec::default());
    if call.is_ok_and(|call| exec.backends().attention.kernel(&call).is_ok()) {
        let [q, k, v] = heads.map(Tensor::<4>::from_dispatch);
        return exec.attention(q, k, v).reshape([batch, tokens, channels]);
    }
    let [q, k, v] = [q, k, v].map(Tensor::into_dispatch);
    Tensor::from_dispatch(at.convolutions.attention([&q, &k, &v]))
}

/// [`composed`], so many queries at a time that their scores are few.
pub(crate) fn in_strips(q: Tensor<3>, k: Tensor<3>, v: Tensor<3>) -> Tensor<3> {
    let [batch, tokens, _] = q.dims();
    let queries = (SCORES / (batch * tokens).max(1)).clamp(1, tokens.max(1));
    composed(q, k, v, queries)
}

/// The same of Burn's products and elementwise operations, in f32, so many queries at a time.
fn composed(q: Tensor<3>, k: Tensor<3>, v: Tensor<3>, queries: usize) -> Tensor<3> {
    let [_, tokens, channels] = q.dims();
    let scale = 1.0 / (channels as f32).sqrt();
    let stored = q.dtype();
    let [q, k, v] = [q, k, v].map(|it| it.cast(FloatDType::F32));
    let strips = (0..tokens).step_by(queries).map(|first| {
        let q = q.clone().narrow(1, first, queries.min(tokens - first)) * scale;
        let scores = q.matmul(k.clone().swap_dims(1, 2));
        let exponentials = (scores.clone() - scores.max_dim(2).detach()).exp();
        exponentials.clone().matmul(v.clone()) / exponentials.sum_dim(2)
    });
    Tensor::cat(strips.collect(), 1).cast(FloatDType::from(stored))
}
