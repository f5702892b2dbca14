//! Losses of decoupled algorithms against host computations in f64: at noised images, without the steps of the rollout.

use crate::losses::{ADVANTAGES, IntoPlain, clipped, host, loss_at, mean, rows, squared};
use crate::support::{Visit, config, environment, registries, with_trainer};
use flow_core::rng::Purpose;
use flow_trainer::Trainer;
use flow_trainer::algorithm::{Algorithm, LossPoint};
use flow_trainer::rollout::{Sampler, Trajectories};

struct CheckNft;

impl Visit for CheckNft {
    type Output = ();

    fn visit<A: Algorithm + 'static>(self, trainer: Trainer<A>) {
        let mut trainer = trainer.set_up().expect("no accelerator refuses");
        let sigma = 0.6;
        let (found, batch, v, v_old) = loss_at(&mut trainer, LossPoint::Time { sigma, draw: 3 });
        let noise = trainer
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
    with_trainer(&config, &environment(&registries), CheckNft);
}

/// `mean((v - (noise - clean))²)` per row.
fn matching_error(sampler: &Sampler, batch: &Trajectories, v: &[f64]) -> Vec<f64> {
    let noise = host(&sampler.noise(Purpose::ForwardNoise, &batch.samples, 3, v.len() / 4));
    let clean = host(&batch.clean);
    let target: Vec<f64> = noise.iter().zip(&clean).map(|(e, x)| e - x).collect();
    squared(v, &target)
}

struct CheckAwm(&'static str);

impl Visit for CheckAwm {
    type Output = ();

    fn visit<A: Algorithm + 'static>(self, trainer: Trainer<A>) {
        let mut trainer = trainer.set_up().expect("no accelerator refuses");
        let sigma: f64 = 0.6;
        let (found, batch, v, v_old) = loss_at(&mut trainer, LossPoint::Time { sigma, draw: 3 });
        let log_prob = |error: f64| match self.0 {
            "uniform" => -error,
            "sigma-squared" => -sigma * sigma * error,
            _ => -((error + 1e-10).powf(0.25) - 1e-10_f64.powf(0.25)) * sigma / 0.25,
        };
        let of = |v: &[f64]| matching_error(&trainer.sampler, &batch, v);
        let pairs = of(&v).into_iter().zip(of(&v_old));
        let ratios: Vec<f64> = pairs
            .map(|(new, old)| (log_prob(new) - log_prob(old)).exp())
            .collect();
        assert!(
            ratios.iter().all(|ratio| (ratio - 1.0).abs() > 1e-3),
            "{ratios:?}"
        );
        let pull = mean(v.iter().zip(&v_old).map(|(a, b)| (a - b).powi(2)));
        let expected = clipped(&ratios, 1e-3) + (0.02 + 0.1) * pull;
        let loss = host(&found.loss.into_dispatch_plain())[0];
        assert!(
            (loss - expected).abs() < 2e-5 * expected.abs().max(1.0),
            "{}: {loss} and {expected}",
            self.0
        );
    }
}

#[test]
fn awm_follows_its_formula() {
    let registries = registries();
    for weighting in ["uniform", "sigma-squared", "generalised-huber"] {
        let config = config(&[
            &format!(
                "algorithm={{ kind = \"awm\", weighting = \"{weighting}\", clip_range = [-1e-3, 1e-3], kl_beta = 0.02, \
                 old_policy_beta = 0.1 }}"
            ),
            "scheduler.dynamics=\"ode\"",
        ]);
        with_trainer(&config, &environment(&registries), CheckAwm(weighting));
    }
}

struct CheckDpo;

impl Visit for CheckDpo {
    type Output = ();

    fn visit<A: Algorithm + 'static>(self, trainer: Trainer<A>) {
        let mut trainer = trainer.set_up().expect("no accelerator refuses");
        let (found, batch, v, v_ref) = loss_at(&mut trainer, LossPoint::Time { sigma: 0.6, draw: 3 });
        let of = |v: &[f64]| matching_error(&trainer.sampler, &batch, v);
        let pairs = of(&v).into_iter().zip(of(&v_ref));
        let excess: Vec<f64> = pairs.map(|(ours, theirs)| ours - theirs).collect();
        // The better images of two pairs stand before the worse ones.
        let expected = mean((0..2).map(|pair| {
            let z = -(3.0 / 2.0) * (excess[pair] - excess[pair + 2]);
            (-z).exp().ln_1p()
        }));
        let loss = host(&found.loss.into_dispatch_plain())[0];
        assert!((loss / expected - 1.0).abs() < 2e-5, "{loss} and {expected}");
    }
}

#[test]
fn dpo_follows_its_formula() {
    let registries = registries();
    let config = config(&[
        "algorithm={ kind = \"dpo\", beta = 3.0 }",
        "scheduler.dynamics=\"ode\"",
    ]);
    with_trainer(&config, &environment(&registries), CheckDpo);
}
