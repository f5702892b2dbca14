//! Losses that weigh a row by others, and their gradients, against host computations in f64; and runs of such algorithms.

use crate::loss_pass::{expect_gradients, loss_in};
use crate::losses::{ADVANTAGES, GROUPS, SITE, host, in_context, mean, rows, squared};
use crate::support::{RunTo, Visit, config, environment, registries, with_trainer};
use burn::tensor::Tensor;
use flow_core::tensors::plain;
use flow_core::{CallContext, Exec, TrainingPass};
use flow_trainer::Trainer;
use flow_trainer::algorithm::{Algorithm, LossContext, LossPoint};
use flow_trainer::policy::Policy;

pub const SIGMA: f64 = 0.6;
pub const POSITION: LossPoint = LossPoint::Time {
    sigma: SIGMA,
    draw: 3,
};

/// The point on the path where a loss is taken, and what the velocity there should be; `[4, N]`.
pub struct Point {
    x: Tensor<2>,
    target: Tensor<2>,
}

impl Point {
    pub fn of(context: &LossContext<'_, '_>) -> Self {
        let noise = Tensor::<2>::from_dispatch(context.noise.clone().expect("it was drawn"));
        let clean = Tensor::<2>::from_dispatch(context.batch.clean.clone());
        Self {
            x: clean.clone() * (1.0 - SIGMA) + noise.clone() * SIGMA,
            target: noise - clean,
        }
    }

    pub fn velocity<'w>(
        &self,
        context: &LossContext<'_, '_>,
        guidance_scale: f32,
        open: impl FnOnce(CallContext) -> Exec<'w>,
    ) -> Tensor<2> {
        let policy = Policy {
            guidance_scale,
            ..context.policy.clone()
        };
        let exec = open(policy.call(SITE, &context.batch.samples));
        let sigma = context.device.tensor(vec![SIGMA as f32; 4], [4]);
        policy.velocity(&exec, self.x.clone(), sigma, &context.batch.conditions)
    }

    /// `v - target` in f64, by row.
    fn differences(&self, v: Tensor<2>) -> Vec<Vec<f64>> {
        let (v, target) = (
            host(&v.into_dispatch()),
            host(&self.target.clone().into_dispatch()),
        );
        let pairs = rows(&v).zip(rows(&target));
        pairs
            .map(|(v, target)| v.iter().zip(target).map(|(v, target)| v - target).collect())
            .collect()
    }
}

/// `mean(a²)` per row.
fn squares(differences: &[Vec<f64>]) -> Vec<f64> {
    (differences.iter())
        .map(|row| mean(row.iter().map(|value| value * value)))
        .collect()
}

/// `mean((a - b)²)` per row of tensors, with the gradient in `a`.
fn distance(a: Tensor<2>, b: Tensor<2>) -> Tensor<1> {
    let difference = a - Tensor::from_dispatch(plain(&b.into_dispatch()));
    (difference.clone() * difference).mean_dim(1).squeeze_dim(1)
}

/// What of an algorithm's loss a host computation expects: its value, and how its gradient is put together of the rows'.
struct Expected {
    loss: f64,
    /// Factor of each row's `mean((v - target)²)`.
    errors: Vec<f64>,
    /// Factor of each row's `mean((v - v_ref)²)`.
    pulls: Vec<f64>,
    /// Guidance of the model that learns, and of the reference.
    guidance: [f32; 2],
}

