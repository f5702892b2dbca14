//! Properties of the dynamics, against the formulas as the papers write them.

use flow_trainer::scheduler::{
    DynamicShift, Dynamics, NoiseLevel, Schedule, ScheduleOptions, SchedulerError, SdeWindow, SigmaEnds,
    SigmaGrid, SigmaShift, StepCoefficients, reference_log_prob, reference_log_prob_gradient, reference_step,
};
use proptest::prelude::*;

const SDES: [Dynamics; 3] = [Dynamics::FlowSde, Dynamics::DanceSde, Dynamics::Cps];

fn step_at(dynamics: Dynamics, sigma: f64, sigma_next: f64, noise_level: f64) -> StepCoefficients {
    let grid = SigmaGrid::from_sigmas(vec![sigma, sigma_next, 0.0]).unwrap();
    dynamics.coefficients(&grid, 0, noise_level).unwrap()
}

/// Mean and standard deviation of the next latent as the papers write them, not collected into coefficients.
fn by_the_book(dynamics: Dynamics, sigma: f64, sigma_next: f64, eta: f64, x: f64, v: f64) -> (f64, f64) {
    let dt = sigma_next - sigma;
    let (data, noise) = (x - sigma * v, x + (1.0 - sigma) * v);
    match dynamics {
        Dynamics::FlowSde => {
            let divisor = 1.0 - if sigma == 1.0 { sigma_next } else { sigma };
            let s = eta * (sigma / divisor).sqrt();
            let mean = x + (v + s * s / (2.0 * sigma) * (x + (1.0 - sigma) * v)) * dt;
            (mean, s * (-dt).sqrt())
        }
        Dynamics::DanceSde => {
            let score_term = 0.5 * eta * eta * (x - data * (1.0 - sigma)) / (sigma * sigma);
            (x + (v + score_term) * dt, eta * (-dt).sqrt())
        }
        Dynamics::Cps => {
            let s = sigma_next * (eta * std::f64::consts::FRAC_PI_2).sin();
            (
                data * (1.0 - sigma_next) + noise * (sigma_next * sigma_next - s * s).sqrt(),
                s,
            )
        }
        Dynamics::Ode => (x + v * dt, 0.0),
    }
}

/// A falling pair of sigmas, the first of which may be 1.
fn sigma_pair() -> impl Strategy<Value = (f64, f64)> {
    (prop_oneof![Just(1.0), 0.02..0.999_f64], 0.01..0.99_f64)
        .prop_map(|(sigma, share)| (sigma, sigma * share))
}

