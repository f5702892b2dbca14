//! A residual connection whose branch is gated per sample: adaLN-zero (Peebles and Xie 2022, arXiv:2212.09748).

use crate::host::{math::vectorised, threads};
use burn::backend::DispatchTensor;
use flow_core::autograd;
use flow_core::cpu::{CpuTensor, from_vec};
use std::ops::Range;
use std::sync::Arc;

/// `residual_BSD + modulation_BKD[:, gate] · branch_BSD`.
pub(crate) fn gated_residual(
    residual: &DispatchTensor,
    branch: &DispatchTensor,
    modulation: &DispatchTensor,
    gate: usize,
) -> DispatchTensor {
    autograd::apply("gated_residual", &[residual, branch, modulation], |inputs, _| {
        let residual = CpuTensor::read(&inputs[0]);
        let (branch, modulation) = (CpuTensor::read(&inputs[1]), CpuTensor::read(&inputs[2]));
        let layout = GateLayout::new(branch.shape(), &modulation, gate);
        let y = layout.forward(residual.values(), branch.values(), modulation.values());
        let output = from_vec(y, branch.shape());
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let gradient = CpuTensor::read(incoming.gradient());
            let dbranch = incoming.wanted[1].then(|| {
                let dbranch = layout.branch_gradient(gradient.values(), modulation.values());
                from_vec(dbranch, branch.shape())
            });
            let dmodulation = incoming.wanted[2].then(|| {
                let dmodulation = layout.modulation_gradient(gradient.values(), branch.values());
                from_vec(dmodulation, modulation.shape())
            });
            let dresidual = incoming.wanted[0].then(|| incoming.gradient().clone());
            vec![dresidual, dbranch, dmodulation]
        });
        (output, backward)
    })
}

/// Where the gates of a batch lie, and the arithmetic with them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GateLayout {
    batch: usize,
    tokens: usize,
    columns: usize,
    chunks: usize,
    gate: usize,
}

impl GateLayout {
    /// For a branch of this `shape`, `[B, S, D]`.
    pub(crate) fn new(shape: &[usize], modulation: &CpuTensor, gate: usize) -> Self {
        let [batch, tokens, columns] = *shape else {
            panic!("residual of {shape:?}, three axes expected")
        };
        let chunks = modulation.shape()[1];
        Self {
            batch,
            tokens,
            columns,
            chunks,
            gate,
        }
    }

    #[inline(always)]
    fn gate_of(&self, batch: usize) -> Range<usize> {
        let start = (batch * self.chunks + self.gate) * self.columns;
        start..start + self.columns
    }

    /// The residual plus the gated branch.
    pub(crate) fn forward(&self, residual: &[f32], branch: &[f32], modulation: &[f32]) -> Vec<f32> {
        let per_piece = threads::rows_per_piece(self.columns);
        threads::build_zeros(branch.len(), per_piece * self.columns, |index, y| {
            let start = index * per_piece;
            let branch = &branch[start * self.columns..][..y.len()];
            self.forward_rows(residual, branch, modulation, start, y);
        })
    }

    /// The rows from `start` on; `branch` begins there.
    pub(crate) fn forward_rows(
        &self,
        residual: &[f32],
        branch: &[f32],
        modulation: &[f32],
        start: usize,
        y: &mut [f32],
    ) {
        let columns = self.columns;
        let residual = &residual[start * columns..][..y.len()];
        vectorised(
            #[inline(always)]
            || {
                let rows = y
                    .chunks_exact_mut(columns)
                    .zip(residual.chunks_exact(columns).zip(branch.chunks_exact(columns)));
                for (row, (y, (residual, branch))) in rows.enumerate() {
                    let gate = &modulation[self.gate_of((start + row) / self.tokens)];
                    for ((y, r), (b, g)) in y.iter_mut().zip(residual).zip(branch.iter().zip(gate)) {
                        *y = r + g * b;
                    }
                }
            },
        );
    }

    /// The gradient of the branch.
    pub(crate) fn branch_gradient(&self, gradient: &[f32], modulation: &[f32]) -> Vec<f32> {
        let (columns, sample) = (self.columns, self.tokens * self.columns);
        threads::build_zeros(gradient.len(), sample, |batch, dbranch| {
            let gate = &modulation[self.gate_of(batch)];
            let gradient = &gradient[batch * sample..][..sample];
            vectorised(
                #[inline(always)]
                || {
                    for (d, g) in dbranch
                        .chunks_exact_mut(columns)
                        .zip(gradient.chunks_exact(columns))
                    {
                        for ((d, g), gate) in d.iter_mut().zip(g).zip(gate) {
                            *d = g * gate;
                        }
                    }
                },
            );
        })
    }

    /// The gradient of the modulation `[B, K, D]`: zeros but for the gates.
    pub(crate) fn modulation_gradient(&self, gradient: &[f32], branch: &[f32]) -> Vec<f32> {
        let (columns, sample) = (self.columns, self.tokens * self.columns);
        let size = self.chunks * columns;
        let pieces = threads::Pieces {
            length: self.batch * size,
            size,
        };
        threads::build(
            pieces,
            gradient.len(),
            threads::Start::Zeros,
            |batch, dmodulation| {
                let dgate = &mut dmodulation[self.gate * columns..][..columns];
                let range = batch * sample..(batch + 1) * sample;
                let (gradient, branch) = (&gradient[range.clone()], &branch[range]);
                vectorised(
                    #[inline(always)]
                    || {
                        for (g, b) in gradient.chunks_exact(columns).zip(branch.chunks_exact(columns)) {
                            for ((d, g), b) in dgate.iter_mut().zip(g).zip(b) {
                                *d += g * b;
                            }
                        }
                    },
                );
            },
        )
    }
}