/// That a loss and its gradients are those expected; the latter of the rows' errors and pulls with constant factors.
fn check(
    algorithm: &impl Algorithm,
    context: &LossContext<'_, '_>,
    [pass, again]: [TrainingPass<'_>; 2],
    point: &Point,
    expected: &Expected,
) {
    let (loss, gradients) = loss_in(pass, context, |in_pass| algorithm.loss(in_pass, POSITION));
    assert!(
        (loss - expected.loss).abs() < 5e-5 * expected.loss.abs().max(1e-2),
        "{loss} and {}",
        expected.loss
    );
    let [ours, theirs] = expected.guidance;
    let v = point.velocity(context, ours, |call| again.exec(call));
    let reference = context.reference.expect("it is there");
    let v_ref = point.velocity(context, theirs, |call| reference.exec(call));
    let factors = |values: &[f64]| -> Tensor<1> {
        let values = values.iter().map(|value| *value as f32).collect();
        context.device.tensor(values, [4])
    };
    let errors = distance(v.clone(), point.target.clone()) * factors(&expected.errors);
    let pulls = distance(v, v_ref) * factors(&expected.pulls);
    let surrogate = (errors + pulls).sum_dim(0);
    expect_gradients(&gradients, &again.gradients(&surrogate), (1e-6, 1e-3));
}

/// DGPO against the reference, or against the slower copy.
struct CheckDgpo {
    against_old: bool,
    clips: bool,
}

impl Visit for CheckDgpo {
    type Output = ();

    fn visit<A: Algorithm + 'static>(self, trainer: Trainer<A>) {
        let mut trainer = trainer.set_up().expect("no accelerator refuses");
        in_context(&mut trainer, POSITION, |algorithm, context, again| {
            let point = Point::of(context);
            let reference = context.reference.expect("it is there");
            let old = context.old.expect("it is there");
            let error = |v| squares(&point.differences(v));
            let d = error(point.velocity(context, 1.0, |call| context.current.exec(call)));
            let v_ref = point.velocity(context, 2.0, |call| reference.exec(call));
            let d_ref = error(v_ref.clone());
            let d_old = error(point.velocity(context, 1.0, |call| old.exec(call)));
            let others = if self.against_old { &d_old } else { &d_ref };
            let a: Vec<f64> = ADVANTAGES.iter().map(|a| f64::from(*a)).collect();
            let z: Vec<f64> = (a.iter().zip(d.iter().zip(others)))
                .map(|(a, (d, other))| a * 0.7 * (d - other) / 2.0)
                .collect();
            let weight = |row: usize| {
                let z: f64 = (0..4).filter(|i| GROUPS[*i] == GROUPS[row]).map(|i| z[i]).sum();
                1.0 / (1.0 + (-z).exp())
            };
            let is_held = |row: usize| {
                let rho = (d_old[row] - d[row]).exp();
                self.clips && if a[row] > 0.0 { rho > 1.001 } else { rho < 0.999 }
            };
            let held: Vec<bool> = (0..4).map(is_held).collect();
            assert_eq!(held.contains(&true), self.clips, "{d:?} and {d_old:?}");
            let v = host(
                &point
                    .velocity(context, 1.0, |call| context.current.exec(call))
                    .into_dispatch(),
            );
            let pull = squared(&v, &host(&v_ref.into_dispatch()));
            let terms: Vec<f64> = (0..4).map(|row| weight(row) * a[row] * d[row]).collect();
            let expected = Expected {
                loss: mean(terms.into_iter()) + 0.2 * mean(pull.into_iter()),
                errors: (0..4)
                    .map(|row| {
                        if held[row] {
                            0.0
                        } else {
                            weight(row) * a[row] / 4.0
                        }
                    })
                    .collect(),
                pulls: vec![0.2 / 4.0; 4],
                guidance: [1.0, 2.0],
            };
            check(algorithm, context, again, &point, &expected);
        });
    }
}

#[test]
fn dgpo_follows_its_formula_with_a_guided_reference_and_rows_that_are_held() {
    let registries = registries();
    for (against_old, clips) in [(false, false), (false, true), (true, true)] {
        let config = config(&[
            &format!(
                "algorithm={{ kind = \"dgpo\", beta = 0.7, kl_beta = 0.2, reference_guidance = 2.0, clip_range = [-1e-3, 1e-3], \
                 against_old = {against_old}, clip_error = {clips} }}"
            ),
            "scheduler.dynamics=\"ode\"",
            "optimizer.gradient_accumulation=2",
        ]);
        let check = CheckDgpo { against_old, clips };
        with_trainer(&config, &environment(&registries), check);
    }
}

/// CRD with these settings.
struct CheckCrd {
    bce: bool,
    normalise: bool,
    centre: &'static str,
    centre_weights: &'static str,
    adaptive: bool,
}

const BETA: f64 = 0.8;

impl CheckCrd {
    /// How much each row of a pool counts in its centre, leaning to `end`.
    fn weights(&self, end: f64, advantages: &[f64], rewards: &[f64]) -> Vec<f64> {
        let raw: Vec<f64> = match self.centre_weights {
            "uniform" => vec![1.0; rewards.len()],
            "softmax" => rewards.iter().map(|a| (end * a / 0.5).exp()).collect(),
            _ => (advantages.iter())
                .map(|a| if a * end > 0.0 { 1.0 } else { 0.0 })
                .collect(),
        };
        let sum: f64 = raw.iter().sum();
        (raw.iter())
            .map(|p| {
                if sum == 0.0 {
                    1.0 / raw.len() as f64
                } else {
                    p / sum
                }
            })
            .collect()
    }

