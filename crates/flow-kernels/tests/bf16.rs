//! Products of bf16 operands, where the processor has them; elsewhere the kernels say so.

mod support;

use flow_core::ops::{Compute, LinearWeights};
use flow_core::{Activation, Kernels};
use flow_kernels::host::bf16::{is_supported, multiply};
use flow_kernels::host::matrix::{Matrix, MatrixMut, Write};
use flow_kernels::{CpuKernels, KernelRegistry, register};
use support::{bits, check, coarse, distance, operand, run};

/// Rows, depth, columns: around every edge of the tiles.
const SHAPES: [[usize; 3]; 9] = [
    [1, 1, 1],
    [11, 2, 31],
    [12, 15, 32],
    [13, 16, 33],
    [23, 17, 64],
    [241, 64, 65],
    [5, 333, 7],
    [12, 0, 32],
    [481, 48, 16],
];

/// The nearest bf16 value, ties to even, by the definition.
fn rounded(value: f32) -> f64 {
    let bits = value.to_bits();
    let (kept, rest) = (bits >> 16, bits & 0xffff);
    let up = rest > 0x8000 || (rest == 0x8000 && kept & 1 == 1);
    f64::from(f32::from_bits((kept + u32::from(up)) << 16))
}

/// The kernels in bf16; where the processor has no such instructions, the test that asks says that it is skipped.
#[track_caller]
fn bf16() -> Option<CpuKernels> {
    let kernels = CpuKernels::bf16();
    if let Err(why) = &kernels {
        test_support::skipped(why);
    }
    kernels.ok()
}

#[test]
fn the_registry_has_the_kernels_exactly_where_the_processor_has_the_instructions() {
    let mut registry = KernelRegistry::default();
    register(&mut registry).expect("a new registry");
    assert_eq!(registry.get("cpu-bf16").is_ok(), is_supported());
    match CpuKernels::bf16() {
        Ok(kernels) => assert_eq!(kernels.name(), "cpu-bf16"),
        Err(error) => assert!(!is_supported() && error.to_string().contains("AVX512_BF16")),
    }
}

