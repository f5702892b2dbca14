//! FasterCache: frequencies, the predicted branch, and extrapolated attention.

use crate::toy::{Run, Toy, trajectory_id};
use flow_cache::{FasterAttention, FasterGuidance, GuidanceCache, LayerCache, Rules, Timesteps};
use flow_core::{Backends, LatentShape};
use flow_kernels::split_frequencies;
use proptest::prelude::*;
use std::f64::consts::TAU;
use std::sync::Arc;

const EVERYWHERE: Timesteps = Timesteps {
    above: -1.0,
    below: 1001.0,
};

fn plane(height: usize, width: usize) -> LatentShape {
    LatentShape {
        channels: 1,
        frames: 1,
        height,
        width,
    }
}

/// The low frequencies by the definition of the transform, in f64, with the shifted coordinates of the original.
fn low_by_definition(values: &[f32], height: usize, width: usize) -> Vec<f64> {
    let radius = (height.min(width) / 5) as i64;
    let mut low = vec![0.0; values.len()];
    for v in 0..height {
        for u in 0..width {
            let distance = |at: usize, size: usize| ((at + size / 2) % size) as i64 - (size / 2) as i64;
            let (y, x) = (distance(v, height), distance(u, width));
            if x * x + y * y > radius * radius {
                continue;
            }
            let angle = |j: usize, i: usize| {
                TAU * (v as f64 * j as f64 / height as f64 + u as f64 * i as f64 / width as f64)
            };
            let sum = |of: fn(f64) -> f64| -> f64 {
                let term = |(at, value): (usize, &f32)| f64::from(*value) * of(angle(at / width, at % width));
                values.iter().enumerate().map(term).sum()
            };
            let (re, im) = (sum(f64::cos), -sum(f64::sin));
            for (at, out) in low.iter_mut().enumerate() {
                let angle = angle(at / width, at % width);
                *out += (re * angle.cos() - im * angle.sin()) / (height * width) as f64;
            }
        }
    }
    low
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn low_frequencies_are_those_of_the_definition_and_the_parts_add_up(
        height in 1..12usize,
        width in 1..12usize,
        seed in prop::collection::vec(-2.0..2.0f32, 144),
    ) {
        let values = &seed[..height * width];
        let (low, high) = split_frequencies(values, &plane(height, width));
        for (at, expected) in low_by_definition(values, height, width).into_iter().enumerate() {
            prop_assert!((f64::from(low[at]) - expected).abs() < 1e-5, "{at}: {} for {expected}", low[at]);
            prop_assert!((low[at] + high[at] - values[at]).abs() < 1e-6);
        }
    }
}

#[test]
fn a_constant_is_low_and_a_chequer_is_high_in_each_plane_of_its_own() {
    let shape = LatentShape {
        channels: 2,
        ..plane(10, 10)
    };
    let chequer = |at: usize| {
        if (at / 10 + at % 10).is_multiple_of(2) {
            1.0
        } else {
            -1.0
        }
    };
    let values: Vec<f32> = (0..200)
        .map(|at| if at < 100 { 3.0 } else { chequer(at) })
        .collect();
    let (low, high) = split_frequencies(&values, &shape);
    for at in 0..200 {
        let expected = if at < 100 { (3.0, 0.0) } else { (0.0, chequer(at)) };
        assert!((low[at] - expected.0).abs() < 1e-5 && (high[at] - expected.1).abs() < 1e-5);
    }
}

const GUIDANCE: FasterGuidance = FasterGuidance {
    every: 5,
    timesteps: EVERYWHERE,
    low: (
        Timesteps {
            above: 99.0,
            below: 901.0,
        },
        1.5,
    ),
    high: (EVERYWHERE, 1.1),
};

fn guided(policy: FasterGuidance) -> Run {
    Run::new(10, |plan, count| Backends {
        velocities: Arc::new(GuidanceCache::new(policy, Rules::default(), count())),
        ..plan
    })
}

#[test]
fn the_unconditional_branch_is_the_conditional_one_plus_a_difference_that_grows() {
    // Conditional: x / 2 + 1; unconditional: x / 2 + 3. The difference is a constant, so low in frequency.
    let model = Toy::new(1, [5, 5], |_, token| if token < 0 { 3.0 } else { 1.0 });
    let run = guided(GUIDANCE);
    for step in 0..10u32 {
        let x = vec![step as f32; 25];
        let rows = [(trajectory_id(4, false), x.clone()), (trajectory_id(4, true), x)];
        let found = run.call(&model, step, 0.95 - 0.05 * f64::from(step), false, &rows);
        let conditional = step as f32 / 2.0 + 1.0;
        assert_eq!(found[1], [conditional; 25], "step {step}");
        // At 0.95 and below 0.9 the weight grows with every answered step, and starts anew at step 5.
        let answered = step % 5;
        let expected = conditional + 2.0 * 1.5f32.powi(answered as i32);
        assert!(
            (found[0][7] - expected).abs() < 1e-4,
            "step {step}: {} for {expected}",
            found[0][7]
        );
        assert_eq!(
            model.take_rows(),
            [if answered == 0 { 2 } else { 1 }],
            "step {step}"
        );
    }
    assert_eq!(run.skipped(), 8);
}

#[test]
fn equal_branches_stay_equal_and_a_branch_alone_is_computed() {
    let model = Toy::new(1, [5, 5], |sigma, _| sigma);
    let run = guided(GUIDANCE);
    for step in 0..5 {
        let row = |conditional| (trajectory_id(4, conditional), vec![0.5; 25]);
        let found = run.call(&model, step, 0.5, false, &[row(true), row(false)]);
        assert_eq!(found[0], found[1], "step {step}");
    }
    assert_eq!(run.skipped(), 4);
    let alone = guided(GUIDANCE);
    for step in 0..5 {
        alone.call(
            &model,
            step,
            0.5,
            false,
            &[(trajectory_id(4, false), vec![0.5; 25])],
        );
    }
    assert_eq!(alone.skipped(), 0);
}

#[test]
fn attention_is_extrapolated_from_computed_steps_only() {
    let model = Toy::new(1, [1, 1], |sigma, _| sigma);
    let policy = FasterAttention {
        every: 2,
        timesteps: EVERYWHERE,
        weight: 0.5,
    };
    let run = || {
        Run::new(8, |plan, count| Backends {
            layers: Arc::new(LayerCache::new(policy, Rules::default(), count())),
            ..plan
        })
    };
    let conditional = run();
    let found: Vec<f32> = [16.0, 99.0, 8.0, 99.0, 4.0, 99.0]
        .into_iter()
        .enumerate()
        .map(|(step, signal)| {
            let signal = if signal == 99.0 { 1.0 } else { signal / 16.0 };
            conditional.one(&model, step as u32, signal, 0.0) * 16.0
        })
        .collect();
    // 16; 8 + (8 - 16) / 2; 4 + (4 - 8) / 2. In diffusers the last would also see the answer of step 3.
    assert_eq!(found, [16.0, 16.0, 8.0, 4.0, 4.0, 2.0]);
    // With both branches in a call nothing is extrapolated, nor is the unconditional one.
    let both = run();
    for step in 0..4 {
        let rows = [
            (trajectory_id(1, true), vec![0.0]),
            (trajectory_id(1, false), vec![0.0]),
        ];
        both.call(&model, step, 0.5, false, &rows);
    }
    assert_eq!(both.skipped(), 0);
}
