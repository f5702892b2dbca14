//! Products with matrices in low precision: those of the widened matrix, bit for bit, results and gradients; and products of codes, against
//! their definition in f64.

mod support;

use burn::backend::DispatchTensor;
use flow_core::cpu::{from_vec, to_host};
use flow_core::device::ComputeDevice;
use flow_core::ops::{Compute, FeedForwardWeights, GatedResidual, LinearWeights, ModulatedNorm, NormChunks};
use flow_core::{Activation, Kernels, LowPrecision, LowPrecisionCompute, LowPrecisionFormat, RawTensor};
use flow_kernels::CpuKernels;
use half::bf16;
use std::sync::Arc;
use support::{Operand, bits, distance, on_threads, operand, run};

const WIDTH: usize = 18;
const INNER: usize = 29;
const RANK: usize = 3;
const WIDENED: LowPrecisionCompute = LowPrecisionCompute::Storage;
const CODES: LowPrecisionCompute = LowPrecisionCompute::Fp8;
const CODES_OF_GRADIENTS: LowPrecisionCompute = LowPrecisionCompute::Fp8WithDataGradient;

/// A frozen matrix, as it was and widened.
struct Matrix {
    of: LowPrecision,
    values: Vec<f32>,
    widened: RawTensor,
}

impl Matrix {
    fn new(format: LowPrecisionFormat, seed: u64, [rows, columns]: [usize; 2]) -> Self {
        let of = LowPrecision {
            format,
            compute: WIDENED,
            rows,
            columns,
        };
        let values = operand(seed, &[rows, columns]).values;
        let words = of.quantise(&values).expect("finite values");
        Self {
            of,
            values,
            widened: from_vec(of.widen(&words), &[rows, columns]),
        }
    }

    /// The matrix as `form` stores it.
    fn words(&self, form: LowPrecision) -> RawTensor {
        let words = form.quantise(&self.values).expect("finite values");
        ComputeDevice::cpu().words(words)
    }

    /// A layer with bias and adapter, `others`, and this matrix: in words for such products, or widened before.
    fn layer(&self, others: &[DispatchTensor], in_words: Option<LowPrecisionCompute>) -> LinearWeights {
        let low_precision = in_words.map(|compute| LowPrecision { compute, ..self.of });
        LinearWeights {
            weight: low_precision.map_or_else(|| self.widened.clone(), |form| self.words(form)),
            low_precision,
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
    in_words: Option<LowPrecisionCompute>,
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
            ops.linear_gated_residual(&Compute, gated, &[&inner], &down)
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
                let of = |in_words: Option<LowPrecisionCompute>| {
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
                let ((found, gradients), (expected, of_widened)) = (of(Some(WIDENED)), of(None));
                assert_eq!(bits(&found), bits(&expected), "{name}");
                let in_bits = |all: &[Option<Vec<f32>>]| -> Vec<Option<Vec<u32>>> {
                    all.iter().map(|one| one.as_deref().map(bits)).collect()
                };
                assert_eq!(in_bits(&gradients), in_bits(&of_widened), "{name}, gradients");
            }
        }
    }
}

/// The magnitudes of e4m3: 4 bits of exponent with bias 7, 3 of mantissa.
fn magnitudes() -> Vec<f64> {
    let magnitude = |code: i32| match (code >> 3, f64::from(code & 7)) {
        (0, mantissa) => mantissa / 8.0 * 2f64.powi(-6),
        (exponent, mantissa) => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
    };
    (0..127).map(magnitude).collect()
}

