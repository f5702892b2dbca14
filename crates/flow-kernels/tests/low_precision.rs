//! Products with matrices in low precision: those of the widened matrix, bit for bit, results and gradients.

mod support;

use burn::backend::DispatchTensor;
use flow_core::cpu::from_vec;
use flow_core::device::ComputeDevice;
use flow_core::ops::{Compute, FeedForwardWeights, GatedResidual, LinearWeights, ModulatedNorm, NormChunks};
use flow_core::{Activation, Kernels, LowPrecision, LowPrecisionFormat, RawTensor};
use flow_kernels::CpuKernels;
use std::sync::Arc;
use support::{Operand, bits, operand, run};

const WIDTH: usize = 18;
const INNER: usize = 29;
const RANK: usize = 3;

/// A frozen matrix, as words and widened.
struct Matrix {
    of: LowPrecision,
    words: RawTensor,
    widened: RawTensor,
}

impl Matrix {
    fn new(format: LowPrecisionFormat, seed: u64, [rows, columns]: [usize; 2]) -> Self {
        let of = LowPrecision {
            format,
            rows,
            columns,
        };
        let words = of
            .quantise(&operand(seed, &[rows, columns]).values)
            .expect("finite values");
        Self {
            of,
            widened: from_vec(of.widen(&words), &[rows, columns]),
            words: ComputeDevice::cpu().words(words),
        }
    }

    /// A layer with bias and adapter, `others`, and this matrix in one of its forms.
    fn layer(&self, others: &[DispatchTensor], in_words: bool) -> LinearWeights {
        LinearWeights {
            weight: if in_words { &self.words } else { &self.widened }.clone(),
            low_precision: in_words.then_some(self.of),
            bias: Some(others[0].clone()),
            adapter: Some((others[1].clone(), others[2].clone(), 0.5)),
        }
    }
}

/// Bias, `A` and `B` of a layer.
fn others(seed: u64, [rows, columns]: [usize; 2]) -> [Operand; 3] {
    [
        operand(seed, &[rows]),
        operand(seed + 1, &[RANK, columns]),
        operand(seed + 2, &[rows, RANK]),
    ]
}

const NORM: NormChunks = NormChunks {
    shift: 2,
    scale: 0,
    epsilon: 1e-6,
};

/// Every operation with a layer, of the stream, the modulation, and what belongs to two layers.
fn operation(
    which: usize,
    kernels: &dyn Kernels,
    [up, down]: [&Matrix; 2],
    in_words: bool,
    inputs: &[DispatchTensor],
) -> DispatchTensor {
    let (x, modulation) = (&inputs[0], &inputs[1]);
    let (up, down) = (
        up.layer(&inputs[2..5], in_words),
        down.layer(&inputs[5..], in_words),
    );
    let chunks = NORM;
    let norm = ModulatedNorm {
        x,
        modulation,
        chunks,
    };
    let activation = Activation::GeluTanh;
    let ops = kernels.ops();
    match which {
        0 => {
            let inner = ops.model.linear(&Compute, x, &up, activation);
            ops.model.linear(&Compute, &inner, &down, Activation::None)
        }
        1 => ops.fused_or_composed(|ops| {
            let inner = ops.modulated_linear(&Compute, norm, &up, activation);
            let gated = GatedResidual {
                residual: x,
                modulation,
                gate: 1,
            };
            ops.linear_gated_residual(&Compute, gated, &inner, &down)
        }),
        _ => ops.fused_or_composed(|ops| {
            let weights = FeedForwardWeights { up, activation, down };
            ops.modulated_feed_forward(&Compute, norm, &weights, 1)
        }),
    }
}

#[test]
fn products_and_gradients_are_those_of_the_widened_matrix_bit_for_bit() {
    let plain = CpuKernels::default();
    let fused = plain
        .fused(Arc::new(|| {}))
        .expect("the processor's kernels have a fused form");
    let kernels: [&dyn Kernels; 2] = [&plain, &*fused];
    for format in LowPrecisionFormat::ALL {
        let up = Matrix::new(format, 1, [INNER, WIDTH]);
        let down = Matrix::new(format, 2, [WIDTH, INNER]);
        let mut operands = vec![operand(3, &[2, 5, WIDTH]), operand(4, &[2, 3, WIDTH])];
        operands.extend(others(10, [INNER, WIDTH]));
        operands.extend(others(20, [WIDTH, INNER]));
        let seed = operand(5, &[2, 5, WIDTH]);
        // As in a run of adapters, and with the bias of a layer trained as well.
        let adapters = [true, true, false, true, true, false, true, true];
        for (which, kernels) in (0..3).flat_map(|which| kernels.map(|kernels| (which, kernels))) {
            for tracked in [adapters, [true; 8], [false; 8]] {
                let of = |in_words: bool| {
                    let kernel =
                        |inputs: &[DispatchTensor]| operation(which, kernels, [&up, &down], in_words, inputs);
                    let tracked = if which == 0 {
                        // The modulation takes no part.
                        [&[tracked[0], false][..], &tracked[2..]].concat()
                    } else {
                        tracked.to_vec()
                    };
                    run(&operands, &tracked, &kernel, &seed)
                };
                let name = format!("{format}, operation {which} of `{}`", kernels.name());
                let ((found, gradients), (expected, of_widened)) = (of(true), of(false));
                assert_eq!(bits(&found), bits(&expected), "{name}");
                let in_bits = |all: &[Option<Vec<f32>>]| -> Vec<Option<Vec<u32>>> {
                    all.iter().map(|one| one.as_deref().map(bits)).collect()
                };
                assert_eq!(in_bits(&gradients), in_bits(&of_widened), "{name}, gradients");
            }
        }
    }
}
