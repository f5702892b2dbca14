//! TDM-R1: losses and gradients against host computations in f64, and runs with three networks that are trained.

use crate::distillation::velocity;
use crate::fake_score::{
    Expected, GUIDANCE, INDEX, ODE, POSITION, Point, Query, check, each, images, row_means, values,
    velocity_at_rows,
};
use crate::loss_pass::loss_in;
use crate::losses::{ADVANTAGES, GROUPS, host, in_context, mean, squared};
use crate::support::{
    BASE, Visit, bits, config, environment, expect_same_when_resumed, registries, scramble, with_parts,
};
use flow_core::InferencePass;
use flow_report::{Manifest, OnExists, RunDirectory};
use flow_trainer::algorithm::{Algorithm, LossContext, NetworkRole};
use flow_trainer::observer::Silent;
use flow_trainer::trainer::{Parts, Session};
use std::path::Path;

/// Whole groups in each optimizer step.
const WHOLE: &str = "optimizer.gradient_accumulation=0";

/// Networks that are neither the student nor the reference nor one another.
fn with_other_networks<A>(mut parts: Parts<A>) -> Parts<A> {
    for (seed, network) in (41..).step_by(2).zip(parts.state.networks.values_mut()) {
        scramble(&mut network.weights, seed);
        network.slow.iter_mut().for_each(|slow| scramble(slow, seed + 1));
    }
    parts
}

/// What a model makes of points: `x - s v`.
fn image(
    context: &LossContext<'_, '_>,
    (x, sigmas): (&[f64], &[f64]),
    guidance: f32,
    pass: &InferencePass<'_>,
) -> Vec<f64> {
    let velocity = velocity_at_rows(context, (x, sigmas), guidance, |call| pass.exec(call));
    let velocity = values(velocity);
    each(x.len(), |row, at| x[at] - sigmas[row] * velocity[at])
}

/// The student's loss.
struct CheckStudent;

impl CheckStudent {
    fn expected(context: &LossContext<'_, '_>) -> Expected {
        let from = context.batch.records[INDEX].step.sigma;
        let query = Query::of(context);
        let (own, count) = (&query.image, query.image.len());
        let points = (&query.points[..], &query.sigmas[..]);
        let (real, fake) = images(context, points);
        let reference = context.reference.expect("it is there");
        let surrogate = context.surrogate.expect("it is there");
        let plain = image(context, points, 1.0, reference);
        let rewarded = image(context, points, GUIDANCE, surrogate);
        // The corrections, what their sizes are measured by, and how much each counts.
        let factor = 4.5 / (f64::from(GUIDANCE) - 1.0);
        let terms = [
            (each(count, |_, at| real[at] - fake[at]), &real, 1.0),
            (each(count, |_, at| factor * (real[at] - plain[at])), &real, 0.25),
            (each(count, |_, at| rewarded[at] - real[at]), &rewarded, 0.75),
        ];
        let mut expected = Expected {
            loss: 0.0,
            rises: vec![0.0; count],
        };
        for (correction, other, weight) in terms {
            let sizes = row_means(&each(count, |_, at| (own[at] - other[at]).abs()));
            let losses = each(count, |row, at| correction[at].powi(2) / 2.0 / sizes[row]);
            expected.loss += weight * mean(losses.into_iter());
            let rises = each(count, |row, at| weight * from * correction[at] / sizes[row]);
            let all = expected.rises.iter_mut().zip(rises);
            all.for_each(|(sum, rise)| *sum += rise);
        }
        expected
    }
}

impl Visit for CheckStudent {
    type Output = ();

    fn visit<A: Algorithm + 'static>(self, parts: Parts<A>) {
        let mut parts = with_other_networks(parts)
            .set_up()
            .expect("no accelerator refuses");
        in_context(&mut parts, POSITION, |algorithm, context, [pass, again]| {
            let found = loss_in(pass, context, |inner| algorithm.loss(inner, POSITION));
            let record = &context.batch.records[INDEX];
            let v = velocity(context, record, 1.0, |call| again.exec(call));
            check(context, found, (v, again), &Self::expected(context));
        });
    }
}

#[test]
fn the_student_follows_the_teacher_its_guidance_and_the_surrogate_by_their_formulas() {
    let registries = registries();
    let algorithm = "algorithm={ kind = \"tdm-r1\", real_guidance_scale = 2.0, tdm_weight = 0.25, cfg_reward_scale = 4.5 }";
    let config = config(&[algorithm, ODE, WHOLE]);
    with_parts(&config, &environment(&registries), CheckStudent);
}