/// A row of activations as a product of codes takes it: the number nearest to each quotient with the scale, of two the one with the even
/// code, times the scale.
fn quantised(row: &[f32]) -> Vec<f64> {
    let largest = row.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    if largest == 0.0 {
        return vec![0.0; row.len()];
    }
    let (scale, magnitudes) = (bf16::from_f32(largest / 448.0).to_f32(), magnitudes());
    let nearest = |x: &f32| {
        let quotient = f64::from(x / scale).clamp(-448.0, 448.0);
        let key = |code: &usize| ((magnitudes[*code] - quotient.abs()).abs(), code % 2);
        let smaller = |a: usize, b: usize| if key(&b) < key(&a) { b } else { a };
        let code = (0..magnitudes.len()).reduce(smaller).expect("there are codes");
        magnitudes[code].copysign(quotient) * f64::from(scale)
    };
    row.iter().map(nearest).collect()
}

/// `quantised(x) Wᵀ + b + scale · (x Aᵀ) Bᵀ` in f64, `W` being the widened matrix.
fn defined(x: &[f32], matrix: &Matrix, others: &[Operand; 3]) -> Vec<f64> {
    let (rows, columns) = (matrix.of.rows, matrix.of.columns);
    let widened: Vec<f64> = to_host(&matrix.widened).into_iter().map(f64::from).collect();
    let [bias, down, up] = others.each_ref().map(Operand::wide);
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let mut result = Vec::new();
    for row in x.chunks(columns) {
        let wide: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
        let reduced: Vec<f64> = down.chunks(columns).map(|of_rank| dot(&wide, of_rank)).collect();
        let codes = quantised(row);
        result.extend((0..rows).map(|at| {
            let of_matrix = dot(&codes, &widened[at * columns..][..columns]);
            of_matrix + bias[at] + 0.5 * dot(&reduced, &up[at * RANK..][..RANK])
        }));
    }
    result
}

/// The result of a layer of `x`, `[rows, columns]`, in such products.
fn product(x: Vec<f32>, matrix: &Matrix, others: &[Operand; 3], in_words: LowPrecisionCompute) -> Vec<f32> {
    let rows = x.len() / matrix.of.columns;
    let x = from_vec(x, &[rows, matrix.of.columns]);
    let others = others.each_ref().map(Operand::plain);
    let layer = matrix.layer(&others, Some(in_words));
    let kernels = CpuKernels::default();
    to_host(&kernels.ops().model.linear(&Compute, &x, &layer, Activation::None))
}

/// Rows of very different size, the first of zeros.
fn activations(rows: usize, columns: usize) -> Vec<f32> {
    let mut x = operand(7, &[rows, columns]).values;
    for (number, row) in x.chunks_mut(columns).enumerate() {
        let size = if number == 0 {
            0.0
        } else {
            10f32.powi(number as i32 % 9 - 4)
        };
        row.iter_mut().for_each(|value| *value *= size);
        // An outlier, in whose steps the others are rounded.
        row[number % columns] *= 30.0;
    }
    x
}

#[test]
fn products_of_codes_are_those_of_their_definition_row_by_row() {
    for [rows, outputs, columns] in [[1, 1, 1], [7, 5, 3], [33, 29, 18], [70, 130, 67]] {
        let matrix = Matrix::new(LowPrecisionFormat::Fp8, 1, [outputs, columns]);
        let others = others(10, [outputs, columns]);
        let x = activations(rows, columns);
        let found = product(x.clone(), &matrix, &others, CODES);
        let expected = defined(&x, &matrix, &others);
        // Each row by its own size: rows differ by orders.
        for (number, (found, expected)) in found.chunks(outputs).zip(expected.chunks(outputs)).enumerate() {
            let error = distance(found, expected);
            assert!(
                error < 2e-6,
                "{rows} x {outputs} x {columns}, row {number}: {error:e} off"
            );
            let row = x[number * columns..][..columns].to_vec();
            let alone = product(row, &matrix, &others, CODES);
            assert_eq!(bits(found), bits(&alone), "row {number} alone");
        }
        let widened = product(x.clone(), &matrix, &others, WIDENED);
        assert!(
            columns < 3 || bits(&found) != bits(&widened),
            "activations are rounded"
        );
        let one_thread = on_threads(1, || product(x.clone(), &matrix, &others, CODES));
        assert_eq!(bits(&found), bits(&one_thread), "one thread");
    }
}

