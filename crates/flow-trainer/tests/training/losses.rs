//! Losses against host computations in f64, from the tensors of a real rollout.

use crate::support::{Visit, config, environment, registries, with_trainer};
use burn::tensor::Tensor;
use flow_accel::Acceleration;
use flow_core::rng::Purpose;
use flow_core::{InferencePass, RawTensor, Stage, TrainingPass, cpu};
use flow_trainer::Trainer;
use flow_trainer::algorithm::{Algorithm, LossContext, LossPoint, NetworkRole, PointLoss, StepRows, Taught};
use flow_trainer::policy::{CallSite, Conditions};
use flow_trainer::rollout::{NoiseSource, SampleRequest, StepRecord, Trajectories};
use flow_trainer::scheduler::StepCoefficients;

pub const ADVANTAGES: [f32; 4] = [1.5, -0.7, 0.0, 9.0];
pub const SITE: CallSite = CallSite {
    stage: Stage::Rollout,
    iteration: 0,
    step: 0,
    stochastic: false,
    sigma: None,
    steps: 4,
};

pub fn host(values: &RawTensor) -> Vec<f64> {
    cpu::to_host(values).into_iter().map(f64::from).collect()
}

/// How much the four samples are pulled back, for losses that ask: two, of an iteration in which two in five images are.
pub const GATES: [f32; 4] = [0.0, 2.5, 2.5, 0.0];

/// Groups of the four samples, for losses that compare rows.
pub const GROUPS: [u64; 4] = [5, 5, 6, 6];

