//! Which steps each policy computes, and what its answers are, by hand.

use crate::toy::{Run, Toy, trajectory_id};
use flow_cache::{
    DbCache, EasyCache, Forecast, LayerCache, MagCache, MagnitudeRatios, Mask, Moment, Pyramid, Rules,
    StackCache, StackPolicy, StepMask, TaylorSeer, TeaCache, Timesteps, VelocityCache, VelocityPolicy,
};
use flow_core::Backends;
use std::sync::Arc;

const EVERYWHERE: Timesteps = Timesteps {
    above: -1.0,
    below: 1001.0,
};

fn stack<P: StackPolicy>(steps: u32, policy: P, rules: Rules) -> Run {
    Run::new(steps, |plan, count| Backends {
        stacks: Arc::new(StackCache::new(policy, rules, count())),
        ..plan
    })
}

fn velocity<P: VelocityPolicy>(steps: u32, policy: P, rules: Rules) -> Run {
    Run::new(steps, |plan, count| Backends {
        velocities: Arc::new(VelocityCache::new(policy, rules, count())),
        ..plan
    })
}

/// Noise level of a step of `steps`, from 1 to 0.
fn sigma(step: u32, steps: u32) -> f64 {
    1.0 - f64::from(step) / f64::from(steps)
}

/// The steps in which something is answered.
fn answered(run: &Run, model: &Toy, signal: impl Fn(u32) -> f64) -> Vec<u32> {
    let is_answered = |step: &u32| {
        let before = run.skipped();
        run.one(model, *step, signal(*step), 1.0);
        run.skipped() > before
    };
    (0..run.steps).filter(is_answered).collect()
}

#[test]
fn teacache_accumulates_changes_from_step_to_step_and_starts_anew_after_a_computed_one() {
    // The signal, which the toy's attention reads, is the noise level: it grows by a tenth from step to step.
    let model = Toy::new(3, [1, 2], |sigma, _| sigma);
    let growing = |step: u32| 1.1f64.powi(step as i32);
    let policy = |coefficients: &[f64]| TeaCache {
        threshold: 0.25,
        coefficients: coefficients.to_vec(),
        compare_conditioning: false,
    };
    let run = stack(10, policy(&[1.0, 0.0]), Rules::default());
    // 0.1 and 0.2 are below the threshold, 0.3 is not; compared with the computed step the third would be 0.21.
    assert_eq!(answered(&run, &model, growing), [1, 2, 4, 5, 7, 8]);
    assert_eq!(model.take_rows(), [4, 4, 4], "no block runs in an answered step");
    // 8 · 0.1² + 0.05 = 0.13 a step.
    let run = stack(10, policy(&[8.0, 0.0, 0.05]), Rules::default());
    assert_eq!(answered(&run, &model, growing), [1, 3, 5, 7, 9]);
    let rules = Rules {
        warmup_steps: 3,
        compute_last: true,
        ..Rules::default()
    };
    let run = stack(10, policy(&[1.0, 0.0]), rules);
    assert_eq!(answered(&run, &model, growing), [3, 4, 6, 7]);
    let conditioning = TeaCache {
        compare_conditioning: true,
        ..policy(&[1.0, 0.0])
    };
    assert_eq!(
        answered(&stack(10, conditioning, Rules::default()), &model, growing),
        [1, 2, 4, 5, 7, 8],
        "the toy's conditioning is its signal"
    );
    let run = stack(6, policy(&[f64::NAN, 0.0]), Rules::default());
    assert_eq!(
        answered(&run, &model, growing),
        [0; 0],
        "what is not a number is computed"
    );
}

#[test]
fn an_answer_of_the_whole_stack_is_what_enters_it_plus_the_last_difference() {
    let model = Toy::new(2, [1, 2], |sigma, _| sigma);
    let mask = StepMask {
        mask: Mask::Steps(vec![true, false, true, false]),
        front_blocks: 0,
    };
    let run = stack(4, mask, Rules::default());
    // (x / 2 + s) / 2 + s.
    assert_eq!(run.one(&model, 0, 1.0, 4.0), 2.5);
    assert_eq!(run.one(&model, 1, 1.0, 6.0), 6.0 + (2.5 - 4.0));
    assert_eq!(run.one(&model, 2, 2.0, 8.0), 5.0);
    assert_eq!(run.one(&model, 3, 2.0, 1.0), 1.0 + (5.0 - 8.0));
    assert_eq!(model.take_rows(), [2, 2]);
}

