//! DMD2 and TDM: losses and gradients against host computations in f64, and runs with two networks that are trained.

use crate::distillation::velocity;
use crate::loss_pass::{expect_gradients, loss_in};
use crate::losses::{SITE, host, in_context, mean, rows};
use crate::support::{
    BASE, Visit, bits, config, environment, expect_same_when_resumed, registries, scramble, with_trainer,
};
use burn::tensor::Tensor;
use flow_core::rng::{Purpose, Stream};
use flow_core::tensors::plain;
use flow_core::{CallContext, Exec, RawTensor, TrainingPass};
use flow_report::{Manifest, OnExists, RunDirectory};
use flow_trainer::Trainer;
use flow_trainer::algorithm::{Algorithm, LossContext, LossPoint, NetworkRole};
use flow_trainer::observer::Silent;
use flow_trainer::policy::CallSite;
use flow_trainer::rollout::StepRecord;
use std::path::Path;

pub const ODE: &str = "scheduler.dynamics=\"ode\"";
/// The seed of the base config.
const SEED: u64 = 3;
pub const INDEX: usize = 1;
const DRAW: u32 = 6;
pub const POSITION: LossPoint = LossPoint::Step {
    index: INDEX,
    draw: DRAW,
};
/// Guidance of the teacher; rollouts have none.
pub const GUIDANCE: f32 = 2.0;

/// The velocity at levels of each row's own, `[4, N]`.
pub fn velocity_at_rows<'e>(
    context: &LossContext<'_, '_>,
    (x, sigmas): (&[f64], &[f64]),
    guidance: f32,
    open: impl FnOnce(CallContext) -> Exec<'e>,
) -> Tensor<2> {
    let (policy, conditions) = context.policy.under(guidance, &context.batch.conditions);
    let site = CallSite { sigma: None, ..SITE };
    let exec = open(policy.call(site, &context.batch.samples));
    let in_f32 = |values: &[f64]| values.iter().map(|value| *value as f32).collect::<Vec<f32>>();
    let sigma: Tensor<1> = context.device.tensor(in_f32(sigmas), [4]);
    let x: Tensor<2> = context.device.tensor(in_f32(x), [4, x.len() / 4]);
    policy.velocity(&exec, x, sigma, &conditions)
}

pub fn values(velocity: Tensor<2>) -> Vec<f64> {
    host(&velocity.into_dispatch())
}

/// A uniform draw for each row.
fn shares(context: &LossContext<'_, '_>) -> Vec<f64> {
    let stream = Stream::new(SEED, Purpose::Timesteps);
    let of = |sample: &u64| stream.at(*sample, DRAW).uniform();
    context.batch.samples.iter().map(of).collect()
}

/// By value, what `of` makes of its row and place.
pub fn each(count: usize, of: impl Fn(usize, usize) -> f64) -> Vec<f64> {
    (0..count).map(|at| of(at / (count / 4), at)).collect()
}

/// Mean over the values of each row.
pub fn row_means(all: &[f64]) -> Vec<f64> {
    rows(all).map(|row| mean(row.iter().copied())).collect()
}

/// What the reference, under guidance, and the fake score make of points: `x - s v`.
pub fn images(context: &LossContext<'_, '_>, points: (&[f64], &[f64])) -> (Vec<f64>, Vec<f64>) {
    let reference = context.reference.expect("it is there");
    let fake = context.fake.expect("it is there");
    let real = values(velocity_at_rows(context, points, GUIDANCE, |call| {
        reference.exec(call)
    }));
    let fake = values(velocity_at_rows(context, points, 1.0, |call| fake.exec(call)));
    let (x, sigmas) = points;
    let image = |velocity: Vec<f64>| each(x.len(), |row, at| x[at] - sigmas[row] * velocity[at]);
    (image(real), image(fake))
}

/// What a loss is, and how it rises with each value of the velocity, times the number of values.
pub struct Expected {
    pub loss: f64,
    pub rises: Vec<f64>,
}

pub fn check(
    context: &LossContext<'_, '_>,
    (loss, gradients): (f64, Vec<Option<RawTensor>>),
    (velocity, again): (Tensor<2>, TrainingPass<'_>),
    expected: &Expected,
) {
    assert!(
        (loss - expected.loss).abs() < 1e-3 * expected.loss && expected.loss > 1e-9,
        "{loss} and {}",
        expected.loss
    );
    let count = expected.rises.len();
    let rises = expected.rises.iter().map(|rise| *rise as f32).collect();
    let rises: Tensor<2> = context.device.tensor(rises, [4, count / 4]);
    let products = velocity * Tensor::from_dispatch(plain(&rises.into_dispatch()));
    let by_row: Tensor<1> = products.mean_dim(1).squeeze_dim(1);
    let wanted = again.gradients(&by_row.mean_dim(0));
    expect_gradients(&gradients, &wanted, (1e-9, 5e-3));
}

/// What a loss is computed from, on the host.
pub struct Point<'c> {
    pub record: &'c StepRecord,
    x: Vec<f64>,
    /// The student's velocity at the recorded step.
    v: Vec<f64>,
    pub noise: Vec<f64>,
}

