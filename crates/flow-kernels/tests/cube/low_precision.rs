//! Products with matrices in low precision on the device: those of the widened matrix, bit for bit; those of codes, as on the processor,
//! and with the same bits whether rows are quantised by themselves or by the kernel that makes them.

use crate::support::{Input, Keep, Side, computing, run, sides, values};
use burn::backend::{AutodiffBackend, Dispatch, DispatchTensor};
use burn::tensor::DType;
use flow_core::cpu::to_host;
use flow_core::cube;
use flow_core::ops::{Compute, FeedForwardWeights, LinearWeights, ModulatedNorm, NormChunks, Stash};
use flow_core::tensors::{is_tracked, leaf, plain, shape};
use flow_core::{Activation, LowPrecision, LowPrecisionCompute, LowPrecisionFormat, RawTensor, autograd};
use flow_kernels_cube::activation::{self, Activation as Function};
use flow_kernels_cube::modulated_layer_norm::ModulatedNorm as NormSizes;
use flow_kernels_cube::row_codes::RowCodes;
use flow_kernels_cube::{Buffer, Element, Refusal};
use flow_matmul_cube::fp8::Quantised;
use flow_matmul_cube::tensors::Matrix;
use std::sync::Arc;

const RANK: usize = 4;
const NORM: NormChunks = NormChunks {
    shift: 0,
    scale: 1,
    epsilon: 1e-6,
};

/// The result of a layer with an adapter, and the gradients of its input, of the adapter, and of the matrix if it is tracked.
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
    let trained = is_tracked(weight).then_some(weight);
    let all: Vec<RawTensor> = std::iter::once(result)
        .chain(leaves.iter().chain(trained).map(gradient))
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
    let of_gradients = LowPrecisionCompute::Fp8WithDataGradient;
    for is_trained in [false, true] {
        let on = |side: &Side, compute| {
            let of = LowPrecision {
                format: LowPrecisionFormat::Fp8,
                compute,
                rows: 30,
                columns: 85,
            };
            let numbers = values(9, &[30, 85]);
            let weight = if is_trained {
                leaf(&side.device.plain(numbers, &[30, 85]))
            } else {
                side.device.words(of.quantise(&numbers).expect("finite values"))
            };
            computed(side, &weight, Some(of))
        };
        assert_near(&on(&cpu, of_gradients), &on(&cube, of_gradients));
        for side in computing() {
            let found = on(&side, of_gradients);
            assert_eq!(found, on(&side, of_gradients), "twice");
            let products = on(&side, LowPrecisionCompute::Fp8);
            assert_eq!(found[0], products[0], "the result");
            assert_ne!(found[1], products[1], "the gradient of the input");
            assert_eq!(found[2..], products[2..], "the gradients of adapter and matrix");
            assert_eq!(found.len(), 4 + usize::from(is_trained));
        }
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
    // The norm makes the codes of rows of 96 itself.
    for (side, width) in computing()
        .iter()
        .flat_map(|side| [85, 96].map(|width| (side, width)))
    {
        let x = side.device.plain(values(1, &[2, 5, width]), &[2, 5, width]);
        let modulation = side.device.plain(values(2, &[2, 2, width]), &[2, 2, width]);
        let layers = [(3, Fp8), (4, Storage), (5, Fp8)].map(|(draw, compute)| {
            let of = LowPrecision {
                format: LowPrecisionFormat::Fp8,
                compute,
                rows: 30,
                columns: width,
            };
            let words = of.quantise(&values(draw, &[30, width])).expect("finite values");
            LinearWeights {
                weight: side.device.words(words),
                low_precision: Some(of),
                bias: None,
                adapter: None,
            }
        });
        let [together, apart] = [fused(side).kernels, side.kernels.clone()].map(|kernels| {
            let outputs = kernels.ops().fused_or_composed(|ops| {
                let norm = ModulatedNorm {
                    x: &x,
                    modulation: &modulation,
                    chunks: NORM,
                };
                ops.modulated_linears(&Compute, norm, &layers)
            });
            let bits = |output: &DispatchTensor| -> Vec<u32> {
                to_host(output).into_iter().map(f32::to_bits).collect()
            };
            outputs.iter().map(bits).collect::<Vec<_>>()
        });
        assert_eq!(together, apart, "rows of {width}");
    }
}