#[test]
fn magcache_answers_while_the_accumulated_error_is_small() {
    let model = Toy::new(1, [1, 2], |sigma, _| sigma);
    let policy = MagCache {
        threshold: 0.06,
        retention: 0.2,
        ratios: vec![0.98],
    };
    let run = |rules| stack(12, policy.clone(), rules);
    // 0.02, then 0.0596, then 0.1184; floor(0.2 · 12 + 0.5) = 2 steps are retained.
    let all = run(Rules::default());
    assert_eq!(answered(&all, &model, |_| 0.5), [2, 3, 5, 6, 8, 9, 11]);
    let bounded = run(Rules {
        max_consecutive: 1,
        ..Rules::default()
    });
    assert_eq!(answered(&bounded, &model, |_| 0.5), [2, 4, 6, 8, 10]);
    let never = stack(
        6,
        MagCache {
            retention: 1.0,
            ..policy
        },
        Rules::default(),
    );
    assert_eq!(answered(&never, &model, |_| 0.5), [0; 0]);
}

#[test]
fn ratios_measured_at_another_number_of_steps_are_the_nearest_ones_with_ties_to_even() {
    let policy = MagCache {
        threshold: 0.06,
        retention: 0.0,
        ratios: vec![0.0, 1.0, 2.0],
    };
    let ratios = |steps| -> Vec<f64> {
        let ratio = |step| {
            policy.ratio(&Moment {
                step,
                steps,
                sigma: 0.5,
            })
        };
        (0..steps).map(ratio).collect()
    };
    assert_eq!(ratios(3), [0.0, 1.0, 2.0]);
    // 0, 0.5, 1, 1.5, 2.
    assert_eq!(ratios(5), [0.0, 0.0, 1.0, 2.0, 2.0]);
    assert_eq!(ratios(2), [0.0, 2.0]);
    assert_eq!(ratios(1), [2.0]);
}

/// A model without blocks' noise: its velocity is `x / 2 + s` with `s` the square of the noise level.
fn field() -> Toy {
    Toy::new(1, [1, 1], |sigma, _| sigma * sigma)
}

#[test]
fn easycache_bounds_the_change_by_the_rate_of_computed_steps() {
    let (model, rules) = (
        field(),
        Rules {
            warmup_steps: 2,
            ..Rules::default()
        },
    );
    let run = velocity(8, EasyCache { threshold: 0.1 }, rules);
    // v = x / 2 + 1 throughout, so k = 1/2 and c = 1 - x / 2.
    assert_eq!(run.one(&model, 0, 1.0, 2.0), 2.0);
    assert_eq!(run.one(&model, 1, 1.0, 4.0), 3.0);
    // 0.5 · 0.25 / 3 = 0.042, then 0.083, then 0.125.
    assert_eq!(run.one(&model, 2, 1.0, 4.25), 4.25 - 1.0);
    assert_eq!(run.one(&model, 3, 1.0, 4.5), 4.5 - 1.0);
    assert_eq!(run.one(&model, 4, 1.0, 4.75), 3.375);
    assert_eq!(run.skipped(), 2);
    // The rate and the size are now those of steps 1 and 4, the constant that of step 4: 0.5 · 0.5 / 3.375 = 0.074.
    assert_eq!(run.one(&model, 5, 1.0, 5.25), 5.25 + (3.375 - 4.75));
    assert_eq!(run.one(&model, 6, 1.0, 4.0), 3.0);
    assert_eq!(run.skipped(), 3);
}

#[test]
fn easycache_s_unconditional_branch_does_what_the_conditional_one_does() {
    // The unconditional signal jumps, so on its own it would be computed.
    let model = Toy::new(
        1,
        [1, 1],
        |sigma, token| if token < 0 { 100.0 * sigma } else { 1.0 },
    );
    let rules = Rules {
        warmup_steps: 2,
        ..Rules::default()
    };
    let run = velocity(8, EasyCache { threshold: 0.1 }, rules);
    for (step, x) in [2.0, 4.0, 4.25, 4.5, 4.75].into_iter().enumerate() {
        // The unconditional row stands first: order does not matter.
        let rows = [
            (trajectory_id(1, false), vec![x]),
            (trajectory_id(1, true), vec![x]),
        ];
        run.call(&model, step as u32, 1.0 - 0.01 * step as f64, false, &rows);
        let computed = if [2, 3].contains(&step) { 0 } else { 2 };
        assert_eq!(model.take_rows(), [computed], "step {step}");
    }
}

