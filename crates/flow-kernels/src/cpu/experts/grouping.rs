//! Tokens in the order of their experts, and back.

use crate::host::sum::sum_pairs;
use crate::host::threads;
use burn::backend::{DispatchTensor, TensorMetadata};
use flow_core::cpu::{CpuTensor, from_ints, from_vec, read_ints};
use flow_core::ops::Grouping;
use flow_core::{RawTensor, autograd};
use std::sync::Arc;

/// See [`ExpertOps::group`](flow_core::ExpertOps::group).
pub(super) fn group(choices: &RawTensor, experts: usize) -> Grouping {
    let choices = read_ints(choices);
    let mut offsets = vec![0i64; experts + 1];
    for choice in &choices {
        let Some(end) = usize::try_from(*choice)
            .ok()
            .and_then(|choice| offsets.get_mut(choice + 1))
        else {
            panic!("expert {choice} of {experts}");
        };
        *end += 1;
    }
    for expert in 0..experts {
        offsets[expert + 1] += offsets[expert];
    }
    let mut next = offsets.clone();
    let (mut slots, mut rows) = (vec![0; choices.len()], vec![0; choices.len()]);
    for (slot, choice) in choices.iter().enumerate() {
        let row = &mut next[*choice as usize];
        rows[slot] = *row;
        slots[*row as usize] = slot as i64;
        *row += 1;
    }
    let count = [choices.len()];
    Grouping {
        slots: from_ints(slots, &count),
        rows: from_ints(rows, &count),
        offsets: from_ints(offsets, &[experts + 1]),
    }
}

/// Indices as the host has them.
pub(super) fn indices(tensor: &RawTensor) -> Vec<usize> {
    read_ints(tensor)
        .into_iter()
        .map(|index| index as usize)
        .collect()
}

/// `count` rows of `columns` values, each made by `task(row, values)`.
fn build_rows(count: usize, columns: usize, task: impl Fn(usize, &mut [f32]) + Send + Sync) -> Vec<f32> {
    let per_piece = threads::rows_per_piece(columns);
    threads::build_zeros(count * columns, per_piece * columns, |index, values| {
        let rows = values.chunks_exact_mut(columns.max(1)).enumerate();
        rows.for_each(|(row, values)| task(index * per_piece + row, values));
    })
}

fn row(values: &[f32], row: usize, columns: usize) -> &[f32] {
    &values[row * columns..][..columns]
}

/// See [`ExpertOps::permute`](flow_core::ExpertOps::permute).
pub(super) fn permute(x: &DispatchTensor, grouping: &Grouping) -> DispatchTensor {
    let (slots, rows) = (indices(&grouping.slots), indices(&grouping.rows));
    autograd::apply("permute", &[x], |inputs, _| {
        let x = CpuTensor::read(&inputs[0]);
        let (tokens, columns) = x.rows_and_columns();
        let top_k = slots.len().checked_div(tokens).unwrap_or(1);
        let sorted = build_rows(slots.len(), columns, |at, to| {
            to.copy_from_slice(row(x.values(), slots[at] / top_k, columns));
        });
        let output = from_vec(sorted, &[slots.len(), columns]);
        let shape = x.shape().to_vec();
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let gradient = CpuTensor::read(incoming.gradient());
            let dx = build_rows(tokens, columns, |token, dx| {
                for choice in 0..top_k {
                    let gradient = row(gradient.values(), rows[token * top_k + choice], columns);
                    dx.iter_mut().zip(gradient).for_each(|(d, g)| *d += g);
                }
            });
            vec![Some(from_vec(dx, &shape))]
        });
        (output, backward)
    })
}

/// See [`ExpertOps::combine`](flow_core::ExpertOps::combine).
pub(super) fn combine(y: &DispatchTensor, weights: &DispatchTensor, grouping: &Grouping) -> DispatchTensor {
    let (slots, rows) = (indices(&grouping.slots), indices(&grouping.rows));
    autograd::apply("combine", &[y, weights], |inputs, _| {
        let (y, weights) = (CpuTensor::read(&inputs[0]), CpuTensor::read(&inputs[1]));
        let columns = y.rows_and_columns().1;
        let [batch, tokens, top_k] = *weights.shape() else {
            panic!("weights of experts of {:?}, three axes expected", weights.shape())
        };
        let combined = build_rows(batch * tokens, columns, |token, out| {
            let slots = token * top_k..(token + 1) * top_k;
            for (at, weight) in rows[slots.clone()].iter().zip(&weights.values()[slots]) {
                let y = row(y.values(), *at, columns);
                out.iter_mut().zip(y).for_each(|(out, y)| *out += weight * y);
            }
        });
        let output = from_vec(combined, &[batch, tokens, columns]);
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let gradient = CpuTensor::read(incoming.gradient());
            let of_slot = |slot: usize| row(gradient.values(), slot / top_k, columns);
            let dy = incoming.wanted[0].then(|| {
                let dy = build_rows(slots.len(), columns, |at, dy| {
                    let weight = weights.values()[slots[at]];
                    dy.iter_mut()
                        .zip(of_slot(slots[at]))
                        .for_each(|(d, g)| *d = weight * g);
                });
                from_vec(dy, y.shape())
            });
            let dweights = incoming.wanted[1].then(|| {
                let slots = (0..rows.len())
                    .map(|slot| sum_pairs(row(y.values(), rows[slot], columns), of_slot(slot), |y, g| y * g));
                from_vec(slots.collect(), weights.shape())
            });
            vec![dy, dweights]
        });
        (output, backward)
    })
}

/// Number of values along the first axis.
pub(super) fn first_axis(tensor: &RawTensor) -> usize {
    tensor.shape().to_vec()[0]
}
