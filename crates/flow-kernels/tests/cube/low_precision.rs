//! Products with matrices in low precision on the device: those of the widened matrix, bit for bit; those of codes, as on the processor.

use crate::support::{Side, computing, sides, values};
use burn::backend::{AutodiffBackend, Dispatch, DispatchTensor};
use flow_core::cpu::to_host;
use flow_core::ops::{Compute, LinearWeights, ModulatedNorm, NormChunks};
use flow_core::tensors::{leaf, plain};
use flow_core::{Activation, LowPrecision, LowPrecisionCompute, LowPrecisionFormat, RawTensor, autograd};
use std::sync::Arc;

const RANK: usize = 4;

/// The result of a layer with an adapter, and the gradients of its input and of the adapter.
fn computed(side: &Side, weight: &RawTensor, low_precision: Option<LowPrecision>) -> Vec<Vec<u32>> {
    let (rows, [outputs, inputs]) = (7, [30, 85]);
    let tracked = |draw, shape: &[usize]| leaf(&side.device.plain(values(draw, shape), shape));
    let leaves = [
        tracked(1, &[rows, inputs]),
        tracked(2, &[RANK, inputs]),
        tracked(3, &[outputs, RANK]),
    ];
    let weights = LinearWeights {
        weight: weight.clone(),
        low_precision,
        bias: None,
        adapter: Some((leaves[1].clone(), leaves[2].clone(), 0.5)),
    };
    let model = side.kernels.ops().model;
    let output = model.linear(&Compute, &leaves[0], &weights, Activation::Silu);
    let result = plain(&output);
    let seed = side.device.plain(values(4, &[rows, outputs]), &[rows, outputs]);
    let gradients = autograd::backward_from(vec![output], vec![Some(seed)]);
    let mut gradients = gradients.expect("gradients are wanted");
    let gradient = |leaf: &DispatchTensor| {
        <Dispatch as AutodiffBackend>::grad_remove(leaf, &mut gradients)
            .expect("a tracked input gets a gradient")
    };
    let all: Vec<RawTensor> = std::iter::once(result)
        .chain(leaves.iter().map(gradient))
        .collect();
    let bits = |tensor: &RawTensor| to_host(tensor).iter().map(|value| value.to_bits()).collect();
    all.iter().map(bits).collect()
}

#[test]
fn products_and_gradients_are_those_of_the_widened_matrix() {
    for side in computing() {
        for format in LowPrecisionFormat::ALL {
            let of = LowPrecision {
                format,
                compute: LowPrecisionCompute::Storage,
                rows: 30,
                columns: 85,
            };
            let words = of.quantise(&values(9, &[30, 85])).expect("finite values");
            let widened = side.device.plain(of.widen(&words), &[30, 85]);
            let words = side.device.words(words);
            assert_eq!(
                of.host(&words),
                to_host(&widened),
                "{format}: the words on the host"
            );
            let found = computed(&side, &words, Some(of));
            assert_eq!(
                found,
                computed(&side, &widened, None),
                "{format}, {}",
                side.kernels.name()
            );
        }
    }
}

#[test]
fn products_of_codes_are_those_of_the_processor_and_their_gradients_those_of_the_widened_matrix() {
    let [cpu, cube] = sides();
    let of = |compute| LowPrecision {
        format: LowPrecisionFormat::Fp8,
        compute,
        rows: 30,
        columns: 85,
    };
    let codes = of(LowPrecisionCompute::Fp8);
    let words = codes.quantise(&values(9, &[30, 85])).expect("finite values");
    let on = |side: &Side, of| computed(side, &side.device.words(words.clone()), Some(of));
    assert_near(&on(&cpu, codes), &on(&cube, codes));
    for side in computing() {
        let again = on(&side, codes);
        assert_eq!(again, on(&side, codes), "twice");
        assert_ne!(again[0], on(&side, of(LowPrecisionCompute::Storage))[0]);
    }
}

