//! The optimizer's operations against f64.

mod support;

use burn::tensor::FloatDType;
use flow_core::cpu::{from_vec, to_host};
use flow_core::tensors::cast;
use flow_core::{AdamWParam, AdamWStep, Kernels, MasterWeight};
use flow_kernels::CpuKernels;
use support::{bits, distance, on_threads, operand};

#[test]
fn ten_adamw_steps_agree_with_f64() {
    let (betas, epsilon, decay, rate, scale) = ((0.9f32, 0.999f32), 1e-8f32, 0.01f32, 3e-3f32, 0.25f32);
    let (b1, b2) = (f64::from(betas.0), f64::from(betas.1));
    let start = operand(1, &[77]);
    let (mut weight, mut first, mut second) = (
        start.plain(),
        from_vec(vec![0.0; 77], &[77]),
        from_vec(vec![0.0; 77], &[77]),
    );
    let (mut w, mut m, mut v) = (start.wide(), vec![0.0f64; 77], vec![0.0f64; 77]);
    for t in 1..=10 {
        let gradient = operand(100 + t, &[77]);
        let corrections = (1.0 - b1.powi(t as i32), 1.0 - b2.powi(t as i32));
        let scalars = from_vec(
            vec![rate, corrections.0 as f32, corrections.1 as f32, scale],
            &[4],
        );
        let step = AdamWStep {
            betas,
            epsilon,
            weight_decay: decay,
            scalars,
            rounding: Default::default(),
        };
        let mut copy = cast(&weight, FloatDType::BF16);
        let kernels = CpuKernels::default();
        kernels.ops().optimizer.adamw(
            AdamWParam {
                weight: &mut weight,
                master: MasterWeight::F32WithCopy(&mut copy),
                gradient: &gradient.plain(),
                first: &mut first,
                second: &mut second,
            },
            &step,
        );
        let new = to_host(&weight);
        let rounded: Vec<f32> = new.iter().map(|x| half::bf16::from_f32(*x).to_f32()).collect();
        assert_eq!(to_host(&copy), rounded, "the copy is the new weight in its type");
        for (at, g) in gradient.wide().into_iter().enumerate() {
            let g = g * f64::from(scale);
            w[at] *= 1.0 - f64::from(rate) * f64::from(decay);
            m[at] = b1 * m[at] + (1.0 - b1) * g;
            v[at] = b2 * v[at] + (1.0 - b2) * g * g;
            w[at] -= f64::from(rate) / corrections.0 * m[at]
                / (v[at].sqrt() / corrections.1.sqrt() + f64::from(epsilon));
        }
    }
    assert!(distance(&to_host(&weight), &w) < 1e-6);
    assert!(distance(&to_host(&first), &m) < 1e-6);
    assert!(distance(&to_host(&second), &v) < 1e-6);
}

#[test]
fn a_step_leaves_a_shared_copy_of_the_weight_alone() {
    let mut weight = operand(1, &[40_000]).plain();
    let snapshot = weight.clone();
    let before = to_host(&snapshot);
    let zeros = || from_vec(vec![0.0; 40_000], &[40_000]);
    let scalars = from_vec(vec![0.1, 0.1, 0.001, 1.0], &[4]);
    let step = AdamWStep {
        betas: (0.9, 0.999),
        epsilon: 1e-8,
        weight_decay: 0.0,
        scalars,
        rounding: Default::default(),
    };
    CpuKernels::default().ops().optimizer.adamw(
        AdamWParam {
            weight: &mut weight,
            master: MasterWeight::F32,
            gradient: &operand(2, &[40_000]).plain(),
            first: &mut zeros(),
            second: &mut zeros(),
        },
        &step,
    );
    assert_eq!(to_host(&snapshot), before);
    assert_ne!(to_host(&weight), before);
}

#[test]
fn one_thread_and_three_take_the_same_step() {
    let take = || {
        let (mut weight, mut first) = (operand(1, &[70_001]).plain(), operand(2, &[70_001]).plain());
        let mut second = operand(3, &[70_001]).values;
        second.iter_mut().for_each(|v| *v = v.abs());
        let mut second = from_vec(second, &[70_001]);
        let scalars = from_vec(vec![0.1, 0.1, 0.001, 1.0], &[4]);
        let step = AdamWStep {
            betas: (0.9, 0.999),
            epsilon: 1e-8,
            weight_decay: 0.1,
            scalars,
            rounding: Default::default(),
        };
        let gradient = operand(4, &[70_001]).plain();
        CpuKernels::default().ops().optimizer.adamw(
            AdamWParam {
                weight: &mut weight,
                master: MasterWeight::F32,
                gradient: &gradient,
                first: &mut first,
                second: &mut second,
            },
            &step,
        );
        CpuKernels::default()
            .ops()
            .optimizer
            .average(&mut first, &weight, &from_vec(vec![0.9], &[1]));
        CpuKernels::default()
            .ops()
            .optimizer
            .accumulate(&mut second, &weight);
        let squares = CpuKernels::default().ops().optimizer.sums_of_squares(&[&weight])[0];
        (
            bits(&to_host(&weight)),
            bits(&to_host(&first)),
            bits(&to_host(&second)),
            squares.to_bits(),
        )
    };
    assert_eq!(on_threads(1, take), on_threads(3, take));
}

#[test]
fn sums_of_squares_are_those_of_f64() {
    for count in [0, 1, 13, 129, 70_001] {
        let tensor = operand(1, &[count]);
        let expected: f64 = tensor.wide().iter().map(|x| x * x).sum();
        let found = CpuKernels::default()
            .ops()
            .optimizer
            .sums_of_squares(&[&tensor.plain()])[0];
        assert!(
            (found - expected).abs() <= 1e-12 * expected.max(1.0),
            "{found} {expected}"
        );
    }
}

#[test]
fn accumulation_and_averages_are_those_of_f64() {
    let (a, b) = (operand(1, &[7, 19]), operand(2, &[7, 19]));
    let mut sum = a.plain();
    CpuKernels::default()
        .ops()
        .optimizer
        .accumulate(&mut sum, &b.plain());
    let expected: Vec<f64> = a.wide().iter().zip(b.wide()).map(|(a, b)| a + b).collect();
    assert!(distance(&to_host(&sum), &expected) < 1e-7);
    let mut average = a.plain();
    CpuKernels::default()
        .ops()
        .optimizer
        .average(&mut average, &b.plain(), &from_vec(vec![0.75], &[1]));
    let expected: Vec<f64> = a
        .wide()
        .iter()
        .zip(b.wide())
        .map(|(a, b)| 0.75 * a + 0.25 * b)
        .collect();
    assert!(distance(&to_host(&average), &expected) < 1e-7);
}