proptest! {
    #[test]
    fn coefficients_say_what_the_papers_formulas_say(
        (sigma, sigma_next) in sigma_pair(), eta in 0.01..0.99_f64, x in -4.0..4.0_f64, v in -4.0..4.0_f64,
    ) {
        for dynamics in Dynamics::ALL {
            let c = step_at(dynamics, sigma, sigma_next, eta);
            let (mean, std) = by_the_book(dynamics, sigma, sigma_next, eta, x, v);
            let size = (c.mean_x * x).abs() + (c.mean_v * v).abs() + 1.0 / sigma;
            prop_assert!((c.mean_x * x + c.mean_v * v - mean).abs() <= 1e-13 * size, "{dynamics} mean {mean}");
            prop_assert!((c.noise - std).abs() <= 1e-14 * (1.0 + std), "{dynamics} std {std}");
        }
    }

    #[test]
    fn without_noise_every_dynamics_is_eulers_step_exactly((sigma, sigma_next) in sigma_pair()) {
        let euler = step_at(Dynamics::Ode, sigma, sigma_next, 0.5);
        prop_assert_eq!((euler.mean_x, euler.mean_v, euler.noise), (1.0, sigma_next - sigma, 0.0));
        for dynamics in SDES {
            prop_assert_eq!(step_at(dynamics, sigma, sigma_next, 0.0), euler);
        }
    }

    #[test]
    fn with_vanishing_noise_every_dynamics_tends_to_eulers_step((sigma, sigma_next) in sigma_pair()) {
        for dynamics in SDES {
            let c = step_at(dynamics, sigma, sigma_next, 1e-6);
            // The mean departs by the square of the noise level, over sigma and over 1 - sigma.
            let share = 1.0 - if sigma == 1.0 { sigma_next } else { sigma };
            let bound = 1e-12 * (1.0 + 1.0 / (sigma * share)) + 1e-15;
            prop_assert!((c.mean_x - 1.0).abs() <= bound, "{dynamics}: {c:?}");
            prop_assert!((c.mean_v - c.dt).abs() <= bound, "{dynamics}: {c:?}");
        }
    }

    #[test]
    fn every_dynamics_keeps_the_share_of_data_that_the_next_sigma_promises(
        (sigma, sigma_next) in sigma_pair(), eta in 0.01..1.0_f64,
    ) {
        for dynamics in Dynamics::ALL {
            let c = step_at(dynamics, sigma, sigma_next, eta);
            // x = (1 - sigma) data + sigma noise and v = noise - data.
            let data = c.mean_x * (1.0 - sigma) - c.mean_v;
            prop_assert!((data - (1.0 - sigma_next)).abs() <= 1e-12 / sigma, "{dynamics}: {data}");
        }
    }

    #[test]
    fn cps_keeps_the_variance_that_the_next_sigma_promises(
        (sigma, sigma_next) in sigma_pair(), eta in 0.01..=1.0_f64,
    ) {
        let c = step_at(Dynamics::Cps, sigma, sigma_next, eta);
        let kept = c.mean_x * sigma + c.mean_v;
        prop_assert!((kept * kept + c.noise * c.noise - sigma_next * sigma_next).abs() <= 1e-14);
    }

    #[test]
    fn the_sdes_keep_the_variance_up_to_the_square_of_the_step(
        sigma in 0.05..0.95_f64, eta in 0.05..1.0_f64,
    ) {
        for dynamics in [Dynamics::FlowSde, Dynamics::DanceSde] {
            let excess = |dt: f64| {
                let c = step_at(dynamics, sigma, sigma - dt, eta);
                let kept = c.mean_x * sigma + c.mean_v;
                kept * kept + c.noise * c.noise - (sigma - dt) * (sigma - dt)
            };
            let (coarse, fine) = (excess(1e-2 * sigma), excess(1e-3 * sigma));
            prop_assert!(coarse > 0.0);
            prop_assert!((coarse / fine - 100.0).abs() < 1e-4, "{dynamics}: {coarse} and {fine}");
        }
    }

    #[test]
    fn the_log_probability_of_the_sdes_is_the_normal_density_of_the_next_latent(
        (sigma, sigma_next) in sigma_pair(), eta in 0.05..0.99_f64,
        elements in prop::collection::vec((-3.0..3.0_f64, -3.0..3.0_f64, -3.0..3.0_f64), 1..17),
    ) {
        let x: Vec<f64> = elements.iter().map(|e| e.0).collect();
        let v: Vec<f64> = elements.iter().map(|e| e.1).collect();
        let eps: Vec<f64> = elements.iter().map(|e| e.2).collect();
        for dynamics in [Dynamics::FlowSde, Dynamics::DanceSde] {
            let c = step_at(dynamics, sigma, sigma_next, eta);
            let step = reference_step(&c, &x, &v, &eps, |value| value).unwrap();
            let mut expected = 0.0;
            for i in 0..x.len() {
                let (mean, std) = by_the_book(dynamics, sigma, sigma_next, eta, x[i], v[i]);
                let z = (step.next[i] - mean) / std;
                expected -= 0.5 * z * z + std.ln() + 0.5 * (2.0 * std::f64::consts::PI).ln();
            }
            expected /= x.len() as f64;
            let error = (step.log_prob.unwrap() - expected).abs();
            // Rounding of the mean, relative to the noise.
            prop_assert!(error <= 1e-12 * (1.0 + 1.0 / (sigma * c.noise)), "{dynamics}: off by {error:e}");
        }
    }

    #[test]
    fn the_gradient_is_the_slope_of_the_log_probability(
        (sigma, sigma_next) in sigma_pair(), eta in 0.2..0.9_f64, x in -2.0..2.0_f64, v in -2.0..2.0_f64,
        next in -2.0..2.0_f64,
    ) {
        for dynamics in SDES {
            let c = step_at(dynamics, sigma, sigma_next, eta);
            let value = |v: f64| reference_log_prob(&c, &[x, 0.5], &[v, 0.25], &[next, 0.1]).unwrap().unwrap();
            let gradient = reference_log_prob_gradient(&c, &[x, 0.5], &[v, 0.25], &[next, 0.1]).unwrap().unwrap()[0];
            // The log-probability is a parabola in v, for which a central difference has no truncation error.
            let slope = (value(v + 0.5) - value(v - 0.5)) / 1.0;
            let size = 1.0 + value(v).abs() + value(v + 0.5).abs();
            prop_assert!((gradient - slope).abs() <= 1e-12 * size, "{dynamics}: {gradient} and {slope}");
        }
    }

    #[test]
    fn a_shifted_grid_falls_strictly_from_one_to_zero(
        steps in 1_usize..60, shift in 0.05..20.0_f64, tokens in 1_usize..20_000,
    ) {
        for shift in [SigmaShift::Static(shift), SigmaShift::Dynamic { line: DynamicShift::default(), tokens }] {
            let grid = SigmaGrid::new(steps, shift).unwrap();
            prop_assert_eq!(grid.steps(), steps);
            prop_assert_eq!((grid.sigmas()[0], grid.sigmas()[steps]), (1.0, 0.0));
            prop_assert!(grid.sigmas().windows(2).all(|pair| pair[0] > pair[1]));
        }
    }

    #[test]
    fn any_noise_level_gives_finite_coefficients_or_an_error(
        (sigma, sigma_next) in sigma_pair(), eta in prop::num::f64::ANY,
    ) {
        let grid = SigmaGrid::from_sigmas(vec![sigma, sigma_next, 0.0]).unwrap();
        for dynamics in Dynamics::ALL {
            if let Ok(c) = dynamics.coefficients(&grid, 0, eta) {
                prop_assert!([c.mean_x, c.mean_v, c.noise, c.std_dev].iter().all(|number| number.is_finite()));
                prop_assert!(c.log_prob.is_none_or(|l| l.scale.is_finite() && l.offset.is_finite()));
                prop_assert!(eta >= 0.0);
            }
        }
    }
}