/// The surrogate's loss.
struct CheckSurrogate {
    clip_range: f64,
    threshold: f64,
    time_weight: f64,
}

const PREFERENCE_BETA: f64 = 0.1;
const REFERENCE_BETA: f64 = 0.2;

impl CheckSurrogate {
    /// 1 for each row that learns, from the errors of the surrogate, of the teacher and of the slower copy.
    fn learns(&self, own: &[f64], teacher: &[f64], slow: Option<&Vec<f64>>) -> Vec<f64> {
        let row = |row: usize| {
            let is_better = ADVANTAGES[row] > 0.0;
            let (error, excess) = (own[row], own[row] - teacher[row]);
            let ran = if is_better { excess < 0.0 } else { excess > 0.0 };
            let ran = ran && excess * excess > self.threshold;
            let left = slow.is_some_and(|slow| {
                let ratio = (slow[row] - error).exp();
                match is_better {
                    true => ratio > 1.0 + self.clip_range,
                    false => ratio < 1.0 - self.clip_range,
                }
            });
            if ran || left { 0.0 } else { 1.0 }
        };
        (0..4).map(row).collect()
    }
}

impl Visit for CheckSurrogate {
    type Output = Vec<f64>;

    fn visit<A: Algorithm + 'static>(self, parts: Parts<A>) -> Self::Output {
        let mut parts = with_other_networks(parts)
            .set_up()
            .expect("no accelerator refuses");
        let (learns, _) = in_context(&mut parts, POSITION, |algorithm, context, [pass, again]| {
            let found = loss_in(pass, context, |inner| {
                algorithm.network_loss(NetworkRole::Surrogate, inner, POSITION)
            });
            let Point { record, noise, .. } = Point::of(context);
            let sigmas = Query::of(context).sigmas;
            let made = host(&record.x_next);
            let count = made.len();
            let points = each(count, |row, at| {
                (1.0 - sigmas[row]) * made[at] + sigmas[row] * noise[at]
            });
            let target = each(count, |_, at| noise[at] - made[at]);
            let at = (&points[..], &sigmas[..]);
            let velocity_of = |guidance, pass: &InferencePass<'_>| {
                values(velocity_at_rows(context, at, guidance, |call| pass.exec(call)))
            };
            let error_of = |guidance, pass| squared(&velocity_of(guidance, pass), &target);
            let own = error_of(1.0, context.surrogate.expect("it is there"));
            let teacher = error_of(GUIDANCE, context.reference.expect("it is there"));
            let slow = context.surrogate_slow.map(|slow| error_of(1.0, slow));
            assert_eq!(slow.is_some(), self.clip_range > 0.0);
            let weights: Vec<f64> = (0..4)
                .map(|row| {
                    let group = (0..4).filter(|other| GROUPS[*other] == GROUPS[row]);
                    let part = |row: usize| f64::from(ADVANTAGES[row]) * (own[row] - teacher[row]);
                    let z = PREFERENCE_BETA * group.map(part).sum::<f64>() / 2.0;
                    1.0 / (1.0 + (-z).exp())
                })
                .collect();
            let learns = self.learns(&own, &teacher, slow.as_ref());
            // The loss is of the weights that learn, which are others here.
            let v = velocity_of(1.0, context.current);
            let errors = squared(&v, &target);
            let counts: Vec<f64> = (weights.iter().zip(&ADVANTAGES))
                .map(|(weight, advantage)| weight * f64::from(*advantage))
                .collect();
            let loss_of = |row: usize| {
                let excess = errors[row] - teacher[row];
                counts[row] * errors[row] + REFERENCE_BETA * excess * excess
            };
            let rise_of =
                |row: usize| counts[row] * learns[row] + 2.0 * REFERENCE_BETA * (errors[row] - teacher[row]);
            let expected = Expected {
                loss: self.time_weight * mean((0..4).map(loss_of)),
                rises: each(count, |row, at| {
                    self.time_weight * rise_of(row) * 2.0 * (v[at] - target[at])
                }),
            };
            let v = velocity_at_rows(context, at, 1.0, |call| again.exec(call));
            check(context, found, (v, again), &expected);
            learns
        });
        learns
    }
}