/// Rolls out four samples, and calls back with the algorithm, the context of a loss after the weights have moved, so that ratios are not
/// 1, and two more passes with these weights.
pub fn in_context<A: Algorithm, R>(
    trainer: &mut Trainer<A, Acceleration>,
    position: LossPoint,
    look: impl FnOnce(&A, &LossContext<'_, '_>, [TrainingPass<'_>; 2]) -> R,
) -> (R, Trajectories) {
    let samples = [10, 11, 12, 13];
    let prompts = trainer.prompts.clone();
    let conditions = trainer.conditioner.conditions(prompts.iter().take(4));
    let steps = trainer.schedule.steps_for(0);
    let sampled = trainer.state.weights.current.clone();
    let rollout = InferencePass::new(&sampled, trainer.training_plan().clone());
    let request = SampleRequest {
        site: SITE,
        source: NoiseSource::Rollout,
        samples: &samples,
        starts: &samples,
        conditions,
        steps: &steps,
    };
    let keeps = |step: &StepCoefficients| trainer.algorithm.keeps_step(step);
    let batch = trainer
        .sampler
        .run_recording(&rollout, request, (&[], keeps), |_| {});
    crate::support::scramble(&mut trainer.state.weights.current, 77);

    let moved = &trainer.state.weights.current;
    let trained: Vec<bool> = moved
        .layout()
        .specs()
        .iter()
        .map(|s| s.kind == flow_core::ParamKind::Base)
        .collect();
    let pass = || TrainingPass::new(moved, trainer.training_plan().clone(), trained.clone().into());
    let (pass, again) = (pass(), [pass(), pass()]);
    let current = InferencePass::new(moved, trainer.training_plan().clone());
    let reference = InferencePass::new(&sampled, trainer.training_plan().clone());
    let values = trainer.sampler.policy.model.spec().latent.values();
    let noise = trainer.sampler.noise(Purpose::ForwardNoise, &samples, 3, values);
    // Rows take turns with the teachers, if there are some.
    let teachers = &trainer.state.weights.teachers;
    let taught = teachers.iter().enumerate().map(|(teacher, weights)| Taught {
        teacher,
        pass: InferencePass::new(weights, trainer.training_plan().clone()),
        rows: (0..4).map(|row| row % teachers.len() == teacher).collect(),
    });
    let networks = &trainer.state.networks;
    let inference = |weights| InferencePass::new(weights, trainer.training_plan().clone());
    let of_role = |role: NetworkRole| networks.get(&role).map(|network| inference(&network.weights));
    let (fake, surrogate) = (of_role(NetworkRole::FakeScore), of_role(NetworkRole::Surrogate));
    let slow = networks.get(&NetworkRole::Surrogate);
    let slow = slow.and_then(|network| network.slow.as_ref()).map(inference);
    let mut context = LossContext {
        pass: &pass,
        current: &current,
        sampling: &reference,
        reference: Some(&reference),
        old: Some(&reference),
        fake: fake.as_ref(),
        surrogate: surrogate.as_ref(),
        surrogate_slow: slow.as_ref(),
        teachers: taught.collect(),
        policy: &trainer.sampler.policy,
        kernels: &*trainer.training_plan().kernels,
        device: &trainer.sampler.device,
        batch: &batch,
        advantages: trainer.sampler.device.tensor(ADVANTAGES.to_vec(), [4]),
        gates: Some(trainer.sampler.device.tensor(GATES.to_vec(), [4])),
        noise: Some(noise),
        before: None,
        compared: Vec::new(),
        site: SITE,
    };
    context.before = trainer.algorithm.before(&context, position);
    let mut learners = NetworkRole::ALL.map(Some).into_iter().chain([None]);
    if learners.any(|learner| trainer.algorithm.compares_rows(learner)) {
        let numbers = trainer.algorithm.row_numbers(&context, position);
        let numbers: Vec<Vec<f32>> = numbers.iter().map(cpu::to_host).collect();
        let compared = trainer.algorithm.compare(&StepRows {
            advantages: &ADVANTAGES,
            groups: &GROUPS,
            numbers: &numbers,
        });
        let plain = |values| trainer.sampler.device.plain(values, &[4]);
        context.compared = compared.into_iter().map(plain).collect();
    }
    let looked = look(&trainer.algorithm, &context, again);
    (looked, batch)
}

/// The loss after the weights have moved, with velocities at its input under the weights that moved and those that sampled.
pub fn loss_at<A: Algorithm>(
    trainer: &mut Trainer<A, Acceleration>,
    position: LossPoint,
) -> (PointLoss, Trajectories, Vec<f64>, Vec<f64>) {
    let ((loss, v, v_old), batch) = in_context(trainer, position, |algorithm, context, _| {
        let loss = algorithm.loss(context, position);
        let (x, sigma) = match position {
            LossPoint::Recorded(index) => {
                let record = &context.batch.records[index];
                (host(&record.x), record.step.sigma)
            }
            LossPoint::Step { .. } => unreachable!("no loss of these tests is taken there"),
            LossPoint::Time { sigma, .. } => {
                let noise = host(context.noise.as_ref().expect("it was drawn"));
                let mix = |(clean, noise): (&f64, &f64)| (1.0 - sigma) * clean + sigma * noise;
                let clean = host(&context.batch.clean);
                (clean.iter().zip(&noise).map(mix).collect(), sigma)
            }
            LossPoint::EachRow { .. } => unreachable!("such losses are checked in `records`"),
        };
        let velocity = |pass: &InferencePass<'_>| {
            let exec = pass.exec(context.policy.call(SITE, &context.batch.samples));
            let x = x.iter().map(|v| *v as f32).collect::<Vec<f32>>();
            let values = x.len() / 4;
            let x: Tensor<2> = context.device.tensor(x, [4, values]);
            let sigma = context.device.tensor(vec![sigma as f32; 4], [4]);
            let v = context
                .policy
                .velocity(&exec, x, sigma, &context.batch.conditions);
            host(&v.into_dispatch())
        };
        (loss, velocity(context.current), velocity(context.sampling))
    });
    (loss, batch, v, v_old)
}

pub fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

pub fn rows(values: &[f64]) -> impl ExactSizeIterator<Item = &[f64]> {
    values.chunks_exact(values.len() / 4)
}

/// A recorded step computed on the host, under the weights that moved and under those that sampled.
pub struct HostStep {
    step: StepCoefficients,
    pub log_prob: Vec<f64>,
    /// As the rollout recorded it.
    pub old_log_prob: Vec<f64>,
    /// `mean((mu - mu_old)²)` per row.
    drift: Vec<f64>,
}

/// `mean((a - b)²)` per row.
pub fn squared(a: &[f64], b: &[f64]) -> Vec<f64> {
    rows(a)
        .zip(rows(b))
        .map(|(a, b)| mean(a.iter().zip(b).map(|(a, b)| (a - b).powi(2))))
        .collect()
}

impl HostStep {
    pub fn of(record: &StepRecord, v: &[f64], v_old: &[f64]) -> Self {
        let step = record.step;
        let (scale, offset) = step
            .log_prob
            .map(|c| (c.scale, c.offset))
            .expect("a stochastic step");
        let x = host(&record.x);
        let mean_of = |v: &[f64]| -> Vec<f64> {
            x.iter()
                .zip(v)
                .map(|(x, v)| step.mean_x * x + step.mean_v * v)
                .collect()
        };
        let (mu, mu_old) = (mean_of(v), mean_of(v_old));
        let errors = squared(&host(&record.x_next), &mu);
        Self {
            step,
            log_prob: errors.iter().map(|e| offset - scale * e).collect(),
            old_log_prob: host(&record.log_prob),
            drift: squared(&mu, &mu_old),
        }
    }

    pub fn ratios(&self) -> Vec<f64> {
        let pairs = self.log_prob.iter().zip(&self.old_log_prob);
        pairs.map(|(new, old)| (new - old).exp()).collect()
    }
}

/// `mean(max(-A r, -A clamp(r, 1 ± clip)))`.
pub fn clipped(ratios: &[f64], clip: f64) -> f64 {
    let row = |(ratio, a): (&f64, &f32)| {
        let a = f64::from(*a);
        (-a * ratio).max(-a * ratio.clamp(1.0 - clip, 1.0 + clip))
    };
    mean(ratios.iter().zip(&ADVANTAGES).map(row))
}

/// That loss and ratios are those expected; gives the terms that are logged.
fn check(found: PointLoss, expected: f64, ratios: &[f64]) -> Vec<(&'static str, RawTensor)> {
    let loss = host(&found.loss.into_dispatch_plain())[0];
    assert!(
        (loss - expected).abs() < 2e-4 * expected.abs().max(1.0),
        "{loss} and {expected}"
    );
    let found_ratios = host(&found.replayed.expect("a coupled algorithm has ratios").ratio);
    for (found, expected) in found_ratios.iter().zip(ratios) {
        assert!((found / expected - 1.0).abs() < 2e-4, "{found} and {expected}");
    }
    assert!(
        ratios.iter().all(|ratio| (ratio - 1.0).abs() > 1e-3),
        "the case must exercise the clip: {ratios:?}"
    );
    found.terms
}

#[derive(Clone, Copy, PartialEq)]
enum Clipped {
    Grpo,
    Guard,
    /// With the divergence as pull, and steps that count by their noise.
    Weighted,
}

struct CheckClipped(Clipped);

impl Visit for CheckClipped {
    type Output = ();

    fn visit<A: Algorithm + 'static>(self, trainer: Trainer<A>) {
        let mut trainer = trainer.set_up().expect("no accelerator refuses");
        let (found, batch, v, v_old) = loss_at(&mut trainer, LossPoint::Recorded(1));
        let host = HostStep::of(&batch.records[1], &v, &v_old);
        let (step, q) = (host.step, host.step.guard_scale());
        let kl = mean(host.drift.iter().copied());
        let noise = batch.records.iter().map(|record| record.step.noise);
        let mean_noise = noise.sum::<f64>() / batch.records.len() as f64;
        let (ratios, weight, pull) = match self.0 {
            Clipped::Grpo => (host.ratios(), 1.0, kl),
            Clipped::Weighted => (
                host.ratios(),
                step.noise / mean_noise,
                kl / (2.0 * step.std_dev.powi(2)),
            ),
            Clipped::Guard => {
                let row = |i: usize| {
                    ((host.log_prob[i] - host.old_log_prob[i]) * q + host.drift[i] / (2.0 * q)).exp()
                };
                ((0..4).map(row).collect(), 1.0 / -step.dt, kl)
            }
        };
        check(found, weight * clipped(&ratios, 1e-3) + 0.3 * pull, &ratios);
    }
}