#[test]
fn a_row_that_is_not_finite_gives_no_number_and_leaves_the_others_alone() {
    let matrix = Matrix::new(LowPrecisionFormat::Fp8, 1, [INNER, WIDTH]);
    let others = others(10, [INNER, WIDTH]);
    let x = activations(3, WIDTH);
    let whole = product(x.clone(), &matrix, &others, CODES);
    for wrong in [f32::NAN, f32::INFINITY] {
        let mut x = x.clone();
        x[WIDTH + 3] = wrong;
        let found = product(x, &matrix, &others, CODES);
        let rows: Vec<&[f32]> = found.chunks(INNER).collect();
        // The adapter reads the row as it is.
        assert!(rows[1].iter().all(|value| !value.is_finite()), "{wrong}");
        assert_eq!(bits(rows[0]), bits(&whole[..INNER]));
        assert_eq!(bits(rows[2]), bits(&whole[2 * INNER..]));
    }
}

#[test]
fn gradients_of_products_of_codes_are_those_of_the_widened_matrix() {
    let [up, down] = [(1, [INNER, WIDTH]), (2, [WIDTH, INNER])]
        .map(|(seed, shape)| Matrix::new(LowPrecisionFormat::Fp8, seed, shape));
    let mut operands = vec![operand(3, &[2, 5, WIDTH])];
    operands.extend(others(10, [INNER, WIDTH]));
    let seed = operand(5, &[2, 5, INNER]);
    let of = |in_words: LowPrecisionCompute| {
        let kernel = |inputs: &[DispatchTensor]| {
            let weights = up.layer(&inputs[1..], Some(in_words));
            let kernels = CpuKernels::default();
            kernels
                .ops()
                .model
                .linear(&Compute, &inputs[0], &weights, Activation::None)
        };
        run(&operands, &[true; 4], &kernel, &seed)
    };
    let ((found, gradients), (widened, expected)) = (of(CODES), of(WIDENED));
    assert_ne!(bits(&found), bits(&widened));
    for (number, (found, expected)) in gradients.iter().zip(&expected).enumerate() {
        let [found, expected] = [found, expected].map(|values| bits(values.as_deref().expect("tracked")));
        assert_eq!(found, expected, "input {number}");
    }

    // What several layers make together, by the fused form and one by one.
    let plain = CpuKernels::default();
    let fused = plain
        .fused(Arc::new(|| {}))
        .expect("the processor's kernels have a fused form");
    let mut operands = vec![operand(3, &[2, 5, WIDTH]), operand(4, &[2, 3, WIDTH])];
    operands.extend(others(10, [INNER, WIDTH]));
    operands.extend(others(20, [WIDTH, INNER]));
    let seed = operand(6, &[2, 5, WIDTH]);
    for (which, compute) in [1, 2]
        .into_iter()
        .flat_map(|which| [(which, CODES), (which, CODES_OF_GRADIENTS)])
    {
        for tracked in [[true; 8], [false; 8]] {
            let of = |kernels: &dyn Kernels| {
                let kernel = |inputs: &[DispatchTensor]| {
                    operation(which, kernels, [&up, &down], Some(compute), inputs)
                };
                run(&operands, &tracked, &kernel, &seed)
            };
            let ((found, gradients), (expected, composed)) = (of(&*fused), of(&plain));
            assert_eq!(bits(&found), bits(&expected), "operation {which}, {compute:?}");
            assert_eq!(gradients, composed, "operation {which}, {compute:?}, gradients");
        }
    }
}