/// Whether tensors are those of another device, up to its last bits and what these make of quotients.
fn assert_near(expected: &[Vec<u32>], found: &[Vec<u32>]) {
    let floats = |bits: &[u32]| bits.iter().map(|bits| f32::from_bits(*bits)).collect::<Vec<_>>();
    for (number, (expected, found)) in expected.iter().zip(found).enumerate() {
        let (expected, found) = (floats(expected), floats(found));
        let square = |sum: f32, x: &f32| sum + x * x;
        let errors: Vec<f32> = expected.iter().zip(&found).map(|(a, b)| a - b).collect();
        let [error, size] = [&errors, &expected].map(|all| all.iter().fold(0.0, square).sqrt());
        // A quotient that lies in the middle of two codes for one device may not for another, whose division rounds otherwise.
        assert!(error <= 1e-2 * size, "tensor {number}: {error:e} of {size:e}");
    }
}

#[test]
fn input_gradients_of_codes_are_those_of_the_processor_and_nothing_else_is_another() {
    let [cpu, cube] = sides();
    let on = |side: &Side, compute| {
        let of = LowPrecision {
            format: LowPrecisionFormat::Fp8,
            compute,
            rows: 30,
            columns: 85,
        };
        let words = of.quantise(&values(9, &[30, 85])).expect("finite values");
        computed(side, &side.device.words(words), Some(of))
    };
    let of_gradients = LowPrecisionCompute::Fp8WithDataGradient;
    assert_near(&on(&cpu, of_gradients), &on(&cube, of_gradients));
    for side in computing() {
        let found = on(&side, of_gradients);
        assert_eq!(found, on(&side, of_gradients), "twice");
        let products = on(&side, LowPrecisionCompute::Fp8);
        assert_eq!(found[0], products[0], "the result");
        assert_ne!(found[1], products[1], "the gradient of the input");
        assert_eq!(found[2..], products[2..], "the gradients of the adapter");
    }
}

#[test]
fn a_trained_matrix_is_rounded_as_one_that_is_stored() {
    let [_, cube] = sides();
    let of = LowPrecision {
        format: LowPrecisionFormat::Fp8,
        compute: LowPrecisionCompute::Fp8,
        rows: 30,
        columns: 85,
    };
    let numbers = values(9, &[30, 85]);
    let words = of.quantise(&numbers).expect("finite values");
    let weights = [cube.device.plain(numbers, &[30, 85]), cube.device.words(words)];
    let [trained, stored] = weights.map(|weight| computed(&cube, &weight, Some(of)));
    assert_near(&stored[..1], &trained[..1]);
    let [trained_again, unrounded] = [Some(of), None]
        .map(|form| computed(&cube, &cube.device.plain(values(9, &[30, 85]), &[30, 85]), form));
    assert_eq!(trained_again, trained, "twice");
    assert_ne!(unrounded[0], trained[0]);
}

#[test]
fn layers_that_share_the_codes_of_their_input_have_the_bits_of_each_alone() {
    use LowPrecisionCompute::{Fp8, Storage};
    for side in computing() {
        let x = side.device.plain(values(1, &[2, 5, 85]), &[2, 5, 85]);
        let modulation = side.device.plain(values(2, &[2, 2, 85]), &[2, 2, 85]);
        let layers = [(3, Fp8), (4, Storage), (5, Fp8)].map(|(draw, compute)| {
            let of = LowPrecision {
                format: LowPrecisionFormat::Fp8,
                compute,
                rows: 30,
                columns: 85,
            };
            let words = of.quantise(&values(draw, &[30, 85])).expect("finite values");
            LinearWeights {
                weight: side.device.words(words),
                low_precision: Some(of),
                bias: None,
                adapter: None,
            }
        });
        let fused = side.kernels.fused(Arc::new(|| {})).expect("not fused yet");
        let [together, apart] = [fused, side.kernels.clone()].map(|kernels| {
            let outputs = kernels.ops().fused_or_composed(|ops| {
                let norm = ModulatedNorm {
                    x: &x,
                    modulation: &modulation,
                    chunks: NormChunks {
                        shift: 0,
                        scale: 1,
                        epsilon: 1e-6,
                    },
                };
                ops.modulated_linears(&Compute, norm, &layers)
            });
            let bits = |output: &DispatchTensor| -> Vec<u32> {
                to_host(output).into_iter().map(f32::to_bits).collect()
            };
            outputs.iter().map(bits).collect::<Vec<_>>()
        });
        assert_eq!(together, apart);
    }
}