struct CheckGardo;

impl Visit for CheckGardo {
    type Output = ();

    fn visit<A: Algorithm + 'static>(self, trainer: Trainer<A>) {
        let mut trainer = trainer.set_up().expect("no accelerator refuses");
        let (found, batch, v, v_old) = loss_at(&mut trainer, LossPoint::Recorded(1));
        let host = HostStep::of(&batch.records[1], &v, &v_old);
        let ratios = host.ratios();
        let diffusion = batch.records.iter().map(|record| record.step.std_dev);
        let weight = host.step.std_dev / mean(diffusion);
        // Two rows are gated, more than their share of the iteration.
        let pulls: Vec<f64> = (host.drift.iter().zip(GATES))
            .map(|(drift, gate)| drift / (2.0 * host.step.std_dev.powi(2)) * f64::from(gate))
            .collect();
        let pull = mean(pulls.iter().copied());
        let terms = check(found, weight * clipped(&ratios, 1e-3) + 0.3 * pull, &ratios);
        let logged = terms.iter().find(|(name, _)| *name == "kl");
        let logged = self::host(&logged.expect("it is logged").1);
        for (found, expected) in logged.iter().zip(&pulls) {
            assert!(
                (found - expected).abs() <= 2e-3 * expected,
                "{logged:?} and {pulls:?}"
            );
        }
        assert_eq!(logged.len(), 4);
    }
}

