//! Layer norm without weights, scaled and shifted per sample: adaLN (Peebles and Xie 2022, arXiv:2212.09748).

use crate::host::{
    math::vectorised,
    sum::{sum, sum_pairs},
    threads,
};
use burn::backend::DispatchTensor;
use flow_core::autograd;
use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::ops::{ModulatedNorm, NormChunks};
use std::sync::Arc;

/// Mean and reciprocal standard deviation of each row, side by side.
const STATISTICS: usize = 2;

/// `layer_norm(x_BSD) · (1 + modulation_BKD[:, scale]) + modulation_BKD[:, shift]`.
///
/// The variance is the mean of the squared deviations from the row's mean, both in f32 and in a fixed order.
pub(crate) fn modulated_layer_norm(norm: ModulatedNorm<'_>) -> DispatchTensor {
    autograd::apply("modulated_layer_norm", &[norm.x, norm.modulation], |inputs, _| {
        let (x, modulation) = (CpuTensor::read(&inputs[0]), CpuTensor::read(&inputs[1]));
        let layout = NormLayout::new(&x, &modulation, norm.chunks);
        let (y, statistics) = layout.forward(x.values(), modulation.values());
        let output = from_vec(y, x.shape());
        let backward: autograd::Backward = Arc::new(move |incoming| {
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
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormLayout {
    tokens: usize,
    columns: usize,
    chunks: usize,
    norm: NormChunks,
    /// Added to the scale: 1 where the scale is a change, 0 where it is the whole factor.
    base: f32,
}

impl NormLayout {
    pub(crate) fn new(x: &CpuTensor, modulation: &CpuTensor, norm: NormChunks) -> Self {
        let [_, tokens, columns] = *x.shape() else {
            panic!("layer norm of {:?}, three axes expected", x.shape())
        };
        let chunks = modulation.shape()[1];
        Self {
            tokens,
            columns,
            chunks,
            norm,
            base: 1.0,
        }
    }

    /// The same where a scale is the whole factor.
    pub(crate) fn with_whole_factors(self) -> Self {
        Self { base: 0.0, ..self }
    }

    /// Values of a row.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// The normalised rows, and what backward needs of each: its mean and the reciprocal of its deviation.
    pub(crate) fn forward(&self, x: &[f32], modulation: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let (rows, columns) = (x.len().checked_div(self.columns).unwrap_or(0), self.columns);
        let per_piece = threads::rows_per_piece(columns);
        let values = threads::Pieces {
            length: x.len(),
            size: per_piece * columns,
        };
        let pairs = threads::Pieces {
            length: rows * STATISTICS,
            size: per_piece * STATISTICS,
        };
        let task = |index: usize, y: &mut [f32], statistics: &mut [f32]| {
            self.forward_rows(x, modulation, index * per_piece, y, statistics);
        };
        threads::build_pair(values, pairs, x.len(), threads::Start::Zeros, task)
    }

    /// The rows from `start` on.
    fn forward_rows(
        &self,
        x: &[f32],
        modulation: &[f32],
        start: usize,
        y: &mut [f32],
        statistics: &mut [f32],
    ) {
        vectorised(
            #[inline(always)]
            || forward_rows(self, x, modulation, start, y, statistics),
        );
    }

    /// The normalised rows from `start` on, as many as fit into `y`.
    pub(crate) fn normalise(&self, x: &[f32], modulation: &[f32], start: usize, y: &mut [f32]) {
        let mut statistics = vec![0.0; y.len().checked_div(self.columns).unwrap_or(0) * STATISTICS];
        self.forward_rows(x, modulation, start, y, &mut statistics);
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
    layout: &NormLayout,
    x: &[f32],
    modulation: &[f32],
    start: usize,
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
        let shift = layout.chunk(modulation, batch, layout.norm.shift);
        let scale = layout.chunk(modulation, batch, layout.norm.scale);
        let mean = sum(x, |x| x) / columns as f32;
        let variance = sum(x, |x| (x - mean) * (x - mean)) / columns as f32;
        let reciprocal = 1.0 / (variance + layout.norm.epsilon).sqrt();
        for ((y, x), (shift, scale)) in y.iter_mut().zip(x).zip(shift.iter().zip(scale)) {
            *y = (x - mean) * reciprocal * (layout.base + scale) + shift;
        }
        statistics.copy_from_slice(&[mean, reciprocal]);
    }
}

/// What backward reads.
pub(crate) struct Saved<'a> {
    pub(crate) layout: NormLayout,
    pub(crate) x: &'a [f32],
    pub(crate) modulation: &'a [f32],
    pub(crate) statistics: &'a [f32],
    pub(crate) gradient: &'a [f32],
}

/// Gradients of `x` and, if wanted, of the modulation. One sample at a time, so the sums over its tokens have one order.
pub(crate) fn backward(saved: &Saved<'_>, want_modulation: bool) -> (Vec<f32>, Option<Vec<f32>>) {
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
        let NormLayout { tokens, columns, .. } = self.layout;
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
        let NormLayout { columns, base, .. } = self.layout;
        let scale = self.layout.chunk(self.modulation, batch, self.layout.norm.scale);
        for ((x, gradient, mean, reciprocal), dx) in self.rows(batch).zip(dx.chunks_exact_mut(columns)) {
            // The gradient of the normalised value passes through `dx`.
            for (d, (g, scale)) in dx.iter_mut().zip(gradient.iter().zip(scale)) {
                *d = g * (base + scale);
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
            let dshift = &mut dmodulation[self.layout.norm.shift * columns..][..columns];
            for (d, g) in dshift.iter_mut().zip(gradient) {
                *d += g;
            }
            let dscale = &mut dmodulation[self.layout.norm.scale * columns..][..columns];
            for (d, (g, x)) in dscale.iter_mut().zip(gradient.iter().zip(x)) {
                *d += g * ((x - mean) * reciprocal);
            }
        }
    }
}
