//! A residual connection whose branch is gated per sample: adaLN-zero (Peebles and Xie 2023, arXiv:2212.09748).

use crate::host::{math::vectorised, threads};
use burn::backend::DispatchTensor;
use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::op;
use std::sync::Arc;

/// `residual_BSD + modulation_BKD[:, gate] · branch_BSD`.
pub(crate) fn gated_residual(
    residual: &DispatchTensor,
    branch: &DispatchTensor,
    modulation: &DispatchTensor,
    gate: usize,
) -> DispatchTensor {
    op::apply("gated_residual", &[residual, branch, modulation], |inputs, _| {
        let residual = CpuTensor::read(&inputs[0]);
        let (branch, modulation) = (CpuTensor::read(&inputs[1]), CpuTensor::read(&inputs[2]));
        let [_, tokens, columns] = *branch.shape() else {
            panic!("residual of {:?}, three axes expected", branch.shape())
        };
        let chunks = modulation.shape()[1];
        let gate_of = move |batch: usize| {
            let start = (batch * chunks + gate) * columns;
            start..start + columns
        };
        let per_piece = threads::rows_per_piece(columns);
        let y = threads::build_zeros(branch.values().len(), per_piece * columns, |index, y| {
            let start = index * per_piece;
            let range = start * columns..start * columns + y.len();
            let (residual, branch) = (&residual.values()[range.clone()], &branch.values()[range]);
            let modulation = modulation.values();
            vectorised(
                #[inline(always)]
                || {
                    let rows = y
                        .chunks_exact_mut(columns)
                        .zip(residual.chunks_exact(columns).zip(branch.chunks_exact(columns)));
                    for (row, (y, (residual, branch))) in rows.enumerate() {
                        let gate = &modulation[gate_of((start + row) / tokens)];
                        for ((y, r), (b, g)) in y.iter_mut().zip(residual).zip(branch.iter().zip(gate)) {
                            *y = r + g * b;
                        }
                    }
                },
            );
        });
        let output = from_vec(y, branch.shape());
        let backward: op::Backward = Arc::new(move |incoming| {
            let gradient = CpuTensor::read(incoming.gradient());
            let sample = tokens * columns;
            let dbranch = incoming.wanted[1].then(|| {
                let dbranch = threads::build_zeros(branch.values().len(), sample, |batch, dbranch| {
                    let gate = &modulation.values()[gate_of(batch)];
                    let gradient = &gradient.values()[batch * sample..][..sample];
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
                });
                from_vec(dbranch, branch.shape())
            });
            let dmodulation = incoming.wanted[2].then(|| {
                let pieces = threads::Pieces {
                    length: modulation.values().len(),
                    size: chunks * columns,
                };
                let work = gradient.values().len();
                let dmodulation =
                    threads::build(pieces, work, threads::Start::Zeros, |batch, dmodulation| {
                        let dgate = &mut dmodulation[gate * columns..][..columns];
                        let range = batch * sample..(batch + 1) * sample;
                        let (gradient, branch) = (&gradient.values()[range.clone()], &branch.values()[range]);
                        vectorised(
                            #[inline(always)]
                            || {
                                for (g, b) in gradient.chunks_exact(columns).zip(branch.chunks_exact(columns))
                                {
                                    for ((d, g), b) in dgate.iter_mut().zip(g).zip(b) {
                                        *d += g * b;
                                    }
                                }
                            },
                        );
                    });
                from_vec(dmodulation, modulation.shape())
            });
            let dresidual = incoming.wanted[0].then(|| incoming.gradient().clone());
            vec![dresidual, dbranch, dmodulation]
        });
        (output, backward)
    })
}
