//! Layer norm without weights, scaled and shifted per sample: adaLN (Peebles and Xie 2023, arXiv:2212.09748).

use crate::host::{
    math::vectorised,
    sum::{sum, sum_pairs},
    threads,
};
use burn::backend::DispatchTensor;
use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::op;
use std::sync::Arc;

/// Mean and reciprocal standard deviation of each row, side by side.
const STATISTICS: usize = 2;

/// `layer_norm(x_BSD) · (1 + modulation_BKD[:, scale]) + modulation_BKD[:, shift]`.
///
/// The variance is the mean of the squared deviations from the row's mean, both in f32 and in a fixed order.
pub(crate) fn modulated_layer_norm(
    x: &DispatchTensor,
    modulation: &DispatchTensor,
    shift: usize,
    scale: usize,
    epsilon: f32,
) -> DispatchTensor {
    op::apply("modulated_layer_norm", &[x, modulation], |inputs, _| {
        let (x, modulation) = (CpuTensor::read(&inputs[0]), CpuTensor::read(&inputs[1]));
        let (rows, columns) = x.rows_and_columns();
        let layout = Layout::new(&x, &modulation, shift, scale);
        let per_piece = threads::rows_per_piece(columns);
        let values = threads::Pieces {
            length: x.values().len(),
            size: per_piece * columns,
        };
        let pairs = threads::Pieces {
            length: rows * STATISTICS,
            size: per_piece * STATISTICS,
        };
        let work = values.length;
        let (y, statistics) = threads::build_pair(
            values,
            pairs,
            work,
            threads::Start::Zeros,
            |index, y, statistics| {
                let start = index * per_piece;
                vectorised(
                    #[inline(always)]
                    || {
                        forward_rows(
                            &layout,
                            x.values(),
                            modulation.values(),
                            start,
                            epsilon,
                            y,
                            statistics,
                        )
                    },
                );
            },
        );
        let output = from_vec(y, x.shape());
        let backward: op::Backward = Arc::new(move |incoming| {
            let gradient = CpuTensor::read(incoming.gradient());
            let saved = Saved {
                layout,
                x: x.values(),
                modulation: modulation.values(),
                statistics: &statistics,
                gradient: gradient.values(),
            };
            let (dx, dmodulation) = backward(&saved, incoming.wanted[1]);
            vec![
                Some(from_vec(dx, x.shape())),
                dmodulation.map(|values| from_vec(values, modulation.shape())),
            ]
        });
        (output, backward)
    })
}

/// Where the chunks of a sample's modulation lie.
#[derive(Clone, Copy)]
struct Layout {
    tokens: usize,
    columns: usize,
    chunks: usize,
    shift: usize,
    scale: usize,
}

impl Layout {
    fn new(x: &CpuTensor, modulation: &CpuTensor, shift: usize, scale: usize) -> Self {
        let [_, tokens, columns] = *x.shape() else {
            panic!("layer norm of {:?}, three axes expected", x.shape())
        };
        let chunks = modulation.shape()[1];
        Self {
            tokens,
            columns,
            chunks,
            shift,
            scale,
        }
    }

    #[inline(always)]
    fn start(&self, batch: usize, chunk: usize) -> usize {
        (batch * self.chunks + chunk) * self.columns
    }

    #[inline(always)]
    fn chunk<'a>(&self, modulation: &'a [f32], batch: usize, chunk: usize) -> &'a [f32] {
        &modulation[self.start(batch, chunk)..][..self.columns]
    }
}

#[inline(always)]
fn forward_rows(
    layout: &Layout,
    x: &[f32],
    modulation: &[f32],
    start: usize,
    epsilon: f32,
    y: &mut [f32],
    statistics: &mut [f32],
) {
    let columns = layout.columns;
    let x = &x[start * columns..][..y.len()];
    let rows = x
        .chunks_exact(columns)
        .zip(y.chunks_exact_mut(columns))
        .zip(statistics.chunks_exact_mut(STATISTICS));
    for (row, ((x, y), statistics)) in rows.enumerate() {
        let batch = (start + row) / layout.tokens;
        let shift = layout.chunk(modulation, batch, layout.shift);
        let scale = layout.chunk(modulation, batch, layout.scale);
        let mean = sum(x, |x| x) / columns as f32;
        let variance = sum(x, |x| (x - mean) * (x - mean)) / columns as f32;
        let reciprocal = 1.0 / (variance + epsilon).sqrt();
        for ((y, x), (shift, scale)) in y.iter_mut().zip(x).zip(shift.iter().zip(scale)) {
            *y = (x - mean) * reciprocal * (1.0 + scale) + shift;
        }
        statistics.copy_from_slice(&[mean, reciprocal]);
    }
}

