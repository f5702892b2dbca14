//! Which experts a token goes to, and how evenly tokens load them.

use crate::host::math;
use crate::host::sum::{sum, sum_pairs};
use burn::backend::DispatchTensor;
use flow_core::cpu::{CpuTensor, from_ints, from_vec, read_ints};
use flow_core::ops::{Routed, Stash};
use flow_core::{RawTensor, autograd};
use std::sync::Arc;

/// What the sizes are.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    tokens: usize,
    experts: usize,
    top_k: usize,
}

/// See [`ExpertOps::route`](flow_core::ExpertOps::route).
pub(super) fn route(stash: &dyn Stash, logits: &DispatchTensor, top_k: usize, normalize: bool) -> Routed {
    let mut chosen: Option<RawTensor> = None;
    let outputs = autograd::apply_many("route", &[logits], |inputs, _| {
        let logits = CpuTensor::read(&inputs[0]);
        let [batch, tokens, experts] = *logits.shape() else {
            panic!("router logits of {:?}, three axes expected", logits.shape())
        };
        let sizes = Sizes {
            batch,
            tokens,
            experts,
            top_k,
        };
        let scores = softmax(logits.values(), experts);
        let shape = [batch, tokens, top_k];
        let mut choices = stash.through("router", &mut || {
            let rows = scores.chunks_exact(experts);
            let choices = rows.flat_map(|row| largest(row, top_k)).map(|index| index as i64);
            vec![from_ints(choices.collect(), &shape)]
        });
        let choices = choices.pop().expect("a router keeps one tensor");
        let indices: Vec<usize> = read_ints(&choices)
            .into_iter()
            .map(|index| index as usize)
            .collect();
        chosen = Some(choices);

        let weights = weights(&scores, &indices, sizes, normalize);
        let loads = loads(&indices, sizes);
        let balance = balance(&scores, &loads, sizes);
        let outputs = vec![from_vec(weights, &shape), from_vec(balance, &[batch])];
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let read = |index: usize| incoming.output_gradients[index].as_ref().map(CpuTensor::read);
            let (of_weights, of_balance) = (read(0), read(1));
            let mut dscores = vec![0.0; scores.len()];
            if let Some(gradient) = &of_weights {
                add_weights_gradient(
                    &mut dscores,
                    &scores,
                    &indices,
                    gradient.values(),
                    sizes,
                    normalize,
                );
            }
            if let Some(gradient) = &of_balance {
                let rows = dscores.chunks_exact_mut(experts).enumerate();
                for (row, dscores) in rows {
                    let sample = row / tokens;
                    let loads = &loads[sample * experts..][..experts];
                    for (d, load) in dscores.iter_mut().zip(loads) {
                        *d += gradient.values()[sample] * load / tokens as f32;
                    }
                }
            }
            // The softmax's own gradient, in place.
            for (d, p) in dscores
                .chunks_exact_mut(experts)
                .zip(scores.chunks_exact(experts))
            {
                let mean = sum_pairs(d, p, |d, p| d * p);
                d.iter_mut().zip(p).for_each(|(d, p)| *d = p * (*d - mean));
            }
            vec![Some(from_vec(dscores, &[batch, tokens, experts]))]
        });
        (outputs, backward)
    });
    let [weights, balance] = outputs.try_into().expect("two outputs were given");
    Routed {
        weights,
        experts: chosen.expect("the forward ran"),
        balance,
    }
}

fn softmax(logits: &[f32], experts: usize) -> Vec<f32> {
    let mut scores = logits.to_vec();
    for row in scores.chunks_exact_mut(experts) {
        // `max` passes over NaN, which the exponential then shows.
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row.iter_mut()
            .for_each(|value| *value = math::exp(*value - largest));
        let total = sum(row, |value| value);
        row.iter_mut().for_each(|value| *value /= total);
    }
    scores
}

/// Places of the `count` largest values, largest first, of equal ones the first. NaN comes last.
fn largest(row: &[f32], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    let key = |index: usize| {
        if row[index].is_nan() {
            f32::NEG_INFINITY
        } else {
            row[index]
        }
    };
    // Stable, so equal values stay in order.
    order.sort_by(|a, b| key(*b).total_cmp(&key(*a)));
    order.truncate(count);
    order
}

/// The scores of a token's choices and their sum.
fn chosen<'a>(
    scores: &'a [f32],
    indices: &'a [usize],
    sizes: Sizes,
) -> impl Iterator<Item = (usize, Vec<f32>, f32)> + 'a {
    let rows = indices.chunks_exact(sizes.top_k).enumerate();
    rows.map(move |(token, indices)| {
        let row = &scores[token * sizes.experts..][..sizes.experts];
        let scores: Vec<f32> = indices.iter().map(|index| row[*index]).collect();
        let total = scores.iter().sum();
        (token, scores, total)
    })
}

fn weights(scores: &[f32], indices: &[usize], sizes: Sizes, normalize: bool) -> Vec<f32> {
    let rows = chosen(scores, indices, sizes);
    rows.flat_map(|(_, scores, total)| {
        let total = if normalize { total } else { 1.0 };
        scores.into_iter().map(move |score| score / total)
    })
    .collect()
}

fn add_weights_gradient(
    dscores: &mut [f32],
    scores: &[f32],
    indices: &[usize],
    gradient: &[f32],
    sizes: Sizes,
    normalize: bool,
) {
    for (token, scores, total) in chosen(scores, indices, sizes) {
        let gradient = &gradient[token * sizes.top_k..][..sizes.top_k];
        let indices = &indices[token * sizes.top_k..][..sizes.top_k];
        let (mean, total) = if normalize {
            let pairs = gradient.iter().zip(&scores);
            (pairs.map(|(g, score)| g * (score / total)).sum::<f32>(), total)
        } else {
            (0.0, 1.0)
        };
        for (index, g) in indices.iter().zip(gradient) {
            dscores[token * sizes.experts + index] += (g - mean) / total;
        }
    }
}

/// `E / (K · S) · count` of each expert, per sample: 1 for an even load.
fn loads(indices: &[usize], sizes: Sizes) -> Vec<f32> {
    let per_sample = sizes.tokens * sizes.top_k;
    let mut counts = vec![0u32; sizes.batch * sizes.experts];
    for (slot, index) in indices.iter().enumerate() {
        counts[slot / per_sample.max(1) * sizes.experts + index] += 1;
    }
    let even = sizes.experts as f32 / per_sample as f32;
    counts.into_iter().map(|count| count as f32 * even).collect()
}

fn balance(scores: &[f32], loads: &[f32], sizes: Sizes) -> Vec<f32> {
    let samples = scores.chunks_exact((sizes.tokens * sizes.experts).max(1));
    samples
        .zip(loads.chunks_exact(sizes.experts))
        .map(|(scores, loads)| {
            let tokens = scores.chunks_exact(sizes.experts);
            let total: f32 = tokens
                .map(|scores| sum_pairs(scores, loads, |p, load| p * load))
                .sum();
            total / sizes.tokens as f32
        })
        .collect()
}
