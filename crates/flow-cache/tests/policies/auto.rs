//! `auto`: the error that it predicts is the error that there is, and stays below the target, where both are known in closed
//! form.

use crate::toy::{Run, Toy, trajectory_id};
use flow_cache::{Auto, Rules, SignalChanges, VelocityCache, fit_polynomial};
use flow_core::Backends;
use proptest::prelude::*;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Where the latent starts: so far away that its size hardly changes on the way.
const START: f32 = 100.0;

/// `v = 2 c σ²`: twenty blocks that halve leave nothing of the latent, and of the signal twice.
fn parabola(c: f32) -> Toy {
    Toy::new(20, [1, 1], move |sigma, _| c * sigma * sigma)
}

fn rules() -> Rules {
    Rules {
        warmup_steps: 3,
        compute_last: true,
        ..Rules::default()
    }
}

/// Final latent, blocks left out, and the predicted relative error.
fn trajectory(model: &Toy, steps: u32, policy: Option<Auto>) -> (f32, u64, f64) {
    around(model, steps, policy, 0..0)
}

/// As [`trajectory`], the steps of `window` stochastic and left alone. (No noise is added: what counts is who answers.)
fn around(model: &Toy, steps: u32, policy: Option<Auto>, window: Range<u32>) -> (f32, u64, f64) {
    let predicted = Arc::new(Mutex::new(0.0));
    let skipped = Arc::new(Mutex::new(0));
    let (told, left_out) = (predicted.clone(), skipped.clone());
    let run = Run::new(steps, |plan, _| match policy {
        None => plan,
        Some(policy) => Backends {
            velocities: Arc::new(VelocityCache::new(
                policy,
                Rules {
                    outside_sde_window: true,
                    ..rules()
                },
                Box::new(move |counters| {
                    *left_out.lock().expect("no panic") += counters.skipped();
                    for (_, error) in &counters.predicted {
                        *told.lock().expect("no panic") += error;
                    }
                }),
            )),
            ..plan
        },
    });
    let mut x = START;
    for step in 0..steps {
        let sigma = |step: u32| 1.0 - f64::from(step) / f64::from(steps);
        let v = run.call(
            model,
            step,
            sigma(step),
            window.contains(&step),
            &[(trajectory_id(1, true), vec![x])],
        )[0][0];
        x += (sigma(step + 1) - sigma(step)) as f32 * v;
    }
    let both = (
        *skipped.lock().expect("no panic"),
        *predicted.lock().expect("no panic"),
    );
    (x, both.0, both.1)
}