#[test]
fn a_trained_matrix_is_rounded_as_one_that_is_stored_and_has_the_gradients_of_one_that_is_not_rounded() {
    let matrix = Matrix::new(LowPrecisionFormat::Fp8, 1, [INNER, WIDTH]);
    let mut operands = vec![operand(3, &[2, 5, WIDTH])];
    operands.extend(others(10, [INNER, WIDTH]));
    operands.push(Operand {
        values: matrix.values.clone(),
        shape: vec![INNER, WIDTH],
    });
    let seed = operand(5, &[2, 5, INNER]);
    let kernels = CpuKernels::default();
    let of = |low_precision: Option<LowPrecision>| {
        let kernel = |inputs: &[DispatchTensor]| {
            let layer = LinearWeights {
                weight: inputs[4].clone(),
                low_precision,
                ..matrix.layer(&inputs[1..4], None)
            };
            let model = kernels.ops().model;
            model.linear(&Compute, &inputs[0], &layer, Activation::None)
        };
        run(&operands, &[true; 5], &kernel, &seed)
    };
    let form = LowPrecision {
        compute: CODES,
        ..matrix.of
    };
    let ((found, gradients), (unrounded, expected)) = (of(Some(form)), of(None));
    let plain: Vec<RawTensor> = operands[1..4].iter().map(Operand::plain).collect();
    let stored = matrix.layer(&plain, Some(CODES));
    let model = kernels.ops().model;
    let stored = model.linear(&Compute, &operands[0].plain(), &stored, Activation::None);
    assert_eq!(bits(&found), bits(&to_host(&stored)));
    assert_ne!(bits(&found), bits(&unrounded));
    assert!(gradients.iter().all(Option::is_some));
    assert_eq!(gradients, expected);
}

/// Whether a layer's matrix is numbers, which are trained, or words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    Frozen,
    Trained,
}

/// `quantised(g) Q + scale · (g B) A` in f64, the columns of `Q` being those of the widened matrix, or of the trained one as it is, each
/// quantised as a row is.
fn defined_gradient(gradient: &[f32], (matrix, is): (&Matrix, Is), others: &[Operand; 3]) -> Vec<f64> {
    let (outputs, columns) = (matrix.of.rows, matrix.of.columns);
    let values = match is {
        Is::Frozen => to_host(&matrix.widened),
        Is::Trained => matrix.values.clone(),
    };
    let copy: Vec<Vec<f64>> = (0..columns)
        .map(|column| {
            let values: Vec<f32> = values.iter().skip(column).step_by(columns).copied().collect();
            quantised(&values)
        })
        .collect();
    let [_, down, up] = others.each_ref().map(Operand::wide);
    let mut result = Vec::new();
    for row in gradient.chunks(outputs) {
        let codes = quantised(row);
        let reduced: Vec<f64> = (0..RANK)
            .map(|rank| {
                let of_rank = up.iter().skip(rank).step_by(RANK);
                row.iter().zip(of_rank).map(|(g, b)| f64::from(*g) * b).sum()
            })
            .collect();
        result.extend(copy.iter().enumerate().map(|(column, of_column)| {
            let of_matrix: f64 = codes.iter().zip(of_column).map(|(g, w)| g * w).sum();
            let of_down = down.iter().skip(column).step_by(columns);
            let of_adapter: f64 = reduced.iter().zip(of_down).map(|(r, a)| r * a).sum();
            of_matrix + 0.5 * of_adapter
        }));
    }
    result
}

/// The gradients of a layer's input, bias, `A` and `B`, and of its matrix if that is trained, for that of its result, `gradient
/// [rows, outputs]`; behind its result.
fn gradients(
    gradient: &[f32],
    (matrix, is): (&Matrix, Is),
    others: &[Operand; 3],
    compute: LowPrecisionCompute,
) -> Vec<Vec<f32>> {
    let (outputs, columns) = (matrix.of.rows, matrix.of.columns);
    let rows = gradient.len() / outputs;
    let mut operands = vec![Operand {
        values: operand(7, &[70, columns]).values[..rows * columns].to_vec(),
        shape: vec![rows, columns],
    }];
    operands.extend(others.iter().cloned());
    if is == Is::Trained {
        operands.push(Operand {
            values: matrix.values.clone(),
            shape: vec![outputs, columns],
        });
    }
    let kernels = CpuKernels::default();
    let kernel = |inputs: &[DispatchTensor]| {
        let mut layer = matrix.layer(&inputs[1..], Some(compute));
        if is == Is::Trained {
            layer.weight = inputs[4].clone();
        }
        let model = kernels.ops().model;
        model.linear(&Compute, &inputs[0], &layer, Activation::None)
    };
    let seed = Operand {
        values: gradient.to_vec(),
        shape: vec![rows, outputs],
    };
    let tracked = vec![true; operands.len()];
    let (result, found) = run(&operands, &tracked, &kernel, &seed);
    let found = found.into_iter().map(|values| values.expect("tracked"));
    std::iter::once(result).chain(found).collect()
}