#[test]
fn an_unshifted_grid_is_evenly_spaced() {
    let grid = SigmaGrid::new(4, SigmaShift::NONE).unwrap();
    assert_eq!(grid.sigmas(), [1.0, 0.75, 0.5, 0.25, 0.0]);
    assert_eq!(grid.timesteps(), [1000.0, 750.0, 500.0, 250.0]);
}

#[test]
fn the_dynamic_shift_meets_its_two_points_and_the_line_goes_on_beyond_them() {
    let line = DynamicShift::default();
    assert_eq!(line.mu(256), 0.5);
    assert!((line.mu(4096) - 1.15).abs() < 1e-15);
    assert!((line.mu(1024) - 0.63).abs() < 1e-15);
    assert!(line.mu(64) < 0.5 && line.mu(8192) > 1.15);
    let factor = SigmaShift::Dynamic { line, tokens: 256 }.factor().unwrap();
    assert!((factor - 0.5_f64.exp()).abs() < 1e-15);
}

#[test]
fn at_sigma_one_flow_sde_divides_by_one_minus_the_second_sigma() {
    let grid = SigmaGrid::new(10, SigmaShift::Static(3.0)).unwrap();
    let c = Dynamics::FlowSde.coefficients(&grid, 0, 0.7).unwrap();
    let expected = 0.7 * (1.0 / (1.0 - 27.0 / 28.0_f64)).sqrt();
    assert!((c.std_dev - expected).abs() < 1e-13, "{}", c.std_dev);
}

#[test]
fn the_guard_scale_is_the_noise_of_the_sdes() {
    for dynamics in [Dynamics::FlowSde, Dynamics::DanceSde] {
        let c = step_at(dynamics, 0.6, 0.5, 0.7);
        assert!((c.guard_scale() - c.noise).abs() < 1e-16);
    }
    let cps = step_at(Dynamics::Cps, 0.6, 0.5, 0.7);
    assert!((cps.guard_scale() - 0.1_f64.sqrt() * cps.std_dev).abs() < 1e-15);
}