#[test]
fn products_are_those_of_the_rounded_operands_in_every_layout() {
    if bf16().is_none() {
        return;
    }
    for [rows, depth, columns] in SHAPES {
        let (a, b) = (operand(1, &[rows, depth]), operand(2, &[depth, columns]));
        let mut expected = vec![0.0; rows * columns];
        for row in 0..rows {
            for column in 0..columns {
                expected[row * columns + column] = (0..depth)
                    .map(|k| rounded(a.values[row * depth + k]) * rounded(b.values[k * columns + column]))
                    .sum();
            }
        }
        let transposed = |values: &[f32], rows: usize, columns: usize| -> Vec<f32> {
            (0..rows * columns)
                .map(|at| values[at % rows * columns + at / rows])
                .collect()
        };
        let (a_t, b_t) = (
            transposed(&a.values, rows, depth),
            transposed(&b.values, depth, columns),
        );
        let lefts = [
            Matrix::new(&a.values, rows, depth, depth),
            Matrix::new(&a_t, depth, rows, rows).transposed(),
        ];
        let rights = [
            Matrix::new(&b.values, depth, columns, columns),
            Matrix::new(&b_t, columns, depth, depth).transposed(),
        ];
        let mut first: Option<Vec<f32>> = None;
        for left in lefts {
            for right in rights {
                // Rows further apart than they are long; what lies between stays as it is.
                let stride = columns + 3;
                let mut values = vec![0.25; rows * stride];
                multiply(
                    &mut MatrixMut::new(&mut values, rows, columns, stride),
                    left,
                    right,
                    Write::Add,
                );
                let (mut found, mut between) = (Vec::new(), Vec::new());
                for row in values.chunks_exact(stride) {
                    found.extend_from_slice(&row[..columns]);
                    between.extend_from_slice(&row[columns..]);
                }
                assert!(between.iter().all(|value| *value == 0.25));
                let wanted: Vec<f64> = expected.iter().map(|value| value + 0.25).collect();
                let error = distance(&found, &wanted);
                assert!(
                    error < 1e-6,
                    "[{rows}, {depth}] · [{depth}, {columns}]: {error:e} off"
                );
                let first = first.get_or_insert_with(|| found.clone());
                assert_eq!(bits(first), bits(&found), "the layout does not matter");
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_among_others() {
    if bf16().is_none() {
        return;
    }
    let (rows, depth, columns) = (37, 29, 50);
    let (a, b) = (operand(3, &[rows, depth]), operand(4, &[depth, columns]));
    let right = Matrix::new(&b.values, depth, columns, columns);
    let product = |from: usize, to: usize| {
        let left = Matrix::new(&a.values[from * depth..to * depth], to - from, depth, depth);
        let mut values = vec![f32::NAN; (to - from) * columns];
        let mut output = MatrixMut::new(&mut values, to - from, columns, columns);
        multiply(&mut output, left, right, Write::Replace);
        values
    };
    let all = product(0, rows);
    for row in 0..rows {
        assert_eq!(
            bits(&product(row, row + 1)),
            bits(&all[row * columns..][..columns]),
            "row {row}"
        );
    }
}

#[test]
fn a_linear_layer_of_values_that_bf16_holds_has_the_output_and_gradients_of_f64() {
    let Some(kernels) = bf16() else {
        return;
    };
    let (rows, inputs, outputs) = (21, 13, 7);
    let operands = [
        coarse(1, &[rows, inputs]),
        coarse(2, &[outputs, inputs]),
        operand(3, &[outputs]),
    ];
    let reference = |values: &[Vec<f64>]| {
        let mut y = Vec::new();
        for x in values[0].chunks_exact(inputs) {
            for (w, bias) in values[1].chunks_exact(inputs).zip(&values[2]) {
                y.push(bias + x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>());
            }
        }
        y
    };
    check(&operands, &reference, &|inputs| {
        let weights = LinearWeights {
            low_precision: None,
            weight: inputs[1].clone(),
            bias: Some(inputs[2].clone()),
            adapter: None,
        };
        kernels
            .ops()
            .model
            .linear(&Compute, &inputs[0], &weights, Activation::None)
    });
}

#[test]
fn adapter_and_activation_stay_within_the_rounding_of_bf16() {
    let Some(kernels) = bf16() else {
        return;
    };
    let operands = [
        operand(1, &[65, 48]),
        operand(2, &[40, 48]),
        operand(3, &[8, 48]),
        operand(4, &[40, 8]),
    ];
    let seed = operand(9, &[65, 40]);
    let [(output, gradients), (expected, exact)] = [kernels, CpuKernels::default()].map(|kernels| {
        run(
            &operands,
            &[true; 4],
            &|inputs| {
                let weights = LinearWeights {
                    low_precision: None,
                    weight: inputs[1].clone(),
                    bias: None,
                    adapter: Some((inputs[2].clone(), inputs[3].clone(), 1.5)),
                };
                kernels
                    .ops()
                    .model
                    .linear(&Compute, &inputs[0], &weights, Activation::GeluTanh)
            },
            &seed,
        )
    });
    let wide = |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect::<Vec<_>>();
    let error = distance(&output, &wide(&expected));
    // Two roundings of a relative 2^-9 each, and they are there.
    assert!((1e-4..8e-3).contains(&error), "output: {error:e}");
    for (index, (found, exact)) in gradients.iter().zip(&exact).enumerate() {
        let [found, exact] = [found, exact].map(|gradient| gradient.as_ref().expect("tracked"));
        let error = distance(found, &wide(exact));
        assert!((1e-4..2e-2).contains(&error), "gradient {index}: {error:e}");
    }
}