#[test]
fn input_gradients_of_codes_are_those_of_their_definition_row_by_row_and_nothing_else_is_another() {
    let sizes = [[1, 1, 1], [7, 5, 3], [33, 29, 18], [70, 130, 67]];
    let cases = [Is::Frozen, Is::Trained].map(|is| sizes.map(|size| (is, size)));
    for (is, [rows, outputs, columns]) in cases.into_iter().flatten() {
        let matrix = Matrix::new(LowPrecisionFormat::Fp8, 1, [outputs, columns]);
        let others = others(10, [outputs, columns]);
        let seed = activations(rows, outputs);
        let of = |seed: &[f32], compute| gradients(seed, (&matrix, is), &others, compute);
        let found = of(&seed, CODES_OF_GRADIENTS);
        let expected = defined_gradient(&seed, (&matrix, is), &others);
        let each = found[1].chunks(columns).zip(expected.chunks(columns)).enumerate();
        for (number, (found, expected)) in each {
            let length = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
            let size = length(&mut expected.iter().copied());
            let error = length(&mut found.iter().zip(expected).map(|(f, e)| f64::from(*f) - e));
            assert!(
                error <= 2e-5 * size,
                "{is:?}, {rows} x {outputs} x {columns}, row {number}: {error:e} off, of {size:e}"
            );
            let alone = of(&seed[number * outputs..][..outputs], CODES_OF_GRADIENTS);
            assert_eq!(bits(found), bits(&alone[1]), "row {number} alone");
        }
        // What forward gives, and the gradients of bias, adapter and matrix.
        let products = of(&seed, CODES);
        for which in (0..products.len()).filter(|which| *which != 1) {
            assert_eq!(
                bits(&found[which]),
                bits(&products[which]),
                "{is:?}, tensor {which}"
            );
        }
        assert!(
            columns < 3 || bits(&found[1]) != bits(&products[1]),
            "{is:?}: gradients are rounded"
        );
        let one_thread = on_threads(1, || of(&seed, CODES_OF_GRADIENTS));
        assert_eq!(bits(&found[1]), bits(&one_thread[1]), "one thread");
    }
}

#[test]
fn a_row_of_gradients_that_is_not_finite_gives_no_number_and_leaves_the_others_alone() {
    let matrix = Matrix::new(LowPrecisionFormat::Fp8, 1, [INNER, WIDTH]);
    let others = others(10, [INNER, WIDTH]);
    let seed = activations(3, INNER);
    let of = |seed: &[f32], is| gradients(seed, (&matrix, is), &others, CODES_OF_GRADIENTS).swap_remove(1);
    let every = [Is::Frozen, Is::Trained].map(|is| [f32::NAN, f32::INFINITY].map(|wrong| (is, wrong)));
    for (is, wrong) in every.into_iter().flatten() {
        let whole = of(&seed, is);
        let mut seed = seed.clone();
        seed[INNER + 3] = wrong;
        let found = of(&seed, is);
        let rows: Vec<&[f32]> = found.chunks(WIDTH).collect();
        // The adapter reads the row as it is.
        assert!(rows[1].iter().all(|value| !value.is_finite()), "{wrong}");
        assert_eq!(bits(rows[0]), bits(&whole[..WIDTH]));
        assert_eq!(bits(rows[2]), bits(&whole[2 * WIDTH..]));
    }
}