#[test]
fn taylorseer_computes_on_its_schedule_and_extrapolates_lines_exactly() {
    let model = Toy::new(2, [1, 2], |sigma, _| 3.0 * sigma + 1.0);
    let policy = TaylorSeer {
        interval: 5,
        first: 3,
        last: None,
        forecast: Forecast::Taylor { order: 1 },
    };
    let computed = |run: &Run| -> Vec<u32> {
        let answered = answered(run, &model, |step| sigma(step, 28));
        (0..28).filter(|step| !answered.contains(step)).collect()
    };
    assert_eq!(
        computed(&velocity(28, policy, Rules::default())),
        [0, 1, 2, 4, 9, 14, 19, 24]
    );
    let late = TaylorSeer {
        last: Some(25),
        ..policy
    };
    assert_eq!(
        computed(&velocity(28, late, Rules::default())),
        [0, 1, 2, 4, 9, 14, 19, 24, 25, 26, 27]
    );

    // x stays, and the velocity is a straight line in the step: attention and velocity are forecast without error.
    let exact = Run::plain(28);
    let layers = Run::new(28, |plan, count| Backends {
        layers: Arc::new(LayerCache::new(policy, Rules::default(), count())),
        ..plan
    });
    for run in [&velocity(28, policy, Rules::default()), &layers] {
        for step in 0..28 {
            let value = |run: &Run| run.one(&model, step, sigma(step, 28), 1.0);
            let (found, expected) = (value(run), value(&exact));
            assert!(
                (found - expected).abs() < 1e-5,
                "step {step}: {found} for {expected}"
            );
        }
        assert!(run.skipped() > 0);
    }
}

#[test]
fn newton_extrapolates_a_parabola_in_the_noise_level_over_uneven_steps() {
    let model = field();
    let run = |forecast| {
        let policy = TaylorSeer {
            interval: 4,
            first: 3,
            last: None,
            forecast,
        };
        velocity(16, policy, Rules::default())
    };
    // A shifted schedule, as flow matching has: steps grow towards the image.
    let shifted = |step| {
        let sigma = sigma(step, 16);
        3.0 * sigma / (1.0 + 2.0 * sigma)
    };
    let worst = |run: Run| {
        let exact = Run::plain(16);
        let error = |step| {
            (run.one(&model, step, shifted(step), 1.0) - exact.one(&model, step, shifted(step), 1.0)).abs()
        };
        (0..16).map(error).fold(0.0, f32::max)
    };
    let newton = worst(run(Forecast::Newton { order: 2 }));
    let taylor = worst(run(Forecast::Taylor { order: 2 }));
    assert!(newton < 1e-5 && taylor > 0.01, "newton {newton}, taylor {taylor}");
}

#[test]
fn a_forecast_without_noise_levels_is_computed_instead() {
    let model = field();
    let policy = TaylorSeer {
        interval: 4,
        first: 2,
        last: None,
        forecast: Forecast::Newton { order: 1 },
    };
    // Twice the same noise level: no polynomial passes.
    let run = velocity(6, policy, Rules::default());
    assert_eq!(answered(&run, &model, |_| 0.5), [0; 0]);
}

#[test]
fn db_cache_runs_its_first_and_last_blocks_in_every_step() {
    let model = Toy::new(4, [1, 2], |sigma, _| sigma);
    let policy = DbCache {
        threshold: 0.3,
        front_blocks: 1,
        back_blocks: 1,
        max_answered: 0,
        mask: None,
        forecast: Forecast::Latest,
    };
    let run = stack(6, policy.clone(), Rules::default());
    // x = 8, s = 1: 5, 3.5, 2.75, 2.375.
    assert_eq!(run.one(&model, 0, 1.0, 8.0), 2.375);
    // x = 8.5: the first block gives 5.25, the middle takes 2.25 off as before, the last halves and adds.
    assert_eq!(run.one(&model, 1, 1.0, 8.5), (5.25 - 2.25) / 2.0 + 1.0);
    assert_eq!(model.take_rows(), [2, 1, 1, 2]);
    assert_eq!(run.skipped(), 2);
    let at_most_one = stack(
        6,
        DbCache {
            max_answered: 1,
            ..policy.clone()
        },
        Rules::default(),
    );
    assert_eq!(answered(&at_most_one, &model, |_| 1.0), [1]);
    let two_in_a_row = Rules {
        max_consecutive: 2,
        ..Rules::default()
    };
    // The original's counter is never cleared by an ordinary step; here a computed one is enough.
    let bounded = stack(9, policy.clone(), two_in_a_row);
    assert_eq!(answered(&bounded, &model, |_| 1.0), [1, 2, 4, 5, 7, 8]);
    let mask = |is_final| DbCache {
        mask: Some((
            Mask::Steps([1, 0, 0, 1, 0, 0].map(|digit| digit == 1).to_vec()),
            is_final,
        )),
        ..policy.clone()
    };
    // The first block's residual is s - x / 2: from -0.1 to 0.5 it leaps at step 2 and at step 5.
    let leaping = |step: u32| if [2, 5].contains(&step) { 1.0 } else { 0.4 };
    assert_eq!(
        answered(&stack(6, mask(true), Rules::default()), &model, leaping),
        [1, 2, 4, 5]
    );
    assert_eq!(
        answered(&stack(6, mask(false), Rules::default()), &model, leaping),
        [1, 4]
    );
    let shallow = Toy::new(2, [1, 2], |sigma, _| sigma);
    let run = stack(6, policy, Rules::default());
    assert_eq!(
        answered(&run, &shallow, |_| 1.0),
        [0; 0],
        "no block is left to leave out"
    );
}