    /// The losses of rows, and how they rise with their implicit rewards, for the centre that leans to `end`.
    fn rows(&self, end: f64, advantages: &[f64], implicit: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let reward = |a: &f64| (a / 10.0 + 0.5).clamp(0.0, 1.0);
        let rewards: Vec<f64> = advantages.iter().map(reward).collect();
        let (mut losses, mut slopes) = (vec![0.0; 4], vec![0.0; 4]);
        let pools = match self.centre {
            "group" => vec![0..2, 2..4],
            _ => std::iter::once(0..4).collect(),
        };
        for pool in pools {
            let p = self.weights(end, &advantages[pool.clone()], &rewards[pool.clone()]);
            let centre = |values: &[f64]| -> f64 {
                let values = values[pool.clone()].iter().zip(&p);
                values.map(|(value, p)| value * p).sum()
            };
            let (of_implicit, of_rewards) = (centre(implicit), centre(&rewards));
            for row in pool.clone() {
                let x = BETA * (implicit[row] - of_implicit);
                let target = rewards[row] - of_rewards;
                let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
                (losses[row], slopes[row]) = match self.bce {
                    true => {
                        let y = sigmoid(target);
                        let loss = -y * sigmoid(x).ln() - (1.0 - y) * sigmoid(-x).ln();
                        (loss, BETA * (sigmoid(x) - y))
                    }
                    false => ((x - target).powi(2), 2.0 * BETA * (x - target)),
                };
            }
        }
        (losses, slopes)
    }

    /// Mean absolute differences, by which errors are divided.
    fn sizes(&self, differences: &[Vec<f64>]) -> Vec<f64> {
        let size = |row: &Vec<f64>| match self.normalise {
            true => mean(row.iter().map(|value| value.abs())).max(1e-5),
            false => 1.0,
        };
        differences.iter().map(size).collect()
    }
}

impl Visit for CheckCrd {
    type Output = ();

    fn visit<A: Algorithm + 'static>(self, trainer: Trainer<A>) {
        let mut trainer = trainer.set_up().expect("no accelerator refuses");
        in_context(&mut trainer, POSITION, |algorithm, context, again| {
            let point = Point::of(context);
            let reference = context.reference.expect("it is there");
            // The rollout is guided, and the reference of the pull otherwise.
            let v = point.velocity(context, 1.5, |call| context.current.exec(call));
            let v_old = point.velocity(context, 1.5, |call| reference.exec(call));
            let v_ref = point.velocity(context, 3.0, |call| reference.exec(call));
            let (d, d_old) = (point.differences(v.clone()), point.differences(v_old));
            let (w, w_old) = (self.sizes(&d), self.sizes(&d_old));
            let (e, e_old) = (squares(&d), squares(&d_old));
            let implicit = (0..4).map(|row| e_old[row] / w_old[row] - e[row] / w[row]);
            let implicit: Vec<f64> = implicit.collect();
            let a: Vec<f64> = ADVANTAGES.iter().map(|a| f64::from(*a)).collect();
            let ends = match self.centre_weights {
                "uniform" => vec![1.0],
                _ => vec![1.0, -1.0],
            };
            let factor = 5.0 / BETA / ends.len() as f64;
            let (mut loss, mut slopes) = (0.0, vec![0.0; 4]);
            for end in ends {
                let (losses, rise) = self.rows(end, &a, &implicit);
                loss += factor * mean(losses.into_iter());
                slopes
                    .iter_mut()
                    .zip(rise)
                    .for_each(|(sum, rise)| *sum += factor * rise / 4.0);
            }
            let least = 1e-4 / 0.2;
            let share = |row: usize| match self.adaptive {
                true => least + (a[row] / 10.0 + 0.5).clamp(0.0, 1.0) * (1.0 - least),
                false => 1.0,
            };
            let distances = squared(&host(&v.into_dispatch()), &host(&v_ref.into_dispatch()));
            let expected = Expected {
                loss: loss + mean((0..4).map(|row| 0.2 * share(row) * distances[row])),
                errors: (0..4).map(|row| -slopes[row] / w[row]).collect(),
                pulls: (0..4).map(|row| 0.2 * share(row) / 4.0).collect(),
                guidance: [1.5, 3.0],
            };
            check(algorithm, context, again, &point, &expected);
        });
    }
}

#[test]
fn crd_follows_its_formula_with_every_loss_centre_and_baseline() {
    let registries = registries();
    for (bce, baseline, normalise, centre, centre_weights, adaptive) in [
        (false, "old", true, "step", "uniform", true),
        (false, "reference", false, "group", "uniform", false),
        (false, "old", true, "step", "signs", true),
        (true, "old", true, "group", "softmax", true),
        (true, "old", false, "step", "uniform", true),
    ] {
        let loss = if bce { "bce" } else { "mse" };
        let config = config(&[
            &format!(
                "algorithm={{ kind = \"crd\", beta = {BETA}, loss = \"{loss}\", baseline = \"{baseline}\", \
                 normalise_errors = {normalise}, centre = \"{centre}\", centre_weights = \"{centre_weights}\", \
                 centre_temperature = 0.5, kl_beta = 0.2, adaptive_kl = {adaptive}, reference_guidance = 3.0 }}"
            ),
            "scheduler.dynamics=\"ode\"",
            "sampling.guidance_scale=1.5",
            "optimizer.gradient_accumulation=2",
        ]);
        let check = CheckCrd {
            bce,
            normalise,
            centre,
            centre_weights,
            adaptive,
        };
        with_trainer(&config, &environment(&registries), check);
    }
}

