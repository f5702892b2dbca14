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
        let mut y = vec![0.0; x.values().len()];
        let mut statistics = vec![0.0; rows * STATISTICS];
        let per_piece = threads::rows_per_piece(columns);
        let outputs = (
            (&mut y[..], per_piece * columns),
            (&mut statistics[..], per_piece * STATISTICS),
        );
        threads::for_each_pair_of_pieces(outputs.0, outputs.1, |index, y, statistics| {
            let start = index * per_piece;
            vectorised(|| forward_rows(&layout, &x, &modulation, start, epsilon, y, statistics));
        });
        let output = from_vec(y, x.shape());
        let backward: op::Backward = Arc::new(move |incoming| {
            let gradient = CpuTensor::read(incoming.gradient());
            let (dx, dmodulation) = backward(
                &layout,
                &x,
                &modulation,
                &statistics,
                gradient.values(),
                incoming.wanted[1],
            );
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

    fn start(&self, batch: usize, chunk: usize) -> usize {
        (batch * self.chunks + chunk) * self.columns
    }

    fn chunk<'a>(&self, modulation: &'a [f32], batch: usize, chunk: usize) -> &'a [f32] {
        &modulation[self.start(batch, chunk)..][..self.columns]
    }
}

#[inline(always)]
fn forward_rows(
    layout: &Layout,
    x: &CpuTensor,
    modulation: &CpuTensor,
    start: usize,
    epsilon: f32,
    y: &mut [f32],
    statistics: &mut [f32],
) {
    let columns = layout.columns;
    let x = &x.values()[start * columns..][..y.len()];
    let rows = x
        .chunks_exact(columns)
        .zip(y.chunks_exact_mut(columns))
        .zip(statistics.chunks_exact_mut(STATISTICS));
    for (row, ((x, y), statistics)) in rows.enumerate() {
        let batch = (start + row) / layout.tokens;
        let shift = layout.chunk(modulation.values(), batch, layout.shift);
        let scale = layout.chunk(modulation.values(), batch, layout.scale);
        let mean = sum(x, |x| x) / columns as f32;
        let variance = sum(x, |x| (x - mean) * (x - mean)) / columns as f32;
        let reciprocal = 1.0 / (variance + epsilon).sqrt();
        for ((y, x), (shift, scale)) in y.iter_mut().zip(x).zip(shift.iter().zip(scale)) {
            *y = (x - mean) * reciprocal * (1.0 + scale) + shift;
        }
        statistics.copy_from_slice(&[mean, reciprocal]);
    }
}

/// Gradients of `x` and, if wanted, of the modulation. One sample at a time, so the sums over its tokens have one order.
fn backward(
    layout: &Layout,
    x: &CpuTensor,
    modulation: &CpuTensor,
    statistics: &[f32],
    gradient: &[f32],
    want_modulation: bool,
) -> (Vec<f32>, Option<Vec<f32>>) {
    let (tokens, columns) = (layout.tokens, layout.columns);
    let sample = tokens * columns;
    let mut dx = vec![0.0; x.values().len()];
    let mut dmodulation = vec![
        0.0;
        if want_modulation {
            modulation.values().len()
        } else {
            0
        }
    ];
    let rows = |batch: usize, dx: &mut [f32], mut dmodulation: Option<&mut [f32]>| {
        let scale = layout.chunk(modulation.values(), batch, layout.scale);
        for token in 0..tokens {
            let row = batch * tokens + token;
            let at = row * columns..(row + 1) * columns;
            let (x, gradient) = (&x.values()[at.clone()], &gradient[at]);
            let dx = &mut dx[token * columns..][..columns];
            let (mean, reciprocal) = (statistics[row * STATISTICS], statistics[row * STATISTICS + 1]);
            if let Some(dmodulation) = dmodulation.as_deref_mut() {
                let dshift = &mut dmodulation[layout.shift * columns..][..columns];
                for (d, g) in dshift.iter_mut().zip(gradient) {
                    *d += g;
                }
                let dscale = &mut dmodulation[layout.scale * columns..][..columns];
                for (d, (g, x)) in dscale.iter_mut().zip(gradient.iter().zip(x)) {
                    *d += g * ((x - mean) * reciprocal);
                }
            }
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
    };
    if want_modulation {
        let outputs = (
            (&mut dx[..], sample),
            (&mut dmodulation[..], layout.chunks * columns),
        );
        threads::for_each_pair_of_pieces(outputs.0, outputs.1, |batch, dx, dmodulation| {
            vectorised(|| rows(batch, dx, Some(dmodulation)));
        });
    } else {
        threads::for_each_piece(&mut dx, sample, |batch, dx| vectorised(|| rows(batch, dx, None)));
    }
    (dx, want_modulation.then_some(dmodulation))
}