/// Rewards that `gardo` needs: one that is trained, one that judges, and what says how unlike the others an image is.
pub const OF_GARDO: &str = "rewards=[{ kind = \"digit-classifier\", weights = \"built-in\" }, \
     { kind = \"jpeg-compressibility\", weight = 0 }, { kind = \"diversity-in-group\", side = 3, weight = 0 }]";

#[test]
fn gardo_pulls_back_the_gated_images_alone() {
    let registries = registries();
    let config = config(&[
        "algorithm={ kind = \"gardo\", clip_range = [-1e-3, 1e-3], judges = [\"jpeg-compressibility\"], kl_beta = 0.3, \
         step_weights = \"diffusion\" }",
        OF_GARDO,
    ]);
    with_trainer(&config, &environment(&registries), CheckGardo);
}

/// DPPO with this measure of the divergence; every row is beyond the threshold.
struct CheckDppo(&'static str);

impl Visit for CheckDppo {
    type Output = ();

    fn visit<A: Algorithm + 'static>(self, trainer: Trainer<A>) {
        let mut trainer = trainer.set_up().expect("no accelerator refuses");
        let (found, batch, v, v_old) = loss_at(&mut trainer, LossPoint::Recorded(1));
        let host = HostStep::of(&batch.records[1], &v, &v_old);
        let ratios = host.ratios();
        let divergence: Vec<f64> = match self.0 {
            "mean" => (host.drift.iter())
                .map(|d| d / (2.0 * host.step.noise.powi(2)))
                .collect(),
            "mean-unscaled" => host.drift.iter().map(|d| d / 2.0).collect(),
            _ => squared(&v, &v_old),
        };
        let is_dropped = |i: usize| {
            let (r, a) = (ratios[i], ADVANTAGES[i]);
            divergence[i] >= 1e-6 && (r > 1.0 && a > 0.0 || r < 1.0 && a < 0.0)
        };
        let dropped: Vec<bool> = (0..4).map(is_dropped).collect();
        assert!(
            dropped.contains(&true) && dropped.contains(&false),
            "the case must exercise the mask: {ratios:?}"
        );
        let row = |i: usize| {
            if dropped[i] {
                0.0
            } else {
                -f64::from(ADVANTAGES[i]) * ratios[i]
            }
        };
        let terms = check(found, mean((0..4).map(row)), &ratios);
        let (_, logged) = terms
            .iter()
            .find(|(name, _)| *name == "divergence")
            .expect("it is logged");
        for (found, expected) in self::host(logged).iter().zip(&divergence) {
            assert!((found / expected - 1.0).abs() < 2e-3, "{found} and {expected}");
        }
    }
}

pub trait IntoPlain {
    fn into_dispatch_plain(self) -> RawTensor;
}

impl IntoPlain for Tensor<1> {
    fn into_dispatch_plain(self) -> RawTensor {
        flow_core::tensors::plain(&self.into_dispatch())
    }
}