fn auto(target_error: f64, factor: f64) -> Option<Auto> {
    Some(Auto {
        target_error,
        factor,
        order: 1,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_error_on_a_parabola_is_the_predicted_one_and_at_most_the_target(
        c in 1.0f32..8.0,
        exponent in -4.0f64..-2.5,
        steps in 12u32..40,
    ) {
        let (model, target) = (parabola(c), 10f64.powf(exponent));
        let (exact, ..) = trajectory(&model, steps, None);
        let (found, _, predicted) = trajectory(&model, steps, auto(target, 1.0));
        let error = f64::from((found - exact).abs() / exact.abs());
        // The latent is up to 5 % smaller at the end than where errors are weighed, and f32 keeps 7 digits of 100.
        prop_assert!(error <= 1.06 * target + 1e-6, "{error} above {target}");
        prop_assert!((error - predicted).abs() <= 0.06 * predicted + 2e-6, "{error}, predicted {predicted}");
    }
}

#[test]
fn a_larger_target_leaves_more_out_and_a_factor_from_an_audit_less() {
    let model = parabola(4.0);
    let left_out = |target, factor| trajectory(&model, 28, auto(target, factor)).1;
    let counts = [1e-9, 1e-4, 3e-4, 1e-3].map(|target| left_out(target, 1.0));
    assert_eq!(counts[0], 0, "no step is within a target of almost nothing");
    assert!(
        counts.is_sorted() && counts[1] > 0 && counts[1] < counts[3],
        "{counts:?}"
    );
    assert!(left_out(3e-4, 4.0) < left_out(3e-4, 1.0));
    // What is predicted is corrected, so the true error is a quarter of it.
    let (exact, ..) = trajectory(&model, 28, None);
    let (found, _, predicted) = trajectory(&model, 28, auto(3e-4, 4.0));
    let error = f64::from((found - exact).abs() / exact.abs());
    assert!(
        (4.0 * error / predicted - 1.0).abs() < 0.1,
        "{error}, {predicted}"
    );
}

#[test]
fn what_was_predicted_before_a_window_of_stochastic_steps_counts_with_what_comes_after() {
    let model = parabola(4.0);
    let (exact, ..) = trajectory(&model, 40, None);
    let (whole, ..) = around(&model, 40, auto(1e-3, 1.0), 20..40);
    let (found, skipped, predicted) = around(&model, 40, auto(1e-3, 1.0), 20..24);
    let error = |found: f32| f64::from((found - exact).abs() / exact.abs());
    assert!(
        skipped > 0 && error(whole) > 0.2 * error(found),
        "answers on both sides"
    );
    assert!(
        (error(found) - predicted).abs() <= 0.06 * predicted + 2e-6,
        "{}, predicted {predicted}",
        error(found)
    );
}

#[test]
fn a_straight_line_costs_nothing_and_is_extrapolated_wherever_the_rules_allow() {
    let model = Toy::new(20, [1, 1], |sigma, _| 3.0 * sigma);
    let (exact, ..) = trajectory(&model, 20, None);
    let (found, skipped, predicted) = trajectory(&model, 20, auto(1e-4, 1.0));
    // All but three steps at the start and the last one, of twenty blocks each.
    assert_eq!(skipped, 16 * 20);
    assert!(
        (found - exact).abs() / exact < 1e-5 && predicted < 1e-5,
        "{found} for {exact}"
    );
}

#[test]
fn changes_of_signal_and_output_are_measured_from_step_to_step() {
    let model = Toy::new(1, [1, 2], |sigma, _| 4.0 * sigma);
    let measured = Arc::new(SignalChanges::new(false));
    let driver = measured.clone();
    let run = Run::new(4, |plan, _| Backends {
        stacks: driver,
        ..plan
    });
    for (step, sigma) in [1.0, 0.75, 0.5].into_iter().enumerate() {
        run.one(&model, step as u32, sigma, 2.0);
    }
    // The signal goes 4, 3, 2; the output, half the latent more, 5, 4, 3.
    let expected = [(0.25, 0.2), (1.0 / 3.0, 0.25)];
    let points = measured.points();
    assert_eq!(points.len(), 2);
    for ((x, y), (a, b)) in points.into_iter().zip(expected) {
        assert!(
            (x - a).abs() < 1e-6 && (y - b).abs() < 1e-6,
            "({x}, {y}) for ({a}, {b})"
        );
    }
}

#[test]
fn the_fitted_polynomial_is_the_one_that_made_the_points_and_too_few_points_make_none() {
    let made = [400.0, -200.0, 50.0, -3.0, 0.25];
    let value = |x: f64| made.iter().fold(0.0, |sum, coefficient| sum * x + coefficient);
    let points: Vec<(f64, f64)> = (0..40)
        .map(|i| 0.01 * f64::from(i))
        .map(|x| (x, value(x)))
        .collect();
    let fitted = fit_polynomial(&points, 4).expect("forty points determine five numbers");
    for (found, made) in fitted.iter().zip(made) {
        assert!((found - made).abs() < 1e-6 * made.abs().max(1.0), "{fitted:?}");
    }
    assert_eq!(fit_polynomial(&points[..4], 4), None);
    assert_eq!(fit_polynomial(&[], 1), None);
}