#[test]
fn the_gradient_by_the_velocity_is_as_long_as_the_factor_of_flash_grpo_says() {
    let (x, v, eps) = ([0.3, -1.2, 0.9], [0.1, 0.7, -0.4], [0.5, -1.5, 0.25]);
    let length = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>().sqrt();
    for dynamics in SDES {
        for (sigma, sigma_next) in [(1.0, 0.9), (0.6, 0.5), (0.15, 0.02)] {
            let c = step_at(dynamics, sigma, sigma_next, 0.7);
            let next = reference_step(&c, &x, &v, &eps, |value| value).unwrap().next;
            let log_prob_with = |element: usize, by: f64| {
                let mut moved = v;
                moved[element] += by;
                reference_log_prob(&c, &x, &moved, &next).unwrap().unwrap()
            };
            // Exact, since the log-probability is a square of the velocity.
            let slope = |element| (log_prob_with(element, 0.05) - log_prob_with(element, -0.05)) / 0.1;
            let slopes = [slope(0), slope(1), slope(2)];
            let expected = 3.0 * length(&slopes) / length(&eps);
            let found = c.velocity_gradient();
            assert!(
                (found / expected - 1.0).abs() < 1e-9,
                "{dynamics}, {sigma}: {found} and {expected}"
            );
            if dynamics != Dynamics::Cps {
                let (s, root) = (c.std_dev, (sigma - sigma_next).sqrt());
                let published = root / s + s * root * (1.0 - sigma) / (2.0 * sigma);
                assert!(
                    (found / published - 1.0).abs() < 1e-12,
                    "{dynamics}, {sigma}: {found} and {published}"
                );
            }
        }
    }
    assert_eq!(step_at(Dynamics::Ode, 0.6, 0.5, 0.7).velocity_gradient(), 0.0);
}

#[test]
fn the_log_probability_is_taken_from_the_latent_as_stored() {
    let c = step_at(Dynamics::FlowSde, 0.6, 0.5, 0.7);
    let (x, v, eps) = ([0.3, -1.2, 0.9], [0.1, 0.7, -0.4], [0.5, -1.5, 0.25]);
    let quarter = |value: f64| (value * 4.0).round() / 4.0;
    let step = reference_step(&c, &x, &v, &eps, quarter).unwrap();
    assert!(step.next.iter().all(|&value| value == quarter(value)));
    assert_eq!(step.log_prob, reference_log_prob(&c, &x, &v, &step.next).unwrap());
    let unrounded = reference_step(&c, &x, &v, &eps, |value| value).unwrap();
    assert_ne!(step.log_prob, unrounded.log_prob);
}

fn options(dynamics: Dynamics) -> ScheduleOptions {
    ScheduleOptions {
        steps: 10,
        ends: SigmaEnds::default(),
        shift: SigmaShift::Static(3.0),
        dynamics,
        noise_level: NoiseLevel::Constant(0.7),
        window: SdeWindow::List(vec![2, 5]),
        seed: 1,
    }
}

#[test]
fn steps_outside_the_window_are_eulers() {
    let schedule = Schedule::new(&options(Dynamics::FlowSde)).unwrap();
    let steps = schedule.steps_for(3);
    for (index, step) in steps.iter().enumerate() {
        assert_eq!(step.step, index);
        assert_eq!(step.is_stochastic(), [2, 5].contains(&index));
        assert_eq!(step.log_prob.is_some(), [2, 5].contains(&index));
        if !step.is_stochastic() {
            assert_eq!(*step, schedule.ode_steps()[index]);
        }
    }
    assert_eq!(schedule.trained_steps(3), [2, 5]);
    assert_eq!(schedule.trained_steps_per_trajectory(), 2);
}