#[test]
fn pyramid_repeats_attention_within_its_timesteps() {
    let model = Toy::new(1, [1, 2], |sigma, _| sigma);
    let policy = |spatial, timesteps| Pyramid {
        spatial,
        temporal: 1,
        cross: 2,
        timesteps,
    };
    let middle = Timesteps {
        above: 100.0,
        below: 800.0,
    };
    for (every, timesteps, expected) in [
        (3, EVERYWHERE, vec![1, 2, 4, 5, 7, 8]),
        (2, EVERYWHERE, vec![1, 3, 5, 7, 9]),
        // 800 and 100 themselves are outside.
        (3, middle, vec![4, 5, 7, 8]),
        (1, EVERYWHERE, vec![]),
    ] {
        let run = Run::new(10, |plan, count| Backends {
            layers: Arc::new(LayerCache::new(
                policy(every, timesteps),
                Rules::default(),
                count(),
            )),
            ..plan
        });
        assert_eq!(
            answered(&run, &model, |step| sigma(step, 10)),
            expected,
            "every {every}"
        );
        model.take_attention();
    }
}

#[test]
fn pyramid_never_answers_a_branch_with_the_other_one_s_output() {
    // In diffusers the second call of a step is taken for the next step: it gets what the first one computed.
    let model = Toy::new(1, [1, 1], |_, token| token as f32);
    let policy = Pyramid {
        spatial: 2,
        temporal: 1,
        cross: 1,
        timesteps: EVERYWHERE,
    };
    let run = Run::new(6, |plan, count| Backends {
        layers: Arc::new(LayerCache::new(policy, Rules::default(), count())),
        ..plan
    });
    for step in 0..6 {
        for (conditional, expected) in [(true, 7.0), (false, -1.0)] {
            let rows = [(trajectory_id(7, conditional), vec![0.0])];
            let found = run.call(&model, step, 0.5, false, &rows);
            assert_eq!(found, [[expected]], "step {step}");
        }
    }
    assert_eq!((model.take_attention(), run.skipped()), (6, 6));
}

#[test]
fn magnitude_ratios_are_the_growth_of_what_the_blocks_add() {
    // x stays 0, so the block adds the signal alone, which grows by 1.25 for one sample and 1.25² for the other.
    let model = Toy::new(1, [1, 2], |sigma, token| sigma.powi(token as i32));
    let measured = Arc::new(MagnitudeRatios::new());
    let run = Run::new(4, |plan, _| Backends {
        stacks: measured.clone(),
        ..plan
    });
    let plain = Run::plain(4);
    assert_eq!(measured.ratios(), [0.0; 0]);
    for step in 0..4 {
        let rows = [
            (trajectory_id(1, true), vec![0.0; 2]),
            (trajectory_id(2, true), vec![0.0; 2]),
        ];
        let sigma = 1.25f64.powi(step as i32);
        let found = run.call(&model, step, sigma, false, &rows);
        assert_eq!(found, plain.call(&model, step, sigma, false, &rows));
    }
    for (found, expected) in measured.ratios().iter().zip([1.0, 1.40625, 1.40625, 1.40625]) {
        assert!((found - expected).abs() < 1e-6, "{found} for {expected}");
    }
    assert_eq!(measured.ratios().len(), 4);
}
