//! Attention as its formula reads, in f64, forward and backward: what other backends are held against.
//!
//! `s = scale · q kᵀ`, `p = softmax(s)`, `o = p v`; backward with `D = Σ do · o` per query (Dao 2023, arXiv:2307.08691,
//! section 2.3): `dv = pᵀ do`, `ds = p (do vᵀ - D)`, `dq = scale · ds k`, `dk = scale · dsᵀ q`. Every sum runs in the
//! order of its index.

use burn::backend::DispatchTensor;
use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::exec::Stash;
use flow_core::{AttentionBackend, AttentionShape, Plain, op};
use rayon::prelude::*;
use std::sync::Arc;

/// Attention in f64 on the host, rounded to f32 at the end. Slow: one pass over all pairs of tokens per sum.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReferenceAttention;

/// One head of one sample, `[tokens, channels]`.
#[derive(Clone, Debug)]
struct Rows {
    values: Vec<f64>,
    channels: usize,
}

impl Rows {
    /// The head `index` (sample times heads, plus head) of a `[B, S, H, D]` tensor.
    fn of(tensor: &CpuTensor, shape: &AttentionShape, index: usize, tokens: usize) -> Self {
        let (sample, head) = (index / shape.heads, index % shape.heads);
        let row = |token| ((sample * tokens + token) * shape.heads + head) * shape.head_dim;
        let values = (0..tokens).flat_map(|token| &tensor.values()[row(token)..][..shape.head_dim]);
        Self {
            values: values.map(|value| f64::from(*value)).collect(),
            channels: shape.head_dim,
        }
    }

    fn zeros(tokens: usize, channels: usize) -> Self {
        Self {
            values: vec![0.0; tokens * channels],
            channels,
        }
    }

    fn row(&self, token: usize) -> &[f64] {
        &self.values[token * self.channels..][..self.channels]
    }

    fn add(&mut self, token: usize, factor: f64, row: &[f64]) {
        let to = &mut self.values[token * self.channels..][..self.channels];
        to.iter_mut()
            .zip(row)
            .for_each(|(to, value)| *to += factor * value);
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Heads of all samples as one `[B, S, H, D]` tensor.
fn gathered(heads: &[Rows], shape: &AttentionShape, tokens: usize) -> Plain {
    let mut values = Vec::with_capacity(shape.batch * tokens * shape.heads * shape.head_dim);
    for sample in 0..shape.batch {
        for token in 0..tokens {
            for head in 0..shape.heads {
                let row = heads[sample * shape.heads + head].row(token);
                values.extend(row.iter().map(|value| *value as f32));
            }
        }
    }
    from_vec(values, &[shape.batch, tokens, shape.heads, shape.head_dim])
}

/// Output, and the logarithm of the sum of exponentials of each query.
fn forward(shape: &AttentionShape, q: &Rows, k: &Rows, v: &Rows) -> (Rows, Vec<f64>) {
    let mut output = Rows::zeros(shape.queries, shape.head_dim);
    let mut lse = Vec::with_capacity(shape.queries);
    for query in 0..shape.queries {
        let scores: Vec<f64> = (0..shape.keys)
            .map(|key| f64::from(shape.scale) * dot(q.row(query), k.row(key)))
            .collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|score| libm::exp(score - top)).sum();
        let log_sum = top + libm::log(sum);
        for (key, score) in scores.iter().enumerate() {
            output.add(query, libm::exp(score - log_sum), v.row(key));
        }
        lse.push(log_sum);
    }
    (output, lse)
}

/// Gradients of `q`, `k` and `v`.
fn backward(shape: &AttentionShape, [q, k, v]: [&Rows; 3], incoming: &Rows) -> [Rows; 3] {
    let (output, lse) = forward(shape, q, k, v);
    let mut dq = Rows::zeros(shape.queries, shape.head_dim);
    let [mut dk, mut dv] = [0, 1].map(|_| Rows::zeros(shape.keys, shape.head_dim));
    let scale = f64::from(shape.scale);
    for (query, log_sum) in lse.iter().enumerate() {
        let d_out = incoming.row(query);
        let mean = dot(d_out, output.row(query));
        for key in 0..shape.keys {
            let score = scale * dot(q.row(query), k.row(key));
            let probability = libm::exp(score - log_sum);
            let d_score = scale * probability * (dot(d_out, v.row(key)) - mean);
            dq.add(query, d_score, k.row(key));
            dk.add(key, d_score, q.row(query));
            dv.add(key, probability, d_out);
        }
    }
    [dq, dk, dv]
}

impl AttentionBackend for ReferenceAttention {
    fn name(&self) -> &str {
        "reference"
    }

    fn supports(&self, shape: &AttentionShape) -> Result<(), String> {
        crate::CpuAttention.supports(shape)
    }

    // As the formula reads, one head of one sample after another.
    fn is_row_independent(&self) -> bool {
        true
    }

    fn attention(
        &self,
        stash: &dyn Stash,
        q: &DispatchTensor,
        k: &DispatchTensor,
        v: &DispatchTensor,
        shape: &AttentionShape,
    ) -> DispatchTensor {
        let shape = *shape;
        let heads = shape.batch * shape.heads;
        op::apply("attention", &[q, k, v], |inputs, _| {
            let [q, k, v] = [0, 1, 2].map(|index| CpuTensor::read(&inputs[index]));
            let operands = move |head| {
                [
                    Rows::of(&q, &shape, head, shape.queries),
                    Rows::of(&k, &shape, head, shape.keys),
                    Rows::of(&v, &shape, head, shape.keys),
                ]
            };
            let kept = stash.through("attention", &mut || {
                let done: Vec<(Rows, Vec<f64>)> = (0..heads)
                    .into_par_iter()
                    .map(|head| {
                        let [q, k, v] = operands(head);
                        forward(&shape, &q, &k, &v)
                    })
                    .collect();
                let (outputs, lse): (Vec<Rows>, Vec<Vec<f64>>) = done.into_iter().unzip();
                let lse = lse.concat().into_iter().map(|value| value as f32).collect();
                vec![
                    gathered(&outputs, &shape, shape.queries),
                    from_vec(lse, &[shape.batch, shape.heads, shape.queries]),
                ]
            });
            let [output, _] = kept
                .try_into()
                .expect("attention keeps its output and the log-sum-exp");
            let backward: op::Backward = Arc::new(move |incoming| {
                let gradient = CpuTensor::read(incoming.gradient());
                let done: Vec<[Rows; 3]> = (0..heads)
                    .into_par_iter()
                    .map(|head| {
                        let [q, k, v] = &operands(head);
                        let incoming = Rows::of(&gradient, &shape, head, shape.queries);
                        backward(&shape, [q, k, v], &incoming)
                    })
                    .collect();
                let mut parts = [Vec::new(), Vec::new(), Vec::new()];
                for head in done {
                    parts
                        .iter_mut()
                        .zip(head)
                        .for_each(|(part, rows)| part.push(rows));
                }
                let tokens = [shape.queries, shape.keys, shape.keys];
                (parts.iter().zip(tokens).zip(incoming.wanted))
                    .map(|((part, tokens), wanted)| wanted.then(|| gathered(part, &shape, tokens)))
                    .collect()
            });
            (output, backward)
        })
    }
}