fn fused(side: &Side) -> Side {
    Side {
        device: side.device.clone(),
        kernels: side.kernels.fused(Arc::new(|| {})).expect("not fused yet"),
    }
}

/// A layer whose frozen matrix `[outputs, inputs]` is multiplied as codes, with a bias if there is one, and with an adapter if there are `A`
/// and `B`.
fn layer_of_codes(
    side: &Side,
    draw: u64,
    [outputs, inputs]: [usize; 2],
    bias: Option<&DispatchTensor>,
    adapter: Option<&[DispatchTensor]>,
) -> LinearWeights {
    let of = LowPrecision {
        format: LowPrecisionFormat::Fp8,
        compute: LowPrecisionCompute::Fp8,
        rows: outputs,
        columns: inputs,
    };
    let words = of
        .quantise(&values(draw, &[outputs, inputs]))
        .expect("finite values");
    LinearWeights {
        weight: side.device.words(words),
        low_precision: Some(of),
        bias: bias.cloned(),
        adapter: adapter.map(|factors| (factors[0].clone(), factors[1].clone(), 0.5)),
    }
}

#[derive(Clone, Copy, Debug)]
enum Made {
    Linear,
    Linears,
    FeedForward,
}

/// Inputs of an operation.
const INPUTS: usize = 12;

/// Their shapes: rows, modulation, biases of a layer up and of one down, their adapters, and those of two more layers up.
fn shapes([width, inner]: [usize; 2]) -> [Vec<usize>; INPUTS] {
    [
        vec![2, 5, width],
        vec![2, 3, width],
        vec![inner],
        vec![width],
        vec![RANK, width],
        vec![inner, RANK],
        vec![RANK, inner],
        vec![width, RANK],
        vec![RANK, width],
        vec![inner, RANK],
        vec![RANK, width],
        vec![inner, RANK],
    ]
}

/// An operation whose layers multiply codes; `adapters` says whether the first layer has one, and whether the others have.
fn compute(
    made: Made,
    side: &Side,
    stash: &dyn Stash,
    adapters: [bool; 2],
    inputs: &[DispatchTensor],
) -> Vec<DispatchTensor> {
    let norm = ModulatedNorm {
        x: &inputs[0],
        modulation: &inputs[1],
        chunks: NORM,
    };
    let [inner, width] = [2, 3].map(|bias| shape(&inputs[bias])[0]);
    let [first, others] = adapters;
    let up = |draw, bias, has_adapter: bool, at: usize| {
        let adapter = has_adapter.then_some(&inputs[at..at + 2]);
        layer_of_codes(side, draw, [inner, width], bias, adapter)
    };
    let with_bias = up(30, Some(&inputs[2]), first, 4);
    let activation = Activation::GeluTanh;
    side.kernels.ops().fused_or_composed(|ops| match made {
        Made::Linear => vec![ops.modulated_linear(stash, norm, &with_bias, activation)],
        Made::Linears => {
            let layers = [with_bias, up(31, None, others, 8), up(32, None, others, 10)];
            ops.modulated_linears(stash, norm, &layers)
        }
        Made::FeedForward => {
            let adapter = others.then_some(&inputs[6..8]);
            let weights = FeedForwardWeights {
                up: with_bias,
                activation,
                down: layer_of_codes(side, 33, [width, inner], Some(&inputs[3]), adapter),
            };
            vec![ops.modulated_feed_forward(stash, norm, &weights, 2)]
        }
    })
}