#[test]
fn grpo_with_a_pull_on_means_follows_its_formula() {
    let registries = registries();
    let config = config(&[
        "algorithm={ kind = \"grpo\", clip_range = [-1e-3, 1e-3], kl = { kind = \"mean\", beta = 0.3 } }",
    ]);
    with_trainer(&config, &environment(&registries), CheckClipped(Clipped::Grpo));
}

#[test]
fn grpo_guard_follows_its_formula() {
    let registries = registries();
    let config = config(&[
        "algorithm={ kind = \"grpo-guard\", clip_range = [-1e-3, 1e-3], kl = { kind = \"mean\", beta = 0.3 } }",
    ]);
    with_trainer(&config, &environment(&registries), CheckClipped(Clipped::Guard));
}

#[test]
fn grpo_with_a_divergence_and_weights_of_steps_follows_its_formula() {
    let registries = registries();
    let config = config(&[
        "algorithm={ kind = \"grpo\", clip_range = [-1e-3, 1e-3], step_weights = \"noise\", \
         kl = { kind = \"divergence\", beta = 0.3 } }",
    ]);
    with_trainer(
        &config,
        &environment(&registries),
        CheckClipped(Clipped::Weighted),
    );
}

#[test]
fn dppo_follows_its_formula_with_every_measure_of_the_divergence() {
    let registries = registries();
    for mask in ["mean", "mean-unscaled", "velocity"] {
        let config = config(&[&format!("algorithm={{ kind = \"dppo\", mask = \"{mask}\" }}")]);
        with_trainer(&config, &environment(&registries), CheckDppo(mask));
    }
}

/// The scale of a reference that has a guidance of its own.
const OF_REFERENCE: f64 = 2.5;

struct CheckGuidedReference;

impl Visit for CheckGuidedReference {
    type Output = ();

    fn visit<A: Algorithm + 'static>(self, trainer: Trainer<A>) {
        let mut trainer = trainer.set_up().expect("no accelerator refuses");
        let sampled = trainer.state.weights.current.clone();
        let (found, batch, v, v_old) = loss_at(&mut trainer, LossPoint::Recorded(1));
        let policy = &trainer.sampler.policy;
        assert!(!policy.is_guided(), "rollouts have no second branch");
        // The empty branch by itself, as if it were a prompt.
        let empty = batch.conditions.unconditional.clone();
        let empty = Conditions {
            conditional: empty.expect("conditions have what the reference is told"),
            unconditional: None,
            keys: None,
        };
        let record = &batch.records[1];
        let pass = InferencePass::new(&sampled, trainer.training_plan().clone());
        let exec = pass.exec(policy.call(SITE, &batch.samples));
        let sigma = trainer
            .sampler
            .device
            .tensor(vec![record.step.sigma as f32; 4], [4]);
        let x = Tensor::from_dispatch(record.x.clone());
        let v_empty = host(&policy.velocity(&exec, x, sigma, &empty).into_dispatch());
        let guided = |(conditional, empty): (&f64, &f64)| empty + OF_REFERENCE * (conditional - empty);
        let v_ref: Vec<f64> = v_old.iter().zip(&v_empty).map(guided).collect();
        let (expected, plain) = (
            mean(squared(&v, &v_ref).into_iter()),
            mean(squared(&v, &v_old).into_iter()),
        );
        assert!((expected / plain - 1.0).abs() > 1e-2, "{expected} and {plain}");
        let (_, logged) = found
            .terms
            .iter()
            .find(|(name, _)| *name == "kl")
            .expect("it is logged");
        let kl = self::host(logged)[0];
        assert!((kl / expected - 1.0).abs() < 2e-3, "{kl} and {expected}");
    }
}

#[test]
fn a_reference_is_guided_by_its_own_scale_where_rollouts_have_none() {
    let registries = registries();
    for kind in ["grpo", "grpo-guard", "dppo"] {
        let config = config(&[&format!(
            "algorithm={{ kind = \"{kind}\", kl = {{ kind = \"velocity\", beta = 0.3, guidance_scale = {OF_REFERENCE} }} }}"
        )]);
        with_trainer(&config, &environment(&registries), CheckGuidedReference);
    }
}
