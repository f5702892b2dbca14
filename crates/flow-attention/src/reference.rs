//! Attention as its formula reads, in f64, forward and backward: what other backends are held against.
//!
//! `s = scale · q kᵀ + bias`, `p = softmax(s)`, `o = p v`; backward with `D = Σ do · o` per query (Dao 2023, arXiv:2307.08691,
//! section 2.3): `dv = pᵀ do`, `ds = p (do vᵀ - D)`, `dq = scale · ds k`, `dk = scale · dsᵀ q`. Every sum runs in the
//! order of its index.

use crate::cpu::on_the_host;
use crate::node::through;
use burn::backend::DispatchTensor;
use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::ops::Stash;
use flow_core::{
    Attended, AttentionBackend, AttentionCall, AttentionCapability, KeyValue, RawTensor, Refusal, autograd,
};
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
    /// A head of a tensor `[B, T, H, D]`.
    fn of(tensor: &CpuTensor, [sample, head]: [usize; 2]) -> Self {
        let [_, tokens, heads, channels] = tensor.shape() else {
            unreachable!("the call was checked with its operands")
        };
        let row = |token| ((sample * tokens + token) * heads + head) * channels;
        let values = (0..*tokens).flat_map(|token| &tensor.values()[row(token)..][..*channels]);
        Self {
            values: values.map(|value| f64::from(*value)).collect(),
            channels: *channels,
        }
    }

    fn zeros(tokens: usize, channels: usize) -> Self {
        Self {
            values: vec![0.0; tokens * channels],
            channels,
        }
    }

    /// The rows of `self`, then those of `other`.
    fn then(mut self, other: Self) -> Self {
        self.values.extend(other.values);
        self
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

/// Tokens from `first` on of heads of all samples, as one tensor of `shape`, `[B, T, H, D]`.
fn gathered(heads: &[Rows], first: usize, shape: [usize; 4]) -> RawTensor {
    let [batch, tokens, count, _] = shape;
    let mut values = Vec::with_capacity(shape.iter().product());
    for sample in 0..batch {
        for token in first..first + tokens {
            for head in 0..count {
                let row = heads[sample * count + head].row(token);
                values.extend(row.iter().map(|value| *value as f32));
            }
        }
    }
    from_vec(values, &shape)
}

/// One head of queries and the keys and values it reads, both parts in one.
struct Head<'a> {
    call: &'a AttentionCall,
    sample: usize,
    /// What is added to the scores, by distance.
    bias: Option<Vec<f64>>,
    q: Rows,
    k: Rows,
    v: Rows,
}

impl<'a> Head<'a> {
    fn new(call: &'a AttentionCall, operands: &[CpuTensor], index: usize) -> Self {
        let (sample, head) = (index / call.heads, index % call.heads);
        let kv_head = head / (call.heads / call.kv_heads);
        let both = |which: usize| {
            let none = Rows::zeros(0, call.head_dim);
            let parts = operands[1..].iter().skip(which).step_by(2);
            parts.fold(none, |rows, part| rows.then(Rows::of(part, [sample, kv_head])))
        };
        let bias = call.bias.as_ref().map(|bias| {
            let (bias, distances) = (
                CpuTensor::read(bias.values()),
                call.queries + call.key_count() - 1,
            );
            let of_head = &bias.values()[head * distances..][..distances];
            of_head.iter().map(|value| f64::from(*value)).collect()
        });
        Self {
            call,
            sample,
            bias,
            q: Rows::of(&operands[0], [sample, head]),
            k: both(0),
            v: both(1),
        }
    }

    /// The keys that `query` sees, and its scores with them.
    fn scores(&self, query: usize) -> Vec<(usize, f64)> {
        let mask = self.call.mask.as_ref().map(|mask| {
            mask.bind(self.call.sizes())
                .expect("the call was checked with its mask")
        });
        let scale = f64::from(self.call.scale);
        (0..self.call.key_count())
            .filter(|key| mask.is_none_or(|mask| mask.allows(self.sample, query, *key)))
            .map(|key| {
                let bias = self
                    .bias
                    .as_ref()
                    .map(|bias| bias[key + self.call.queries - 1 - query]);
                let score = scale * dot(self.q.row(query), self.k.row(key));
                (key, score + bias.unwrap_or(0.0))
            })
            .collect()
    }