#[test]
fn fused_operations_that_make_codes_have_the_bits_of_the_composed_ones() {
    let all = [true; INPUTS];
    let none = [false; INPUTS];
    let all_but_modulation: [bool; INPUTS] = std::array::from_fn(|at| at != 1);
    for side in computing() {
        let fused = fused(&side);
        // Kernels make the codes of rows of multiples of 16.
        for size in [[32, 48], [24, 40]] {
            let shapes = shapes(size);
            let with = |tracked: [bool; INPUTS]| -> Vec<Input<'_>> {
                shapes.iter().map(Vec::as_slice).zip(tracked).collect()
            };
            let every = [[false, false], [true, false], [true, true]];
            let operations = [Made::Linear, Made::Linears, Made::FeedForward];
            for (made, adapters) in operations.iter().flat_map(|made| every.map(|has| (*made, has))) {
                let name = format!("{:?}, {made:?} of {size:?}, adapters {adapters:?}", side.kernels);
                let by = |side: &Side, tracked| {
                    run(side, &with(tracked), &|side, inputs| {
                        compute(made, side, &Compute, adapters, inputs)
                    })
                };
                let alone = by(&fused, none);
                for tracked in [all, all_but_modulation] {
                    let (expected, found) = (by(&side, tracked), by(&fused, tracked));
                    assert!(expected == found, "{name}, {tracked:?}");
                    assert!(alone[..] == found[..alone.len()], "{name}, {tracked:?}");
                }
                let keep = Keep::default();
                let through_keep = |side: &Side, inputs: &[DispatchTensor]| {
                    keep.again();
                    compute(made, side, &keep, adapters, inputs)
                };
                let kept = run(&fused, &with(none), &through_keep);
                assert!(kept == alone, "{name}: kept");
                let replayed = run(&fused, &with(all), &through_keep);
                assert!(replayed == by(&side, all), "{name}: from what was kept");
            }
        }
    }
}

/// Writes rows as codes, and as numbers where there is room for them.
type Make<'a> = &'a dyn Fn(Option<&Buffer>, &RowCodes) -> Result<(), Refusal>;

#[test]
fn kernels_that_make_rows_give_the_codes_that_these_are_quantised_to() {
    let (batch, tokens, channels) = (2, 13, 336);
    let shape = [batch * tokens, channels];
    for side in computing() {
        let element = match side.kernels.activations() {
            DType::BF16 => Element::Bf16,
            _ => Element::F32,
        };
        let like = side.device.plain(vec![0.0], &[1]);
        let client = &cube::read(&like).expect("a tensor of the device").client;
        let mut x: Vec<f64> = values(1, &shape).into_iter().map(f64::from).collect();
        // A row that is no number, and one of zeros.
        x[3 * channels + 7] = f64::NAN;
        x[5 * channels..6 * channels].fill(0.0);
        let x = Buffer::upload(client, &x, element);
        let modulation: Vec<f64> = values(2, &[batch, 2, channels])
            .into_iter()
            .map(f64::from)
            .collect();
        let modulation = Buffer::upload(client, &modulation, element);
        let compare = |name: &str, make: Make<'_>| {
            let [beside, alone] = [(); 2].map(|()| Quantised::empty(client, shape));
            let room = |of: &Quantised| RowCodes {
                codes: of.codes.handle.clone(),
                scales: of.scales.handle.clone(),
            };
            let y = Buffer::empty(client, x.length, element);
            make(Some(&y), &room(&beside)).expect("it fits");
            make(None, &room(&alone)).expect("it fits");
            let rows = Matrix::contiguous(y.handle.clone(), shape);
            let expected = Quantised::new(client, &rows, element).expect("a matrix of numbers");
            let bytes = |of: &Quantised| {
                [&of.codes.handle, &of.scales.handle].map(|handle| {
                    let read = client.read_one(handle.clone());
                    read.expect("the device gives its memory back").to_vec()
                })
            };
            let expected = bytes(&expected);
            assert!(bytes(&beside) == expected, "{name}, {}", element.name());
            assert!(bytes(&alone) == expected, "{name} alone, {}", element.name());
        };
        let norm = NormSizes {
            batch,
            tokens,
            channels,
            chunks: 2,
            shift: 0,
            scale: 1,
            unit: 1.0,
            epsilon: 1e-6,
        };
        compare("layer norm", &|y, codes| {
            norm.forward_codes(client, &x, &modulation, y, codes)
        });
        for function in [Function::Silu, Function::GeluTanh] {
            compare(&format!("{function:?}"), &|y, codes| {
                activation::forward_codes(client, &x, channels, y, codes, function)
            });
        }
    }
}
