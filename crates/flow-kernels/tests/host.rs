//! The elementary functions' documented error bounds, and the registry.

use flow_kernels::host::math::{exp, gelu_tanh, ln, sigmoid, silu};
use flow_kernels::host::matrix::{Matrix, MatrixMut, Write, multiply};
use flow_kernels::host::narrow::multiply_narrow;
use flow_kernels::{CpuKernels, KernelRegistry, register};
use std::sync::Arc;

/// Every 997th f32 of both signs, finite, and the neighbourhood of the bounds.
fn many() -> impl Iterator<Item = f32> {
    (0..=u32::MAX / 997)
        .map(|index| f32::from_bits(index * 997))
        .filter(|x| x.is_finite())
}

#[test]
fn the_exponential_keeps_its_error_bound() {
    let mut worst = 0.0f64;
    for x in many().filter(|x| (-87.0..=88.0).contains(x)) {
        let expected = f64::from(x).exp();
        worst = worst.max((f64::from(exp(x)) / expected - 1.0).abs());
    }
    assert!(worst <= 2e-7, "{worst:e}");
    assert_eq!((exp(0.0), exp(-87.5), exp(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
    assert_eq!((exp(89.0), exp(f32::INFINITY)), (exp(88.0), exp(88.0)));
    assert!(exp(88.0).is_finite() && exp(f32::NAN).is_nan());
}

#[test]
fn the_logarithm_keeps_its_error_bound() {
    let mut worst = 0.0f64;
    for x in many().filter(|x| *x >= f32::MIN_POSITIVE) {
        let expected = f64::from(x).ln();
        worst = worst.max((f64::from(ln(x)) - expected).abs() / expected.abs().max(1.0));
    }
    assert!(worst <= 2e-7, "{worst:e}");
    assert_eq!((ln(1.0), ln(f32::INFINITY)), (0.0, f32::INFINITY));
    assert!(ln(f32::NAN).is_nan());
}

#[test]
fn the_sigmoid_keeps_its_error_bound() {
    let mut worst = 0.0f64;
    for x in many().filter(|x| *x >= -87.0) {
        let expected = 1.0 / (1.0 + (-f64::from(x)).exp());
        worst = worst.max((f64::from(sigmoid(x)) / expected - 1.0).abs());
    }
    assert!(worst <= 5e-7, "{worst:e}");
    assert_eq!(
        (sigmoid(-87.5), sigmoid(f32::NEG_INFINITY), sigmoid(f32::INFINITY)),
        (0.0, 0.0, 1.0)
    );
    assert!(sigmoid(f32::NAN).is_nan());
}

#[test]
fn activations_are_finite_and_near_f64_everywhere() {
    for x in many() {
        let wide = f64::from(x);
        let expected = wide / (1.0 + (-wide).exp());
        assert!(
            (f64::from(silu(x)) - expected).abs() <= 1e-6 * wide.abs().min(1e30) + 1e-36,
            "silu({x})"
        );
        let u = (2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044715 * wide * wide * wide);
        let expected = 0.5 * wide * (1.0 + u.tanh());
        let error = (f64::from(gelu_tanh(x)) - expected).abs();
        assert!(
            error <= 1e-6 * wide.abs() + 1e-36,
            "gelu({x}) = {} not {expected}",
            gelu_tanh(x)
        );
    }
}

#[test]
#[should_panic(expected = "a matrix of 3 rows of 4 values, 5 apart, in 13 values")]
fn a_view_beyond_its_values_is_refused() {
    Matrix::new(&[0.0; 13], 3, 4, 5);
}

#[test]
#[should_panic(expected = "a product of [2, 3] and [2, 3] into [2, 3]")]
fn a_product_of_shapes_that_do_not_fit_is_refused() {
    let (a, mut c) = ([0.0; 6], [0.0; 6]);
    let a = Matrix::new(&a, 2, 3, 3);
    multiply(&mut MatrixMut::new(&mut c, 2, 3, 3), a, a, Write::Replace);
}

#[test]
fn an_unknown_name_lists_what_there_is_and_the_nearest() {
    let mut registry = KernelRegistry::default();
    register(&mut registry).expect("a new registry");
    assert_eq!(registry.get("cpu").expect("registered").name(), "cpu");
    // `register` adds more on some processors.
    let mut registry = KernelRegistry::default();
    let added = registry.register(Arc::new(CpuKernels::default()));
    added.expect("a new registry");
    let error = registry.get("gpu").expect_err("not registered").to_string();
    assert_eq!(
        error,
        "there is no kernel set `gpu`; available: cpu. The nearest name is `cpu`"
    );
}

#[test]
fn narrow_products_agree_with_f64_at_awkward_sizes_and_strides() {
    let value = |index: usize| ((index * 7919) % 2000) as f32 / 1000.0 - 1.0;
    for (rows, depth, columns) in [
        (1, 1, 16),
        (7, 13, 32),
        (21, 129, 48),
        (64, 300, 64),
        (3, 257, 80),
        (5, 0, 16),
    ] {
        let a: Vec<f32> = (0..rows.max(depth) * (rows.max(depth) + 3)).map(value).collect();
        let b: Vec<f32> = (0..depth * columns).map(|index| value(index + 5)).collect();
        let stride = rows.max(depth) + 3;
        let a = [
            Matrix::new(&a, rows, depth, stride),
            Matrix::new(&a, depth, rows, stride).transposed(),
        ];
        for (a, transposed) in a.into_iter().zip([false, true]) {
            for write in [Write::Replace, Write::Add] {
                let mut output: Vec<f32> = (0..rows * columns).map(|index| value(index + 9)).collect();
                let before = output.clone();
                multiply_narrow(&mut output, a, &b, columns, write);
                for (at, found) in output.iter().enumerate() {
                    let (row, column) = (at / columns, at % columns);
                    let mut expected = if write == Write::Add {
                        f64::from(before[at])
                    } else {
                        0.0
                    };
                    for k in 0..depth {
                        let index = if transposed {
                            k * stride + row
                        } else {
                            row * stride + k
                        };
                        expected += f64::from(value(index)) * f64::from(b[k * columns + column]);
                    }
                    let bound = 1e-7 * (depth as f64 + 1.0);
                    assert!(
                        (f64::from(*found) - expected).abs() <= bound,
                        "{rows} {depth} {columns}: {found} {expected}"
                    );
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "24 columns are not whole vectors")]
fn a_narrow_product_of_broken_vectors_is_refused() {
    multiply_narrow(
        &mut [0.0; 24],
        Matrix::new(&[1.0], 1, 1, 1),
        &[0.0; 24],
        24,
        Write::Replace,
    );
}