    /// Output, and the logarithm of the sum of exponentials of each query.
    fn forward(&self) -> (Rows, Vec<f64>) {
        let queries = self.call.queries;
        let mut output = Rows::zeros(queries, self.call.head_dim);
        let mut lse = Vec::with_capacity(queries);
        for query in 0..queries {
            let scores = self.scores(query);
            if scores.is_empty() {
                lse.push(f64::INFINITY);
                continue;
            }
            let top = scores
                .iter()
                .map(|(_, score)| *score)
                .fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|(_, score)| libm::exp(score - top)).sum();
            let log_sum = top + libm::log(sum);
            for (key, score) in scores {
                output.add(query, libm::exp(score - log_sum), self.v.row(key));
            }
            lse.push(log_sum);
        }
        (output, lse)
    }

    /// Adds the gradients of keys and values to `dk` and `dv`; gives that of queries.
    fn backward(&self, incoming: &Rows, [dk, dv]: [&mut Rows; 2]) -> Rows {
        let (output, lse) = self.forward();
        let mut dq = Rows::zeros(self.call.queries, self.call.head_dim);
        let scale = f64::from(self.call.scale);
        for (query, log_sum) in lse.iter().enumerate() {
            let d_out = incoming.row(query);
            let mean = dot(d_out, output.row(query));
            for (key, score) in self.scores(query) {
                let probability = libm::exp(score - log_sum);
                let d_score = scale * probability * (dot(d_out, self.v.row(key)) - mean);
                dq.add(query, d_score, self.k.row(key));
                dk.add(key, d_score, self.q.row(query));
                dv.add(key, probability, d_out);
            }
        }
        dq
    }
}

/// Gradients of all operands, those that are wanted.
fn gradients(
    call: &AttentionCall,
    operands: &[CpuTensor],
    gradient: &CpuTensor,
    wanted: &[bool],
) -> Vec<Option<RawTensor>> {
    let group = call.heads / call.kv_heads;
    // One task for the heads that share keys, so that their sums have one order.
    let done: Vec<(Vec<Rows>, [Rows; 2])> = (0..call.batch * call.kv_heads)
        .into_par_iter()
        .map(|index| {
            let [mut dk, mut dv] = [0, 1].map(|_| Rows::zeros(call.key_count(), call.head_dim));
            let heads = index * group..(index + 1) * group;
            let dq = heads.map(|index| {
                let head = Head::new(call, operands, index);
                let incoming = Rows::of(gradient, [index / call.heads, index % call.heads]);
                head.backward(&incoming, [&mut dk, &mut dv])
            });
            (dq.collect(), [dk, dv])
        })
        .collect();
    let (dq, of_keys): (Vec<Vec<Rows>>, Vec<[Rows; 2]>) = done.into_iter().unzip();
    let (dk, dv): (Vec<Rows>, Vec<Rows>) = of_keys.into_iter().map(|[dk, dv]| (dk, dv)).unzip();
    let dq: Vec<Rows> = dq.into_iter().flatten().collect();
    let give = |index: usize| match index {
        0 => gathered(&dq, 0, call.query_shape()),
        _ => {
            let (part, rows) = ((index - 1) / 2, if index % 2 == 1 { &dk } else { &dv });
            gathered(rows, part * call.keys[0], call.key_shape(part))
        }
    };
    wanted
        .iter()
        .enumerate()
        .map(|(index, wanted)| wanted.then(|| give(index)))
        .collect()
}

impl AttentionBackend for ReferenceAttention {
    fn name(&self) -> &str {
        "reference"
    }

    fn capability(&self) -> AttentionCapability {
        AttentionCapability {
            bias: true,
            ..AttentionCapability::HOST
        }
    }

    fn kernel(&self, call: &AttentionCall) -> Result<String, Refusal> {
        on_the_host(call)?;
        Ok(self.name().into())
    }

    // As the formula reads, one head of one sample after another.
    fn is_row_independent(&self) -> bool {
        true
    }

    fn attend(
        &self,
        stash: &dyn Stash,
        q: &DispatchTensor,
        parts: &[KeyValue<'_>],
        call: &AttentionCall,
    ) -> Result<Attended, Refusal> {
        on_the_host(call)?;
        Ok(through(stash, q, parts, |inputs| {
            let operands: Arc<[CpuTensor]> = inputs.iter().map(CpuTensor::read).collect();
            let again = (operands.clone(), call.clone());
            let compute = move || {
                let heads = (0..call.batch * call.heads).into_par_iter();
                let done: Vec<(Rows, Vec<f64>)> = heads
                    .map(|head| Head::new(call, &operands, head).forward())
                    .collect();
                let (outputs, lse): (Vec<Rows>, Vec<Vec<f64>>) = done.into_iter().unzip();
                let lse = lse.concat().into_iter().map(|value| value as f32).collect();
                [
                    gathered(&outputs, 0, call.query_shape()),
                    from_vec(lse, &[call.batch, call.heads, call.queries]),
                ]
            };
            let backward = move |_| -> autograd::Backward {
                Arc::new(move |incoming| {
                    let (operands, call) = &again;
                    let gradient = CpuTensor::read(incoming.gradient());
                    gradients(call, operands, &gradient, incoming.wanted)
                })
            };
            (compute, backward)
        }))
    }
}
