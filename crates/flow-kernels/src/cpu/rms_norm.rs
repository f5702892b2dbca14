//! RMS norm over the last axis (Zhang and Sennrich 2019, arXiv:1910.07467).

use crate::host::{
    math::vectorised,
    sum::{sum, sum_pairs},
    threads,
};
use burn::backend::DispatchTensor;
use flow_core::autograd;
use flow_core::cpu::{CpuTensor, from_vec};
use std::sync::Arc;

/// `x / sqrt(mean(x²) + epsilon) · weight`.
pub(crate) fn rms_norm(x: &DispatchTensor, weight: Option<&DispatchTensor>, epsilon: f32) -> DispatchTensor {
    let inputs: Vec<&DispatchTensor> = std::iter::once(x).chain(weight).collect();
    autograd::apply("rms_norm", &inputs, |inputs, _| {
        let x = CpuTensor::read(&inputs[0]);
        let weight = inputs.get(1).map(CpuTensor::read);
        let (rows, columns) = x.rows_and_columns();
        let per_piece = threads::rows_per_piece(columns);
        let values = threads::Pieces {
            length: x.values().len(),
            size: per_piece * columns,
        };
        let statistics = threads::Pieces {
            length: rows,
            size: per_piece,
        };
        let work = values.length;
        let (y, reciprocals) = threads::build_pair(
            values,
            statistics,
            work,
            threads::Start::Zeros,
            |index, y, reciprocals| {
                let weight = weight.as_ref().map(CpuTensor::values);
                let x = &x.values()[index * per_piece * columns..][..y.len()];
                let rows = x
                    .chunks_exact(columns)
                    .zip(y.chunks_exact_mut(columns))
                    .zip(reciprocals);
                vectorised(
                    #[inline(always)]
                    || {
                        for ((x, y), reciprocal) in rows {
                            *reciprocal = 1.0 / (sum(x, |x| x * x) / columns as f32 + epsilon).sqrt();
                            match weight {
                                Some(weight) => {
                                    for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                                        *y = x * *reciprocal * w;
                                    }
                                }
                                None => y.iter_mut().zip(x).for_each(|(y, x)| *y = x * *reciprocal),
                            }
                        }
                    },
                );
            },
        );
        let output = from_vec(y, x.shape());
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let gradient = CpuTensor::read(incoming.gradient());
            let weight = weight.as_ref();
            let dx = incoming.wanted[0].then(|| {
                from_vec(
                    input_gradient(
                        x.values(),
                        weight.map(CpuTensor::values),
                        &reciprocals,
                        gradient.values(),
                        columns,
                    ),
                    x.shape(),
                )
            });
            let mut gradients = vec![dx];
            if let Some(weight) = weight {
                let dweight = incoming.wanted[1].then(|| {
                    from_vec(
                        weight_gradient(x.values(), &reciprocals, gradient.values(), columns),
                        weight.shape(),
                    )
                });
                gradients.push(dweight);
            }
            gradients
        });
        (output, backward)
    })
}

fn input_gradient(
    x: &[f32],
    weight: Option<&[f32]>,
    reciprocals: &[f32],
    gradient: &[f32],
    columns: usize,
) -> Vec<f32> {
    let per_piece = threads::rows_per_piece(columns);
    threads::build_zeros(x.len(), per_piece * columns, |index, dx| {
        let start = index * per_piece;
        vectorised(
            #[inline(always)]
            || {
                for (row, dx) in dx.chunks_exact_mut(columns).enumerate() {
                    let at = (start + row) * columns..(start + row + 1) * columns;
                    let (x, gradient, reciprocal) = (&x[at.clone()], &gradient[at], reciprocals[start + row]);
                    match weight {
                        Some(weight) => dx
                            .iter_mut()
                            .zip(gradient.iter().zip(weight))
                            .for_each(|(d, (g, w))| *d = g * w),
                        None => dx.copy_from_slice(gradient),
                    }
                    let slope = sum_pairs(dx, x, |d, x| d * (x * reciprocal)) / columns as f32;
                    for (d, x) in dx.iter_mut().zip(x) {
                        *d = reciprocal * (*d - x * reciprocal * slope);
                    }
                }
            },
        );
    })
}

/// Summed over pieces of rows, then over the pieces in order.
fn weight_gradient(x: &[f32], reciprocals: &[f32], gradient: &[f32], columns: usize) -> Vec<f32> {
    let per_piece = threads::rows_per_piece(columns);
    let pieces = reciprocals.len().div_ceil(per_piece);
    let work = |index: usize, sums: &mut [f32]| {
        let rows = index * per_piece..((index + 1) * per_piece).min(reciprocals.len());
        vectorised(
            #[inline(always)]
            || {
                for row in rows {
                    let (x, gradient) = (
                        &x[row * columns..][..columns],
                        &gradient[row * columns..][..columns],
                    );
                    for (sum, (x, g)) in sums.iter_mut().zip(x.iter().zip(gradient)) {
                        *sum += g * (x * reciprocals[row]);
                    }
                }
            },
        );
    };
    let sums = threads::Pieces {
        length: pieces * columns,
        size: columns,
    };
    let partial = threads::build(sums, x.len(), threads::Start::Zeros, work);
    threads::sum_rows(&partial, columns)
}
