//! One step of a stochastic sampler, and the same step's log-probability in training, by the same functions.
//!
//! `mean = a x + b v`, `x_next = mean + c noise`, `log_prob = mean over N of -(x_next - mean)² · k + offset`, with
//! `a, b, c, k, offset` per row. Sums run over one row in f64 in an order that depends on its length only.

use crate::host::{math::vectorised, sum::sum_pairs_f64, threads};
use burn::backend::DispatchTensor;
use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::ops::{SdeOutputs, SdeStep};
use flow_core::{RawTensor, autograd};
use std::sync::Arc;

/// Coefficients per row.
const COEFFICIENTS: usize = 5;

/// `[a, b, c, k, offset]` of `row`.
fn coefficients_of(coefficients: &CpuTensor, row: usize) -> [f32; COEFFICIENTS] {
    coefficients.values().as_chunks::<COEFFICIENTS>().0[row]
}

/// The mean of every row's next value.
fn mean(x: &CpuTensor, v: &CpuTensor, coefficients: &CpuTensor) -> Vec<f32> {
    let (_, columns) = x.rows_and_columns();
    threads::build_zeros(x.values().len(), columns, |row, mean| {
        let [a, b, ..] = coefficients_of(coefficients, row);
        let at = row * columns..(row + 1) * columns;
        let (x, v) = (&x.values()[at.clone()], &v.values()[at]);
        vectorised(
            #[inline(always)]
            || {
                mean.iter_mut()
                    .zip(x.iter().zip(v))
                    .for_each(|(mean, (x, v))| *mean = a * x + b * v)
            },
        );
    })
}

/// The log-probability of every row's next value.
fn row_log_prob(x_next: &[f32], mean: &[f32], coefficients: &CpuTensor) -> Vec<f32> {
    let rows = coefficients.values().len() / COEFFICIENTS;
    let columns = mean.len().checked_div(rows).unwrap_or(0);
    let pieces = threads::Pieces {
        length: rows,
        size: 1,
    };
    threads::build(pieces, mean.len(), threads::Start::Zeros, |row, log_prob| {
        let [_, _, _, k, offset] = coefficients_of(coefficients, row);
        let at = row * columns..(row + 1) * columns;
        let squares = squared_distance(&x_next[at.clone()], &mean[at]);
        log_prob[0] = (-squares / columns as f64 * f64::from(k) + f64::from(offset)) as f32;
    })
}

/// Sum of squared differences of f32 values: differences in f32, squares and sum in f64.
fn squared_distance(a: &[f32], b: &[f32]) -> f64 {
    vectorised(
        #[inline(always)]
        || {
            sum_pairs_f64(a, b, |a, b| {
                let difference = f64::from(a - b);
                difference * difference
            })
        },
    )
}

/// Takes a step.
pub(crate) fn step(step: SdeStep<'_>, noise: &RawTensor) -> SdeOutputs {
    let [x, v, noise] = [step.x, step.v, noise].map(CpuTensor::read);
    let coefficients = CpuTensor::read(step.coefficients);
    let (rows, columns) = x.rows_and_columns();
    let mean = mean(&x, &v, &coefficients);
    let x_next = threads::build_zeros(mean.len(), columns, |row, x_next| {
        let [_, _, c, ..] = coefficients_of(&coefficients, row);
        let at = row * columns..(row + 1) * columns;
        let (mean, noise) = (&mean[at.clone()], &noise.values()[at]);
        vectorised(
            #[inline(always)]
            || {
                x_next
                    .iter_mut()
                    .zip(mean.iter().zip(noise))
                    .for_each(|(next, (m, n))| *next = m + c * n)
            },
        );
    });
    let log_prob = row_log_prob(&x_next, &mean, &coefficients);
    SdeOutputs {
        x_next: from_vec(x_next, x.shape()),
        mean: from_vec(mean, x.shape()),
        log_prob: from_vec(log_prob, &[rows]),
    }
}

/// `(log_prob, mean)` of a step taken before, differentiable in `v`.
pub(crate) fn log_prob(step: SdeStep<'_>, x_next: &RawTensor) -> (DispatchTensor, DispatchTensor) {
    let [x, x_next, coefficients] = [step.x, x_next, step.coefficients].map(CpuTensor::read);
    let outputs = autograd::apply_many("sde_log_prob", &[step.v], |inputs, _| {
        let mean = mean(&x, &CpuTensor::read(&inputs[0]), &coefficients);
        let log_prob = row_log_prob(x_next.values(), &mean, &coefficients);
        let (rows, columns) = x.rows_and_columns();
        let mean = from_vec(mean, x.shape());
        let outputs = vec![from_vec(log_prob, &[rows]), mean.clone()];
        let mean = CpuTensor::read(&mean);
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let read = |index: usize| incoming.output_gradients[index].as_ref().map(CpuTensor::read);
            let (dlog_prob, dmean) = (read(0), read(1));
            let dv = threads::build_zeros(mean.values().len(), columns, |row, dv| {
                let [_, b, _, k, _] = coefficients_of(&coefficients, row);
                let at = row * columns..(row + 1) * columns;
                // d log_prob / d mean = 2 k (x_next - mean) / N
                let slope = dlog_prob
                    .as_ref()
                    .map_or(0.0, |d| d.values()[row] * (2.0 * k / columns as f32))
                    * b;
                let (mean, x_next) = (&mean.values()[at.clone()], &x_next.values()[at.clone()]);
                vectorised(
                    #[inline(always)]
                    || {
                        for (dv, (mean, next)) in dv.iter_mut().zip(mean.iter().zip(x_next)) {
                            *dv = slope * (next - mean);
                        }
                        if let Some(dmean) = &dmean {
                            dv.iter_mut()
                                .zip(&dmean.values()[at])
                                .for_each(|(dv, d)| *dv += b * d);
                        }
                    },
                );
            });
            vec![Some(from_vec(dv, mean.shape()))]
        });
        (outputs, backward)
    });
    let [log_prob, mean] = outputs.try_into().expect("two outputs");
    (log_prob, mean)
}

/// `mean over N of (a - b)²` per row, differentiable in `a`.
pub(crate) fn mean_squared_distance(a: &DispatchTensor, b: &RawTensor) -> DispatchTensor {
    let b = CpuTensor::read(b);
    autograd::apply("mean_squared_distance", &[a], |inputs, _| {
        let a = CpuTensor::read(&inputs[0]);
        let (rows, columns) = a.rows_and_columns();
        let pieces = threads::Pieces {
            length: rows,
            size: 1,
        };
        let distance = threads::build(
            pieces,
            a.values().len(),
            threads::Start::Zeros,
            |row, distance| {
                let at = row * columns..(row + 1) * columns;
                let squares = squared_distance(&a.values()[at.clone()], &b.values()[at]);
                distance[0] = (squares / columns as f64) as f32;
            },
        );
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let gradient = CpuTensor::read(incoming.gradient());
            let da = threads::build_zeros(a.values().len(), columns, |row, da| {
                let slope = gradient.values()[row] * (2.0 / columns as f32);
                let at = row * columns..(row + 1) * columns;
                let (a, b) = (&a.values()[at.clone()], &b.values()[at]);
                vectorised(
                    #[inline(always)]
                    || {
                        da.iter_mut()
                            .zip(a.iter().zip(b))
                            .for_each(|(d, (a, b))| *d = slope * (a - b))
                    },
                );
            });
            vec![Some(from_vec(da, a.shape()))]
        });
        (from_vec(distance, &[rows]), backward)
    })
}