#[test]
fn the_implicit_reward_of_crd_is_zero_until_the_weights_move() {
    let overrides = [
        "algorithm={ kind = \"crd\" }",
        "optimizer.gradient_accumulation=2",
    ];
    let found = logged(&overrides, 2, &["implicit_reward"]).remove(0);
    assert!(found[0] == 0.0 && found[1] != 0.0, "{found:?}");
}

#[test]
fn what_crd_is_centred_on_does_not_depend_on_the_micro_batches() {
    let of = |micro_batch: usize| {
        let algorithm = "algorithm={ kind = \"crd\", centre_weights = \"softmax\", inner_epochs = 2, \
                         train_timesteps = { count = 2 } }";
        let micro_batch = format!("sampling.micro_batch={micro_batch}");
        let overrides = [algorithm, &micro_batch, "optimizer.gradient_accumulation=0"];
        logged(&overrides, 2, &["implicit_reward", "policy_loss"])
    };
    let whole = of(12);
    for micro_batch in [6, 1] {
        for (found, expected) in of(micro_batch).iter().flatten().zip(whole.iter().flatten()) {
            assert!(
                (found - expected).abs() < 1e-4,
                "{micro_batch}: {found} and {expected}"
            );
        }
    }
}

/// A number that each iteration of a run logged.
fn logged(overrides: &[&str], until: u64, names: &[&str]) -> Vec<Vec<f64>> {
    let registries = registries();
    let root = tempfile::tempdir().expect("a temporary directory");
    let run = RunTo {
        root: root.path(),
        resume: false,
        until,
    };
    let left = with_trainer(&config(overrides), &environment(&registries), run);
    let metrics = left.unwrap_or_else(|error| panic!("{error}")).metrics;
    let records: Vec<serde_json::Value> = (metrics.lines())
        .map(|line| serde_json::from_str(line).expect("a record"))
        .collect();
    let of = |name: &&str| {
        let values = records.iter().filter_map(|record| record.get(name)?.as_f64());
        values.collect()
    };
    names.iter().map(of).collect()
}

#[test]
fn dgpo_begins_with_a_weight_of_one_half_where_policy_and_reference_are_the_same() {
    let overrides = [
        "algorithm={ kind = \"dgpo\" }",
        "optimizer.gradient_accumulation=2",
    ];
    let found = logged(&overrides, 2, &["group_weight", "clip_fraction"]);
    assert_eq!((found[0][0], found[1][0]), (0.5, 0.0));
    assert!(found[0][1] != 0.5, "{found:?}");
}

#[test]
fn what_dgpo_makes_of_a_group_does_not_depend_on_the_micro_batches_that_it_lies_in() {
    let of = |micro_batch: usize| {
        let overrides = [
            "algorithm={ kind = \"dgpo\", beta = 5000.0, inner_epochs = 2, train_timesteps = { count = 2 } }"
                .to_owned(),
            format!("sampling.micro_batch={micro_batch}"),
            "optimizer.gradient_accumulation=0".to_owned(),
        ];
        let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
        logged(&overrides, 2, &["group_weight", "policy_loss", "clip_fraction"])
    };
    let whole = of(12);
    assert!(
        whole[0].iter().any(|weight| (weight - 0.5).abs() > 1e-3),
        "the weights must have moved: {whole:?}"
    );
    for micro_batch in [4, 3, 1] {
        for (found, expected) in of(micro_batch).iter().flatten().zip(whole.iter().flatten()) {
            assert!(
                (found - expected).abs() < 1e-4,
                "{micro_batch}: {found} and {expected}"
            );
        }
    }
}

#[test]
fn an_optimizer_step_of_dgpo_that_has_no_whole_groups_is_refused() {
    let overrides = ["algorithm.kind=\"dgpo\"".to_owned()];
    let report = test_catalog::parse_named("test.toml", crate::support::BASE, &overrides);
    let text = report.expect_err("6 images are no groups of 4").to_string();
    assert!(
        text.contains("6 images, which are no whole groups of 4"),
        "{text}"
    );
}