#[test]
fn a_solver_behind_the_window_leaves_the_steps_up_to_it_as_they_are() {
    let shift = SigmaShift::Static(3.0);
    let plain = Schedule::new(&options(Dynamics::FlowSde)).unwrap();
    let solved = plain.clone().with_solver_after_window(0.6, shift).unwrap();
    // Behind step 5 of 10: 5 points, of which 3 are left.
    let steps = solved.steps_for(7);
    assert_eq!(steps[..6], plain.steps_for(7)[..6]);
    assert_eq!((steps.len(), solved.steps_saved(7)), (8, Some(2)));
    assert_eq!(plain.steps_saved(7), None);
    assert_eq!(solved.trained_steps(7), [2, 5]);
    for (index, step) in steps.iter().enumerate() {
        assert_eq!(
            (step.step, step.is_stochastic()),
            (index, [2, 5].contains(&index))
        );
        let next = steps.get(index + 1).map_or(0.0, |next| next.sigma);
        assert_eq!(step.sigma_next, next, "step {index}");
    }
    // Evaluations stay on the grid, and so does a path without noise.
    assert_eq!(solved.ode_steps(), plain.ode_steps());
    let ode = Schedule::new(&options(Dynamics::Ode)).unwrap();
    let solved = ode.clone().with_solver_after_window(0.6, shift).unwrap();
    assert_eq!(
        (solved.steps_for(0), solved.steps_saved(0)),
        (ode.steps_for(0), Some(0))
    );
    for share in [0.0, -0.5, 1.5, f64::NAN] {
        let refused = ode.clone().with_solver_after_window(share, shift).unwrap_err();
        assert!(refused.to_string().contains("above 0 and at most 1"), "{refused}");
    }
}

#[test]
fn the_ode_has_no_trained_steps_and_no_log_probability() {
    let schedule = Schedule::new(&options(Dynamics::Ode)).unwrap();
    assert!(schedule.trained_steps(0).is_empty());
    assert!(schedule.steps_for(0).iter().all(|step| step.log_prob.is_none()));
}

#[test]
fn each_step_can_have_its_own_noise_level() {
    let levels: Vec<f64> = (0..10).map(|step| 0.1 + 0.05 * f64::from(step)).collect();
    let schedule = Schedule::new(&ScheduleOptions {
        noise_level: NoiseLevel::PerStep(levels.clone()),
        ..options(Dynamics::Cps)
    });
    let schedule = schedule.unwrap();
    for step in [2, 5] {
        let expected = Dynamics::Cps
            .coefficients(schedule.grid(), step, levels[step])
            .unwrap();
        assert_eq!(schedule.steps_for(0)[step], expected);
    }
    let short = ScheduleOptions {
        noise_level: NoiseLevel::PerStep(vec![0.5; 9]),
        ..options(Dynamics::Cps)
    };
    assert_eq!(
        Schedule::new(&short).unwrap_err(),
        SchedulerError::NoiseLevelCount { given: 9, steps: 10 }
    );
}

#[test]
fn a_window_over_a_step_without_log_probability_is_refused() {
    let last = ScheduleOptions {
        window: SdeWindow::List(vec![9]),
        ..options(Dynamics::Cps)
    };
    assert!(matches!(
        Schedule::new(&last),
        Err(SchedulerError::NoLogProb { step: 9, .. })
    ));
    // The SDEs do have one there.
    let last = ScheduleOptions {
        window: SdeWindow::List(vec![9]),
        ..options(Dynamics::FlowSde)
    };
    assert!(Schedule::new(&last).unwrap().steps_for(0)[9].log_prob.is_some());

    let mut levels = vec![0.7; 10];
    levels[5] = 0.0;
    let silent = ScheduleOptions {
        noise_level: NoiseLevel::PerStep(levels),
        ..options(Dynamics::FlowSde)
    };
    let message = Schedule::new(&silent).unwrap_err().to_string();
    assert!(
        message.contains("step 5") && message.contains("noise level is 0"),
        "{message}"
    );
}