impl<'c> Point<'c> {
    pub fn of(context: &'c LossContext<'_, '_>) -> Self {
        let record = &context.batch.records[INDEX];
        Self {
            record,
            x: host(&record.x),
            v: values(velocity(context, record, 1.0, |call| context.current.exec(call))),
            noise: host(context.noise.as_ref().expect("it was drawn")),
        }
    }
}

/// DMD2's loss of the student, or of the fake score.
struct CheckDmd2 {
    of_fake_score: bool,
}

impl CheckDmd2 {
    fn student(context: &LossContext<'_, '_>) -> Expected {
        let Point { record, x, v, noise } = Point::of(context);
        let count = x.len();
        let made = each(count, |_, at| x[at] + record.step.dt * v[at]);
        let sigmas: Vec<f64> = shares(context).iter().map(|share| 0.02 + 0.96 * share).collect();
        let points = each(count, |row, at| {
            (1.0 - sigmas[row]) * made[at] + sigmas[row] * noise[at]
        });
        let (real, fake) = images(context, (&points[..], &sigmas[..]));
        let sizes = row_means(&each(count, |_, at| (made[at] - real[at]).abs()));
        let directions = each(count, |row, at| (fake[at] - real[at]) / sizes[row].max(1e-6));
        Expected {
            loss: mean(directions.iter().map(|direction| 0.5 * direction * direction)),
            rises: each(count, |_, at| record.step.dt * directions[at]),
        }
    }

    /// The points that the fake score looks at, their levels, and the velocities that it should have there.
    fn looked_at(context: &LossContext<'_, '_>) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
        let noise = Point::of(context).noise;
        let made = host(&context.batch.records[INDEX].x_next);
        let sigmas: Vec<f64> = shares(context).iter().map(|share| 0.02 + 0.96 * share).collect();
        let points = each(made.len(), |row, at| {
            (1.0 - sigmas[row]) * made[at] + sigmas[row] * noise[at]
        });
        let targets = each(made.len(), |_, at| noise[at] - made[at]);
        (points, sigmas, targets)
    }
}

impl Visit for CheckDmd2 {
    type Output = ();

    fn visit<A: Algorithm + 'static>(self, trainer: Trainer<A>) {
        let mut trainer = with_another_fake_score(trainer)
            .set_up()
            .expect("no accelerator refuses");
        in_context(&mut trainer, POSITION, |algorithm, context, [pass, again]| {
            if !self.of_fake_score {
                let found = loss_in(pass, context, |inner| algorithm.loss(inner, POSITION));
                let record = &context.batch.records[INDEX];
                let v = velocity(context, record, 1.0, |call| again.exec(call));
                return check(context, found, (v, again), &Self::student(context));
            }
            let found = loss_in(pass, context, |inner| {
                algorithm.network_loss(NetworkRole::FakeScore, inner, POSITION)
            });
            let (points, sigmas, targets) = Self::looked_at(context);
            let at = (&points[..], &sigmas[..]);
            let v = values(velocity_at_rows(context, at, 1.0, |call| {
                context.current.exec(call)
            }));
            let errors = each(v.len(), |_, at| v[at] - targets[at]);
            let expected = Expected {
                loss: mean(errors.iter().map(|error| error * error)),
                rises: errors.iter().map(|error| 2.0 * error).collect(),
            };
            let v = velocity_at_rows(context, at, 1.0, |call| again.exec(call));
            check(context, found, (v, again), &expected);
        });
    }
}

/// A fake score that is neither the student nor the reference.
fn with_another_fake_score<A>(mut trainer: Trainer<A>) -> Trainer<A> {
    let network = trainer.state.networks.get_mut(&NetworkRole::FakeScore);
    let network = network.expect("the algorithm has one");
    scramble(&mut network.weights, 41);
    trainer
}

#[test]
fn dmd2_follows_its_formulas_for_the_student_and_for_the_fake_score() {
    let registries = registries();
    for of_fake_score in [false, true] {
        let config = config(&["algorithm={ kind = \"dmd2\", real_guidance_scale = 2.0 }", ODE]);
        with_trainer(&config, &environment(&registries), CheckDmd2 { of_fake_score });
    }
}

/// TDM's loss of the student, or of the fake score.
struct CheckTdm {
    of_fake_score: bool,
    huber: bool,
}