#[test]
fn the_surrogate_learns_from_rewards_by_its_formulas() {
    let registries = registries();
    let visit = |clip_range: f64, threshold: f64, time_weighting: bool| {
        let algorithm = format!(
            "algorithm={{ kind = \"tdm-r1\", real_guidance_scale = 2.0, surrogate = {{ preference_beta = {PREFERENCE_BETA}, \
             reference_beta = {REFERENCE_BETA}, reference_threshold = {threshold:?}, clip_range = {clip_range:?}, \
             time_weighting = {time_weighting} }} }}"
        );
        let check = CheckSurrogate {
            clip_range,
            threshold,
            // The second of four steps.
            time_weight: if time_weighting { 0.5 } else { 1.0 },
        };
        let config = config(&[&algorithm, ODE, WHOLE]);
        with_parts(&config, &environment(&registries), check)
    };
    assert_eq!(visit(0.0, 1e6, true), [1.0; 4]);
    visit(1e-3, 0.05, false);
    visit(1e-3, 1e6, true);
}

/// One iteration, and how often each network took a step in it.
struct Steps<'a>(&'a Path);

impl Visit for Steps<'_> {
    /// Of the student, of the fake score and of the surrogate.
    type Output = [u64; 3];

    fn visit<A: Algorithm + 'static>(self, mut parts: Parts<A>) -> Self::Output {
        parts.settings.iterations = 1;
        let reference = bits(parts.state.weights.reference());
        let first = bits(&parts.state.networks[&NetworkRole::Surrogate].weights);
        let directory = RunDirectory::open(self.0, "run", OnExists::Error).expect("a folder");
        let manifest = Manifest::new("run", vec![], serde_json::Value::Null, self.0);
        let mut session = Session::start(parts, directory, &manifest).expect("it starts");
        session.run(&mut Silent).expect("it ends");
        let state = session.state();
        assert!(
            bits(state.weights.reference()) == reference,
            "the teacher must not move"
        );
        let [fake, surrogate] = NetworkRole::ALL.map(|role| &state.networks[&role]);
        assert!(fake.slow.is_none());
        let slow = bits(surrogate.slow.as_ref().expect("it is kept"));
        let moved = bits(&surrogate.weights);
        assert!(moved != first, "the surrogate must move");
        assert!(
            slow != first && slow != moved,
            "the slower copy follows a part of the way"
        );
        [
            state.optimizer.steps(),
            fake.optimizer.steps(),
            surrogate.optimizer.steps(),
        ]
    }
}

#[test]
fn the_surrogate_takes_one_step_before_each_of_the_student() {
    let registries = registries();
    let root = tempfile::tempdir().expect("a temporary directory");
    let config = config(&[
        "algorithm={ kind = \"tdm-r1\", fake_score = { updates = 2 } }",
        ODE,
        WHOLE,
    ]);
    let found = with_parts(&config, &environment(&registries), Steps(root.path()));
    assert_eq!(found, [1, 2, 1]);
}

#[test]
fn a_resumed_run_has_all_networks_and_the_slower_copy_of_the_uninterrupted_one_bit_for_bit() {
    let registries = registries();
    let environment = environment(&registries);
    let fast = "fake_score = { updates = 2, learning_rate = 1e-3 }, surrogate = { learning_rate = 1e-3 }";
    let whole = format!("algorithm={{ kind = \"tdm-r1\", {fast} }}");
    let adapters = format!(
        "algorithm={{ kind = \"tdm-r1\", reference = \"lora-off\", real_guidance_scale = 2.0, {fast} }}"
    );
    let variants: [&[&str]; 2] = [
        &[&whole, ODE, WHOLE, "ema.enabled=true"],
        &[
            &adapters,
            ODE,
            WHOLE,
            "model.finetune=\"lora\"",
            "lora.targets=[\"to_q\"]",
        ],
    ];
    for overrides in variants {
        let config = config(overrides);
        expect_same_when_resumed(&config, &environment, &overrides);
    }
}

#[test]
fn settings_of_a_surrogate_that_do_not_fit_are_refused_before_anything_is_loaded() {
    for (settings, dynamics, accumulation, part) in [
        ("", "flow-sde", 0, "must be deterministic"),
        ("", "ode", 1, "no whole groups"),
        (", reference = \"lora-off\"", "ode", 0, "needs adapters"),
        (
            ", surrogate = { slow_decay_min = 0.5 }",
            "ode",
            0,
            "which it rises to",
        ),
    ] {
        let overrides = [
            format!("algorithm={{ kind = \"tdm-r1\"{settings} }}"),
            format!("scheduler.dynamics=\"{dynamics}\""),
            format!("optimizer.gradient_accumulation={accumulation}"),
        ];
        let report = test_catalog::parse_named("test.toml", BASE, &overrides);
        let text = report.expect_err("the settings do not fit").to_string();
        assert!(text.contains(part), "{part:?} is missing in {text}");
    }
}
