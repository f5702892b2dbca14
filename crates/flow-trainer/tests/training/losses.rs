//! Losses against host computations in f64, from the tensors of a real rollout.

use crate::support::{Visit, config, environment, registries, with_parts};
use burn::tensor::Tensor;
use flow_accel::Acceleration;
use flow_core::rng::Purpose;
use flow_core::{InferencePass, RawTensor, Stage, TrainingPass, cpu};
use flow_trainer::algorithm::{Algorithm, LossContext, Position, UnitLoss};
use flow_trainer::policy::CallSite;
use flow_trainer::rollout::{NoiseSource, SampleRequest, Trajectories};
use flow_trainer::session::Parts;

const ADVANTAGES: [f32; 4] = [1.5, -0.7, 0.0, 9.0];
const SITE: CallSite = CallSite {
    stage: Stage::Rollout,
    iteration: 0,
    step: 0,
    stochastic: false,
    sigma: None,
    steps: 4,
};

fn host(values: &RawTensor) -> Vec<f64> {
    cpu::to_host(values).into_iter().map(f64::from).collect()
}

/// Rolls out four samples, then takes the loss after the weights have moved, so that ratios are not 1.
fn loss_at<A: Algorithm>(
    parts: &mut Parts<A, Acceleration>,
    position: Position,
) -> (UnitLoss, Trajectories, Vec<f64>, Vec<f64>) {
    let samples = [10, 11, 12, 13];
    let prompts = parts.prompts.clone();
    let conditions = parts.conditioner.conditions(prompts.iter().take(4));
    let steps = parts.schedule.steps_for(0);
    let sampled = parts.state.weights.current.clone();
    let rollout = InferencePass::new(&sampled, parts.training_plan().clone());
    let request = SampleRequest {
        site: SITE,
        source: NoiseSource::Rollout,
        samples: &samples,
        starts: &samples,
        conditions,
        steps: &steps,
    };
    let batch = parts.sampler.run(&rollout, request, |_| {});
    crate::support::scramble(&mut parts.state.weights.current, 77);

    let moved = &parts.state.weights.current;
    let trained: Vec<bool> = moved
        .layout()
        .specs()
        .iter()
        .map(|s| s.kind == flow_core::ParamKind::Base)
        .collect();
    let pass = TrainingPass::new(moved, parts.training_plan().clone(), trained.into());
    let reference = InferencePass::new(&sampled, parts.training_plan().clone());
    let values = parts.sampler.policy.model.spec().latent.values();
    let noise = parts.sampler.noise(Purpose::ForwardNoise, &samples, 3, values);
    let context = LossContext {
        pass: &pass,
        sampling: &reference,
        reference: Some(&reference),
        policy: &parts.sampler.policy,
        kernels: &*parts.training_plan().kernels,
        device: &parts.sampler.device,
        batch: &batch,
        advantages: parts.sampler.device.tensor(ADVANTAGES.to_vec(), [4]),
        noise: Some(noise.clone()),
        site: SITE,
    };
    let loss = parts.algorithm.loss(&context, position);

    // Velocities of the moved and of the sampling weights at the loss's own input, for the host.
    let (x, sigma) = match position {
        Position::Recorded(index) => (host(&batch.records[index].x), batch.records[index].step.sigma),
        Position::Time { sigma, .. } => {
            let mix = |(clean, noise): (&f64, &f64)| (1.0 - sigma) * clean + sigma * noise;
            (
                host(&batch.clean).iter().zip(&host(&noise)).map(mix).collect(),
                sigma,
            )
        }
    };
    let velocity = |weights| {
        let exec = InferencePass::new(weights, parts.training_plan().clone())
            .exec(parts.sampler.policy.call(SITE, &samples));
        let device = &parts.sampler.device;
        let x: Tensor<2> = device.tensor(x.iter().map(|v| *v as f32).collect(), [4, values]);
        let sigma = device.tensor(vec![sigma as f32; 4], [4]);
        host(
            &parts
                .sampler
                .policy
                .velocity(&exec, x, sigma, &batch.conditions)
                .into_dispatch(),
        )
    };
    let (v, v_old) = (velocity(moved), velocity(&sampled));
    (loss, batch, v, v_old)
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

fn rows(values: &[f64]) -> impl ExactSizeIterator<Item = &[f64]> {
    values.chunks_exact(values.len() / 4)
}

struct CheckClipped {
    guard: bool,
}

impl Visit for CheckClipped {
    type Output = ();

    fn visit<A: Algorithm + 'static>(self, parts: Parts<A>) {
        let mut parts = parts.set_up().expect("no accelerator refuses");
        let (found, batch, v, v_old) = loss_at(&mut parts, Position::Recorded(1));
        let record = &batch.records[1];
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
        let (mu, mu_old) = (mean_of(&v), mean_of(&v_old));
        let next = host(&record.x_next);
        let squared = |a: &[f64], b: &[f64]| -> Vec<f64> {
            rows(a)
                .zip(rows(b))
                .map(|(a, b)| mean(a.iter().zip(b).map(|(a, b)| (a - b).powi(2))))
                .collect()
        };
        let log_prob: Vec<f64> = squared(&next, &mu).iter().map(|e| offset - scale * e).collect();
        let old = host(&record.log_prob);
        let drift = squared(&mu, &mu_old);
        let q = step.guard_scale();
        let ratios: Vec<f64> = (0..4)
            .map(|i| match self.guard {
                false => (log_prob[i] - old[i]).exp(),
                true => ((log_prob[i] - old[i]) * q + drift[i] / (2.0 * q)).exp(),
            })
            .collect();
        let clipped = |(ratio, a): (&f64, &f32)| {
            let a = f64::from(*a);
            (-a * ratio).max(-a * ratio.clamp(1.0 - 1e-3, 1.0 + 1e-3))
        };
        let weight = if self.guard { 1.0 / -step.dt } else { 1.0 };
        let policy = weight * mean(ratios.iter().zip(&ADVANTAGES).map(clipped));
        let kl = mean(squared(&mu, &mu_old).into_iter());
        let expected = policy + 0.3 * kl;
        let loss = host(&found.loss.into_dispatch_plain())[0];
        assert!(
            (loss - expected).abs() < 2e-4 * expected.abs().max(1.0),
            "{loss} and {expected}"
        );
        let found_ratios = host(&found.replayed.expect("a coupled algorithm has ratios").ratio);
        for (found, expected) in found_ratios.iter().zip(&ratios) {
            assert!((found / expected - 1.0).abs() < 2e-4, "{found} and {expected}");
        }
        assert!(
            ratios.iter().all(|ratio| (ratio - 1.0).abs() > 1e-3),
            "the case must exercise the clip: {ratios:?}"
        );
    }
}