/// What TDM looks at, on the host.
pub struct Query {
    pub image: Vec<f64>,
    pub sigmas: Vec<f64>,
    pub points: Vec<f64>,
    /// Importance of each row.
    importance: Vec<f64>,
}

impl Query {
    pub fn of(context: &LossContext<'_, '_>) -> Self {
        let Point { record, x, v, noise } = Point::of(context);
        let (count, from, to) = (x.len(), record.step.sigma, record.step.sigma_next);
        let image = each(count, |_, at| x[at] - from * v[at]);
        let sigma = |share: &f64| to + (1e-6 + (1.0 - 2e-6) * share) * (from - to);
        let sigmas: Vec<f64> = shares(context).iter().map(sigma).collect();
        let kept: Vec<f64> = sigmas.iter().map(|s| (1.0 - s) / (1.0 - to) * to).collect();
        let mixed = each(count, |row, at| {
            let (s, c) = (sigmas[row], kept[row]);
            (c * (image[at] + v[at]) + (s * s - c * c).sqrt() * noise[at]) / s
        });
        let points = each(count, |row, at| {
            (1.0 - sigmas[row]) * image[at] + sigmas[row] * mixed[at]
        });
        let squares = |values: &[f64]| row_means(&values.iter().map(|v| v * v).collect::<Vec<_>>());
        let importance = squares(&noise).into_iter().zip(squares(&mixed));
        let bound = 20f64.ln();
        Self {
            importance: importance
                .map(|(fresh, mixed)| ((fresh - mixed) / 2.0).clamp(-bound, bound).exp())
                .collect(),
            image,
            sigmas,
            points,
        }
    }
}

impl CheckTdm {
    fn student(&self, context: &LossContext<'_, '_>) -> Expected {
        let from = context.batch.records[INDEX].step.sigma;
        let Query {
            image,
            sigmas,
            points,
            ..
        } = Query::of(context);
        let count = image.len();
        let (real, fake) = images(context, (&points[..], &sigmas[..]));
        let sizes = row_means(&each(count, |_, at| (image[at] - real[at]).abs()));
        let differences = each(count, |_, at| fake[at] - real[at]);
        let (c, huber) = (1e-3, self.huber);
        let root = |d: f64| (d * d + c * c).sqrt();
        let count_of = |d: f64| if huber { root(d) - c } else { d * d / 2.0 };
        let rise_of = |d: f64| if huber { d / root(d) } else { d };
        let losses = each(count, |row, at| count_of(differences[at]) / sizes[row]);
        Expected {
            loss: mean(losses.into_iter()),
            rises: each(count, |row, at| -from * rise_of(differences[at]) / sizes[row]),
        }
    }
}

impl Visit for CheckTdm {
    type Output = ();

    fn visit<A: Algorithm + 'static>(self, trainer: Trainer<A>) {
        let mut trainer = with_another_fake_score(trainer)
            .set_up()
            .expect("no accelerator refuses");
        in_context(&mut trainer, POSITION, |algorithm, context, [pass, again]| {
            if !self.of_fake_score {
                let found = loss_in(pass, context, |inner| algorithm.loss(inner, POSITION));
                let record = &context.batch.records[INDEX];
                let v = velocity(context, record, 1.0, |call| again.exec(call));
                return check(context, found, (v, again), &self.student(context));
            }
            let found = loss_in(pass, context, |inner| {
                algorithm.network_loss(NetworkRole::FakeScore, inner, POSITION)
            });
            let Query {
                image,
                sigmas,
                points,
                importance,
            } = Query::of(context);
            let at = (&points[..], &sigmas[..]);
            let v = values(velocity_at_rows(context, at, 1.0, |call| {
                context.current.exec(call)
            }));
            let errors = each(v.len(), |row, at| points[at] - sigmas[row] * v[at] - image[at]);
            let ratio = |s: f64| ((1.0 - s).powi(2) / (s * s)).min(5.0);
            let weight = |row: usize| importance[row] * ratio(sigmas[row]);
            let losses = each(v.len(), |row, at| errors[at] * errors[at] * weight(row));
            let expected = Expected {
                loss: mean(losses.into_iter()),
                rises: each(v.len(), |row, at| -2.0 * sigmas[row] * errors[at] * weight(row)),
            };
            let v = velocity_at_rows(context, at, 1.0, |call| again.exec(call));
            check(context, found, (v, again), &expected);
        });
    }
}

#[test]
fn tdm_follows_its_formulas_for_the_student_and_for_the_fake_score() {
    let registries = registries();
    for (of_fake_score, huber) in [(false, true), (false, false), (true, true)] {
        let distance = if huber { "huber" } else { "square" };
        let algorithm =
            format!("algorithm={{ kind = \"tdm\", real_guidance_scale = 2.0, distance = \"{distance}\" }}");
        let config = config(&[&algorithm, ODE]);
        let check = CheckTdm { of_fake_score, huber };
        with_trainer(&config, &environment(&registries), check);
    }
}