/// What backward reads.
struct Saved<'a> {
    layout: Layout,
    x: &'a [f32],
    modulation: &'a [f32],
    statistics: &'a [f32],
    gradient: &'a [f32],
}

/// Gradients of `x` and, if wanted, of the modulation. One sample at a time, so the sums over its tokens have one order.
fn backward(saved: &Saved<'_>, want_modulation: bool) -> (Vec<f32>, Option<Vec<f32>>) {
    let layout = &saved.layout;
    let sample = layout.tokens * layout.columns;
    if !want_modulation {
        let dx = threads::build_zeros(saved.x.len(), sample, |batch, dx| {
            vectorised(
                #[inline(always)]
                || saved.input_rows(batch, dx),
            );
        });
        return (dx, None);
    }
    let values = threads::Pieces {
        length: saved.x.len(),
        size: sample,
    };
    let chunks = threads::Pieces {
        length: saved.modulation.len(),
        size: layout.chunks * layout.columns,
    };
    let work = values.length;
    let (dx, dmodulation) = threads::build_pair(
        values,
        chunks,
        work,
        threads::Start::Zeros,
        |batch, dx, dmodulation| {
            vectorised(
                #[inline(always)]
                || {
                    saved.input_rows(batch, dx);
                    saved.modulation_rows(batch, dmodulation);
                },
            );
        },
    );
    (dx, Some(dmodulation))
}

impl Saved<'_> {
    /// `(x, gradient, mean, reciprocal deviation)` of every token of a sample.
    #[inline(always)]
    fn rows(&self, batch: usize) -> impl Iterator<Item = (&[f32], &[f32], f32, f32)> {
        let Layout { tokens, columns, .. } = self.layout;
        let rows = batch * tokens..(batch + 1) * tokens;
        let values = rows.start * columns..rows.end * columns;
        let statistics = &self.statistics.as_chunks::<STATISTICS>().0[rows];
        let values = self.x[values.clone()]
            .chunks_exact(columns)
            .zip(self.gradient[values].chunks_exact(columns));
        values
            .zip(statistics)
            .map(|((x, gradient), [mean, reciprocal])| (x, gradient, *mean, *reciprocal))
    }

    #[inline(always)]
    fn input_rows(&self, batch: usize, dx: &mut [f32]) {
        let columns = self.layout.columns;
        let scale = self.layout.chunk(self.modulation, batch, self.layout.scale);
        for ((x, gradient, mean, reciprocal), dx) in self.rows(batch).zip(dx.chunks_exact_mut(columns)) {
            // The gradient of the normalised value passes through `dx`.
            for (d, (g, scale)) in dx.iter_mut().zip(gradient.iter().zip(scale)) {
                *d = g * (1.0 + scale);
            }
            let average = sum(dx, |d| d) / columns as f32;
            let slope = sum_pairs(dx, x, |d, x| d * ((x - mean) * reciprocal)) / columns as f32;
            for (d, x) in dx.iter_mut().zip(x) {
                *d = reciprocal * (*d - average - (x - mean) * reciprocal * slope);
            }
        }
    }

    #[inline(always)]
    fn modulation_rows(&self, batch: usize, dmodulation: &mut [f32]) {
        let columns = self.layout.columns;
        for (x, gradient, mean, reciprocal) in self.rows(batch) {
            let dshift = &mut dmodulation[self.layout.shift * columns..][..columns];
            for (d, g) in dshift.iter_mut().zip(gradient) {
                *d += g;
            }
            let dscale = &mut dmodulation[self.layout.scale * columns..][..columns];
            for (d, (g, x)) in dscale.iter_mut().zip(gradient.iter().zip(x)) {
                *d += g * ((x - mean) * reciprocal);
            }
        }
    }
}