trait IntoPlain {
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
    with_parts(&config, &environment(&registries), CheckClipped { guard: false });
}

#[test]
fn grpo_guard_follows_its_formula() {
    let registries = registries();
    let config = config(&[
        "algorithm={ kind = \"grpo-guard\", clip_range = [-1e-3, 1e-3], kl = { kind = \"mean\", beta = 0.3 } }",
    ]);
    with_parts(&config, &environment(&registries), CheckClipped { guard: true });
}

struct CheckNft;

impl Visit for CheckNft {
    type Output = ();

    fn visit<A: Algorithm + 'static>(self, parts: Parts<A>) {
        let mut parts = parts.set_up().expect("no accelerator refuses");
        let sigma = 0.6;
        let (found, batch, v, v_old) = loss_at(&mut parts, Position::Time { sigma, draw: 3 });
        let noise = parts
            .sampler
            .noise(Purpose::ForwardNoise, &batch.samples, 3, v.len() / 4);
        let (clean, noise) = (host(&batch.clean), host(&noise));
        let (b, clip) = (0.8, 5.0);
        let mut per_row = Vec::new();
        for (row, advantage) in ADVANTAGES.iter().enumerate() {
            let of = |values: &[f64]| rows(values).nth(row).expect("four rows").to_vec();
            let (clean, noise, v, v_old) = (of(&clean), of(&noise), of(&v), of(&v_old));
            let error = |policy: &dyn Fn(f64, f64) -> f64| {
                let errors: Vec<f64> = (0..v.len())
                    .map(|i| {
                        (1.0 - sigma) * clean[i] + sigma * noise[i]
                            - sigma * policy(v[i], v_old[i])
                            - clean[i]
                    })
                    .collect();
                let weight = mean(errors.iter().map(|e| e.abs())).max(1e-5);
                mean(errors.iter().map(|e| e * e)) / weight
            };
            let positive = error(&|v, old| b * v + (1.0 - b) * old);
            let negative = error(&|v, old| (1.0 + b) * old - b * v);
            let rho = (f64::from(*advantage) / clip / 2.0 + 0.5).clamp(0.0, 1.0);
            per_row.push(clip * (rho * positive + (1.0 - rho) * negative) / b);
        }
        let kl = mean(v.iter().zip(&v_old).map(|(a, b)| (a - b).powi(2)));
        let expected = mean(per_row.into_iter()) + 0.02 * kl;
        let loss = host(&found.loss.into_dispatch_plain())[0];
        assert!((loss / expected - 1.0).abs() < 2e-5, "{loss} and {expected}");
        assert!(found.replayed.is_none());
    }
}

#[test]
fn nft_follows_its_formula() {
    let registries = registries();
    let config = config(&[
        "algorithm={ kind = \"nft\", beta = 0.8, kl_beta = 0.02 }",
        "scheduler.dynamics=\"ode\"",
    ]);
    with_parts(&config, &environment(&registries), CheckNft);
}
