//! SDE steps: rollout and training agree bit for bit, and the log-probability is differentiated in the mean only.

mod support;

use burn::backend::{AutodiffBackend, Dispatch};
use flow_core::cpu::{from_vec, to_host};
use flow_core::ops::SdeStep;
use flow_core::tensors::{leaf, plain};
use flow_core::{Kernels, RawTensor, autograd};
use flow_kernels::CpuKernels;
use support::{Operand, bits, check, distance, numeric_gradients, on_threads, operand};

/// Coefficients of a Flow-SDE step per row, in the range that a sampler gives.
fn coefficients(rows: usize) -> Operand {
    let values = (0..rows).flat_map(|row| {
        let noise = 0.2 + 0.05 * row as f32;
        [
            1.0 + 0.01 * row as f32,
            -0.1,
            noise,
            0.5 / (noise * noise),
            -noise.ln() - 0.918_938_5,
        ]
    });
    Operand {
        values: values.collect(),
        shape: vec![rows, 5],
    }
}

fn mean(x: &[f64], v: &[f64], coefficients: &[f64], columns: usize) -> Vec<f64> {
    x.iter()
        .zip(v)
        .enumerate()
        .map(|(at, (x, v))| {
            let row = &coefficients[at / columns * 5..];
            row[0] * x + row[1] * v
        })
        .collect()
}

fn log_prob(mean: &[f64], x_next: &[f64], coefficients: &[f64], columns: usize) -> Vec<f64> {
    mean.chunks(columns)
        .zip(x_next.chunks(columns))
        .zip(coefficients.chunks(5))
        .map(|((mean, next), row)| {
            let squares: f64 = mean.iter().zip(next).map(|(m, n)| (n - m) * (n - m)).sum();
            -squares / columns as f64 * row[3] + row[4]
        })
        .collect()
}

#[test]
fn a_step_agrees_with_f64() {
    for (rows, columns) in [(1, 1), (3, 13), (7, 129)] {
        let (x, v, noise) = (
            operand(1, &[rows, columns]),
            operand(2, &[rows, columns]),
            operand(3, &[rows, columns]),
        );
        let coefficients = coefficients(rows);
        let found = CpuKernels::default().ops().sampler.sde_step(
            SdeStep {
                x: &x.plain(),
                v: &v.plain(),
                coefficients: &coefficients.plain(),
            },
            &noise.plain(),
        );
        let wide = coefficients.wide();
        let expected_mean = mean(&x.wide(), &v.wide(), &wide, columns);
        let next: Vec<f64> = expected_mean
            .iter()
            .zip(noise.wide())
            .enumerate()
            .map(|(at, (mean, noise))| mean + wide[at / columns * 5 + 2] * noise)
            .collect();
        assert!(distance(&to_host(&found.mean), &expected_mean) < 1e-7);
        assert!(distance(&to_host(&found.x_next), &next) < 1e-7);
        // The log-probability is that of the values as stored.
        let stored = |tensor: &RawTensor| to_host(tensor).iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
        let expected = log_prob(&stored(&found.mean), &stored(&found.x_next), &wide, columns);
        assert!(distance(&to_host(&found.log_prob), &expected) < 1e-6);
    }
}

#[test]
fn training_gives_a_step_the_log_probability_it_had_in_the_rollout_bit_for_bit() {
    let (rows, columns) = (6, 1000);
    let (x, v, noise) = (
        operand(1, &[rows, columns]),
        operand(2, &[rows, columns]),
        operand(3, &[rows, columns]),
    );
    let coefficients = coefficients(rows);
    let step = on_threads(1, || {
        CpuKernels::default().ops().sampler.sde_step(
            SdeStep {
                x: &x.plain(),
                v: &v.plain(),
                coefficients: &coefficients.plain(),
            },
            &noise.plain(),
        )
    });
    for v in [v.plain(), leaf(&v.plain())] {
        let (log_prob, mean) = on_threads(3, || {
            CpuKernels::default().ops().loss.sde_log_prob(
                SdeStep {
                    x: &x.plain(),
                    v: &v,
                    coefficients: &coefficients.plain(),
                },
                &step.x_next,
            )
        });
        assert_eq!(bits(&to_host(&plain(&log_prob))), bits(&to_host(&step.log_prob)));
        assert_eq!(bits(&to_host(&plain(&mean))), bits(&to_host(&step.mean)));
    }
}