/// Networks that are the reference, bit for bit.
struct SameScores;

impl Visit for SameScores {
    type Output = ();

    fn visit<A: Algorithm + 'static>(self, mut trainer: Trainer<A>) {
        for network in trainer.state.networks.values_mut() {
            network.weights = trainer.state.weights.current.clone();
        }
        let mut trainer = trainer.set_up().expect("no accelerator refuses");
        in_context(&mut trainer, POSITION, |algorithm, context, [pass, _]| {
            let (loss, gradients) = loss_in(pass, context, |inner| algorithm.loss(inner, POSITION));
            assert_eq!(loss, 0.0);
            let mut all = gradients.iter().flatten().flat_map(host);
            assert!(all.all(|value| value == 0.0));
        });
    }
}

#[test]
fn a_student_whose_networks_are_the_teacher_learns_nothing() {
    let registries = registries();
    for kind in ["dmd2", "tdm", "tdm-r1"] {
        let whole = "optimizer.gradient_accumulation=0";
        let config = config(&[&format!("algorithm.kind=\"{kind}\""), ODE, whole]);
        with_trainer(&config, &environment(&registries), SameScores);
    }
}

/// One iteration, and how often each network took a step in it.
struct Steps<'a>(&'a Path);

impl Visit for Steps<'_> {
    /// Of the student and of the fake score.
    type Output = [u64; 2];

    fn visit<A: Algorithm + 'static>(self, mut trainer: Trainer<A>) -> Self::Output {
        trainer.settings.iterations = 1;
        let reference = bits(trainer.state.weights.reference());
        let before = bits(&trainer.state.networks[&NetworkRole::FakeScore].weights);
        let directory = RunDirectory::open(self.0, "run", OnExists::Error).expect("a folder");
        let manifest = Manifest::new("run", vec![], serde_json::Value::Null, self.0);
        let mut trainer = trainer.start(directory, &manifest).expect("it starts");
        trainer.train(&mut Silent).expect("it ends");
        let state = &trainer.state;
        let fake = &state.networks[&NetworkRole::FakeScore];
        assert!(
            bits(state.weights.reference()) == reference,
            "the teacher must not move"
        );
        assert!(bits(&fake.weights) != before, "the fake score must move");
        [state.optimizer.steps(), fake.optimizer.steps()]
    }
}

#[test]
fn the_fake_score_takes_its_steps_before_each_of_the_student() {
    let registries = registries();
    for (kind, updates) in [("dmd2", 5), ("tdm", 2)] {
        let root = tempfile::tempdir().expect("a temporary directory");
        let algorithm = format!("algorithm={{ kind = \"{kind}\", fake_score = {{ updates = {updates} }} }}");
        let config = config(&[&algorithm, ODE, "optimizer.gradient_accumulation=0"]);
        let found = with_trainer(&config, &environment(&registries), Steps(root.path()));
        assert_eq!(found, [1, updates], "{kind}");
    }
}

#[test]
fn a_resumed_run_has_both_networks_of_the_uninterrupted_one_bit_for_bit() {
    let registries = registries();
    let environment = environment(&registries);
    let fast = "fake_score = { updates = 2, learning_rate = 1e-3, betas = [0.0, 0.999] }";
    let dmd2 = format!("algorithm={{ kind = \"dmd2\", {fast} }}");
    let tdm = format!("algorithm={{ kind = \"tdm\", reference = \"lora-off\", {fast} }}");
    let variants: [&[&str]; 2] = [
        &[&dmd2, ODE, "ema.enabled=true"],
        &[&tdm, ODE, "model.finetune=\"lora\"", "lora.targets=[\"to_q\"]"],
    ];
    for overrides in variants {
        let config = config(overrides);
        expect_same_when_resumed(&config, &environment, &overrides);
    }
}

#[test]
fn settings_of_scores_that_do_not_fit_are_refused_before_anything_is_loaded() {
    for (settings, dynamics, part) in [
        ("kind = \"dmd2\"", "flow-sde", "must be deterministic"),
        ("kind = \"tdm\"", "cps", "must be deterministic"),
        (
            "kind = \"dmd2\", perturbation_range = [0.9, 0.1]",
            "ode",
            "must have lo < hi",
        ),
        (
            "kind = \"tdm\", reference = \"lora-off\"",
            "ode",
            "needs adapters",
        ),
    ] {
        let overrides = [
            format!("algorithm={{ {settings} }}"),
            format!("scheduler.dynamics=\"{dynamics}\""),
        ];
        let report = test_catalog::parse_named("test.toml", BASE, &overrides);
        let text = report.expect_err("the settings do not fit").to_string();
        assert!(text.contains(part), "{part:?} is missing in {text}");
    }
}