#[test]
fn impossible_schedules_are_refused_with_the_value_at_fault() {
    let message = |options: &ScheduleOptions| Schedule::new(options).unwrap_err().to_string();
    let base = options(Dynamics::Cps);
    assert!(
        message(&ScheduleOptions {
            steps: 0,
            ends: SigmaEnds::default(),
            ..base.clone()
        })
        .contains("at least 1")
    );
    let loud = ScheduleOptions {
        noise_level: NoiseLevel::Constant(1.5),
        ..base.clone()
    };
    assert!(message(&loud).contains("noise level 1.5 at step 0 is outside the range of cps, 0 to 1"));
    for shift in [0.0, -3.0, f64::NAN, f64::INFINITY] {
        let bent = ScheduleOptions {
            shift: SigmaShift::Static(shift),
            ..base.clone()
        };
        assert!(
            matches!(Schedule::new(&bent), Err(SchedulerError::Shift { .. })),
            "{shift}"
        );
    }
    let line = DynamicShift {
        max_tokens: 256,
        ..DynamicShift::default()
    };
    let flat = ScheduleOptions {
        shift: SigmaShift::Dynamic { line, tokens: 64 },
        ..base
    };
    assert!(matches!(
        Schedule::new(&flat),
        Err(SchedulerError::DynamicShift { .. })
    ));
}

#[test]
fn sigmas_that_do_not_fall_to_zero_are_refused_at_the_first_wrong_one() {
    let wrong = |sigmas: &[f64]| match SigmaGrid::from_sigmas(sigmas.to_vec()) {
        Err(SchedulerError::Sigmas { index, .. }) => index,
        other => panic!("{other:?}"),
    };
    assert_eq!(wrong(&[1.1, 0.5, 0.0]), 0);
    assert_eq!(wrong(&[1.0, 1.0, 0.0]), 1);
    assert_eq!(wrong(&[1.0, f64::NAN, 0.0]), 1);
    assert_eq!(wrong(&[1.0, 0.5, 0.1]), 2);
    assert_eq!(wrong(&[1.0, 0.0, 0.0]), 1);
    assert_eq!(SigmaGrid::from_sigmas(vec![0.0]), Err(SchedulerError::NoSteps));
}

#[test]
fn dynamics_are_read_by_config_name_and_by_the_originals_spelling() {
    for dynamics in Dynamics::ALL {
        assert_eq!(dynamics.name().parse(), Ok(dynamics));
    }
    assert_eq!("Flow-SDE".parse(), Ok(Dynamics::FlowSde));
    let message = "euler".parse::<Dynamics>().unwrap_err();
    assert!(
        message.contains("euler") && message.contains("flow-sde, dance-sde, cps, ode"),
        "{message}"
    );
}

#[test]
fn vectors_of_different_lengths_are_refused() {
    let c = step_at(Dynamics::FlowSde, 0.6, 0.5, 0.7);
    let error = reference_step(&c, &[0.0; 3], &[0.0; 2], &[0.0; 3], |value| value).unwrap_err();
    assert_eq!(
        error,
        SchedulerError::Length {
            what: "the model's output",
            given: 2,
            expected: 3
        }
    );
}

#[test]
fn a_grid_ends_where_it_is_told_to_and_keeps_its_first_level() {
    for steps in [2, 5, 28] {
        let ends = SigmaEnds {
            sigma_min: Some(0.003),
            shift_terminal: None,
        };
        let grid = SigmaGrid::between(steps, ends, SigmaShift::NONE).unwrap();
        assert_eq!((grid.sigmas()[0], grid.sigmas()[steps]), (1.0, 0.0));
        assert!((grid.sigmas()[steps - 1] - 0.003).abs() < 1e-15);
        let stretched = SigmaEnds {
            shift_terminal: Some(0.02),
            ..ends
        };
        let grid = SigmaGrid::between(steps, stretched, SigmaShift::Static(3.0)).unwrap();
        assert_eq!(grid.sigmas()[0], 1.0);
        assert!((grid.sigmas()[steps - 1] - 0.02).abs() < 1e-12);
    }
    // A single level is the first, which nothing moves.
    let one = SigmaEnds {
        sigma_min: Some(0.5),
        shift_terminal: Some(0.02),
    };
    assert_eq!(
        SigmaGrid::between(1, one, SigmaShift::NONE).unwrap().sigmas(),
        [1.0, 0.0]
    );
}