#[test]
fn a_row_has_the_same_log_probability_in_a_batch_of_any_size() {
    let (rows, columns) = (6, 77);
    let (x, v, next) = (
        operand(1, &[rows, columns]),
        operand(2, &[rows, columns]),
        operand(3, &[rows, columns]),
    );
    let all = coefficients(rows);
    let (whole, _) = CpuKernels::default().ops().loss.sde_log_prob(
        SdeStep {
            x: &x.plain(),
            v: &v.plain(),
            coefficients: &all.plain(),
        },
        &next.plain(),
    );
    let whole = to_host(&whole);
    for row in 0..rows {
        let part = |operand: &Operand, columns: usize| {
            from_vec(operand.values[row * columns..][..columns].to_vec(), &[1, columns])
        };
        let (alone, _) = CpuKernels::default().ops().loss.sde_log_prob(
            SdeStep {
                x: &part(&x, columns),
                v: &part(&v, columns),
                coefficients: &part(&all, 5),
            },
            &part(&next, columns),
        );
        assert_eq!(bits(&to_host(&alone)), bits(&whole[row..=row]));
    }
}

#[test]
fn both_outputs_are_differentiated_in_the_velocity_alone_and_together() {
    let (rows, columns) = (3, 13);
    let (x, v, next) = (
        operand(1, &[rows, columns]),
        operand(2, &[rows, columns]),
        operand(3, &[rows, columns]),
    );
    let coefficients = coefficients(rows);
    let (log_prob_seed, mean_seed) = (operand(4, &[rows]), operand(5, &[rows, columns]));
    for (with_log_prob, with_mean) in [(true, false), (false, true), (true, true)] {
        let tracked = leaf(&v.plain());
        let (log, mean_output) = CpuKernels::default().ops().loss.sde_log_prob(
            SdeStep {
                x: &x.plain(),
                v: &tracked,
                coefficients: &coefficients.plain(),
            },
            &next.plain(),
        );
        let seeds = vec![
            with_log_prob.then(|| log_prob_seed.plain()),
            with_mean.then(|| mean_seed.plain()),
        ];
        let mut gradients =
            autograd::backward_from(vec![log, mean_output], seeds).expect("the velocity is tracked");
        let found = to_host(
            &<Dispatch as AutodiffBackend>::grad_remove(&tracked, &mut gradients).expect("a gradient"),
        );
        let reference = |values: &[Vec<f64>]| {
            let mean = mean(&x.wide(), &values[0], &coefficients.wide(), columns);
            let mut outputs = log_prob(&mean, &next.wide(), &coefficients.wide(), columns);
            outputs.extend(mean);
            outputs
        };
        let on = |on: bool, operand: &Operand| {
            operand
                .values
                .iter()
                .map(|x| if on { *x } else { 0.0 })
                .collect::<Vec<_>>()
        };
        let seed = Operand {
            values: [on(with_log_prob, &log_prob_seed), on(with_mean, &mean_seed)].concat(),
            shape: vec![rows * (columns + 1)],
        };
        let expected = numeric_gradients(std::slice::from_ref(&v), &reference, &seed);
        assert!(
            distance(&found, &expected[0]) < 1e-6,
            "{:e}",
            distance(&found, &expected[0])
        );
    }
}

#[test]
fn mean_squared_distance_agrees_with_f64() {
    for (rows, columns) in [(1, 1), (3, 13), (2, 129)] {
        let b = operand(2, &[rows, columns]);
        let reference = |values: &[Vec<f64>]| {
            values[0]
                .chunks(columns)
                .zip(b.wide().chunks(columns))
                .map(|(a, b)| a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>() / columns as f64)
                .collect()
        };
        check(&[operand(1, &[rows, columns])], &reference, &|inputs| {
            CpuKernels::default()
                .ops()
                .loss
                .mean_squared_distance(&inputs[0], &b.plain())
        });
    }
}
