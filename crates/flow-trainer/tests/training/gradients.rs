//! Gradients of losses at recorded steps and at noised images, against slopes that the host computes in f64 from the formulas: how a loss
//! rises with each value of the velocity.

use crate::distillation::velocity;
use crate::fake_score::{each, row_means};
use crate::group_losses::{POSITION as NOISED, Point, SIGMA};
use crate::loss_pass::{expect_gradients, loss_in};
use crate::losses::{ADVANTAGES, GATES, HostStep, OF_GARDO, host, in_context, squared};
use crate::support::{Visit, config, environment, registries, with_trainer};
use burn::tensor::Tensor;
use flow_core::TrainingPass;
use flow_trainer::Trainer;
use flow_trainer::algorithm::{Algorithm, LossContext, LossPoint, PointLoss};
use flow_trainer::rollout::StepRecord;
use flow_trainer::scheduler::StepCoefficients;

const INDEX: usize = 2;
const RECORDED: LossPoint = LossPoint::Recorded(INDEX);
const CLIP: f64 = 1e-3;

fn advantage(row: usize) -> f64 {
    f64::from(ADVANTAGES[row])
}

/// How `max(-A r, -A clamp(r, 1 ± clip))` of a row rises with `r`.
fn rise(ratio: f64, row: usize) -> f64 {
    let (unclipped, clipped) = (
        -advantage(row) * ratio,
        -advantage(row) * ratio.clamp(1.0 - CLIP, 1.0 + CLIP),
    );
    if unclipped >= clipped {
        -advantage(row)
    } else {
        0.0
    }
}

/// That the gradients of the loss in `pass` are those of the velocity of `again` times slopes. These are how the loss rises with each value,
/// times the number of values of a row.
fn compare<A: Algorithm>(
    (algorithm, position): (&A, LossPoint),
    context: &LossContext<'_, '_>,
    pass: TrainingPass<'_>,
    (velocity, again): (Tensor<2>, TrainingPass<'_>),
    slopes: &[f64],
) {
    assert!(slopes.iter().any(|slope| *slope != 0.0), "nothing is learned");
    let (_, gradients) = loss_in(pass, context, |inner| PointLoss {
        replayed: None,
        ..algorithm.loss(inner, position)
    });
    let slopes: Vec<f32> = slopes.iter().map(|slope| *slope as f32).collect();
    let values = slopes.len() / 4;
    let slopes: Tensor<2> = context.device.tensor(slopes, [4, values]);
    let by_row: Tensor<1> = (velocity * slopes).mean_dim(1).squeeze_dim(1);
    let wanted = again.gradients(&by_row.sum_dim(0));
    expect_gradients(&gradients, &wanted, (1e-6, 1e-3));
}

/// A recorded step on the host.
struct Step {
    step: StepCoefficients,
    /// `exp(log p - log p_old)` by row.
    ratios: Vec<f64>,
    /// `x_next - mu` and `mu - mu_old`, `[4, N]`.
    errors: Vec<f64>,
    drifts: Vec<f64>,
}

impl Step {
    fn of(record: &StepRecord, v: &[f64], v_old: &[f64]) -> Self {
        let step = record.step;
        let (x, next) = (host(&record.x), host(&record.x_next));
        let mean = |at: usize, v: &[f64]| step.mean_x * x[at] + step.mean_v * v[at];
        Self {
            step,
            ratios: HostStep::of(record, v, v_old).ratios(),
            errors: each(v.len(), |_, at| next[at] - mean(at, v)),
            drifts: each(v.len(), |_, at| mean(at, v) - mean(at, v_old)),
        }
    }

    /// `mean((mu - mu_old)²)` by row.
    fn drift_of_rows(&self) -> Vec<f64> {
        row_means(&each(self.drifts.len(), |_, at| self.drifts[at].powi(2)))
    }

    /// How the log-probability of a row rises with a value of the velocity, times their number.
    fn of_log_prob(&self, at: usize) -> f64 {
        let scale = self.step.log_prob.expect("a stochastic step").scale;
        2.0 * scale * self.errors[at] * self.step.mean_v
    }

    /// The same of its `mean((mu - mu_old)²)`.
    fn of_drift(&self, at: usize) -> f64 {
        2.0 * self.drifts[at] * self.step.mean_v
    }

    /// Slopes of a mean over rows, of what `of` gives by row and place.
    fn slopes(&self, of: impl Fn(usize, usize) -> f64) -> Vec<f64> {
        each(self.errors.len(), |row, at| of(row, at) / 4.0)
    }

    fn of_clipped_ratio(&self, row: usize, at: usize) -> f64 {
        rise(self.ratios[row], row) * self.ratios[row] * self.of_log_prob(at)
    }
}

struct CheckRecorded<'f>(&'f dyn Fn(&Step) -> Vec<f64>);

impl Visit for CheckRecorded<'_> {
    type Output = ();

    fn visit<A: Algorithm + 'static>(self, trainer: Trainer<A>) {
        let mut trainer = trainer.set_up().expect("no accelerator refuses");
        in_context(&mut trainer, RECORDED, |algorithm, context, [pass, again]| {
            let record = &context.batch.records[INDEX];
            let own = context.policy.guidance_scale;
            let v = velocity(context, record, own, |call| context.current.exec(call));
            let v_old = velocity(context, record, own, |call| context.sampling.exec(call));
            let step = Step::of(record, &host(&v.into_dispatch()), &host(&v_old.into_dispatch()));
            let slopes = (self.0)(&step);
            let v = velocity(context, record, own, |call| again.exec(call));
            compare((algorithm, RECORDED), context, pass, (v, again), &slopes);
        });
    }
}

fn check_recorded(overrides: &[&str], slopes: &dyn Fn(&Step) -> Vec<f64>) {
    let registries = registries();
    with_trainer(
        &config(overrides),
        &environment(&registries),
        CheckRecorded(slopes),
    );
}

#[test]
fn the_gradient_of_grpo_is_that_of_rows_that_the_clip_leaves_and_of_the_pull() {
    let of_ratio = |step: &Step| step.slopes(|row, at| step.of_clipped_ratio(row, at));
    check_recorded(
        &["algorithm={ kind = \"grpo\", clip_range = [-1e-3, 1e-3] }"],
        &of_ratio,
    );
    for kind in ["mean", "divergence"] {
        let pulled = |step: &Step| {
            let factor = match kind {
                "mean" => 1.0,
                _ => 0.5 / step.step.std_dev.powi(2),
            };
            step.slopes(|row, at| step.of_clipped_ratio(row, at) + 0.3 * factor * step.of_drift(at))
        };
        let algorithm = format!(
            "algorithm={{ kind = \"grpo\", clip_range = [-1e-3, 1e-3], kl = {{ kind = \"{kind}\", beta = 0.3 }} }}"
        );
        check_recorded(&[&algorithm], &pulled);
    }
}

#[test]
fn the_gradient_of_grpo_guard_is_that_of_the_centred_ratio_over_the_length_of_the_step() {
    for reweight in [true, false] {
        let slopes = |step: &Step| {
            let q = step.step.guard_scale();
            let drifts = step.drift_of_rows();
            let weight = if reweight { -1.0 / step.step.dt } else { 1.0 };
            step.slopes(|row, at| {
                let ratio = (step.ratios[row].ln() * q + drifts[row] / (2.0 * q)).exp();
                let rise = weight * rise(ratio, row) * ratio;
                rise * (q * step.of_log_prob(at) + step.of_drift(at) / (2.0 * q)) + 0.3 * step.of_drift(at)
            })
        };
        let algorithm = format!(
            "algorithm={{ kind = \"grpo-guard\", clip_range = [-1e-3, 1e-3], reweight = {reweight}, kl = {{ kind = \"mean\", beta = 0.3 }} }}"
        );
        check_recorded(&[&algorithm], &slopes);
    }
}

#[test]
fn the_gradient_of_dppo_is_that_of_the_rows_that_are_kept() {
    let slopes = |step: &Step| {
        let drifts = step.drift_of_rows();
        step.slopes(|row, at| {
            let (ratio, advantage) = (step.ratios[row], advantage(row));
            let divergence = drifts[row] / (2.0 * step.step.noise.powi(2));
            let leaves = ratio > 1.0 && advantage > 0.0 || ratio < 1.0 && advantage < 0.0;
            let is_dropped = divergence >= 1e-6 && leaves;
            match is_dropped {
                true => 0.0,
                false => -advantage * ratio * step.of_log_prob(at),
            }
        })
    };
    check_recorded(&["algorithm.kind=\"dppo\""], &slopes);
}

#[test]
fn the_gradient_of_gardo_pulls_the_gated_rows() {
    let slopes = |step: &Step| {
        let factor = 0.3 / (2.0 * step.step.std_dev.powi(2));
        step.slopes(|row, at| {
            step.of_clipped_ratio(row, at) + factor * f64::from(GATES[row]) * step.of_drift(at)
        })
    };
    let algorithm = "algorithm={ kind = \"gardo\", clip_range = [-1e-3, 1e-3], judges = [\"jpeg-compressibility\"], kl_beta = 0.3 }";
    check_recorded(&[algorithm, OF_GARDO], &slopes);
}

/// A noised image on the host, `[4, N]`.
struct Image {
    /// Velocities under the weights that moved, and under those that sampled, which are the reference, too.
    v: Vec<f64>,
    v_old: Vec<f64>,
    clean: Vec<f64>,
    noise: Vec<f64>,
}

impl Image {
    /// `v - (noise - clean)`.
    fn differences(&self, v: &[f64]) -> Vec<f64> {
        each(v.len(), |_, at| v[at] - (self.noise[at] - self.clean[at]))
    }

    /// `mean((v - (noise - clean))²)` by row.
    fn errors(&self, v: &[f64]) -> Vec<f64> {
        let target = each(v.len(), |_, at| self.noise[at] - self.clean[at]);
        squared(v, &target)
    }

    /// How a pull towards the weights that sampled rises with a value of the velocity, times their number.
    fn of_pull(&self, at: usize) -> f64 {
        2.0 * (self.v[at] - self.v_old[at])
    }
}

struct CheckNoised<'f>(&'f dyn Fn(&Image) -> Vec<f64>);

impl Visit for CheckNoised<'_> {
    type Output = ();

    fn visit<A: Algorithm + 'static>(self, trainer: Trainer<A>) {
        let mut trainer = trainer.set_up().expect("no accelerator refuses");
        in_context(&mut trainer, NOISED, |algorithm, context, [pass, again]| {
            let point = Point::of(context);
            let own = context.policy.guidance_scale;
            let v = point.velocity(context, own, |call| context.current.exec(call));
            let v_old = point.velocity(context, own, |call| context.sampling.exec(call));
            let image = Image {
                v: host(&v.into_dispatch()),
                v_old: host(&v_old.into_dispatch()),
                clean: host(&context.batch.clean),
                noise: host(context.noise.as_ref().expect("it was drawn")),
            };
            let slopes = (self.0)(&image);
            let v = point.velocity(context, own, |call| again.exec(call));
            compare((algorithm, NOISED), context, pass, (v, again), &slopes);
        });
    }
}

fn check_noised(algorithm: &str, slopes: &dyn Fn(&Image) -> Vec<f64>) {
    let registries = registries();
    let config = config(&[algorithm, "scheduler.dynamics=\"ode\""]);
    with_trainer(&config, &environment(&registries), CheckNoised(slopes));
}

#[test]
fn the_gradient_of_nft_leads_to_the_images_that_are_good_and_from_the_others() {
    let (b, clip) = (0.8, 5.0);
    let slopes = |image: &Image| {
        let count = image.v.len();
        // Where a velocity leads, less the image.
        let led = |mix: &dyn Fn(f64, f64) -> f64| {
            each(count, |_, at| {
                let x = (1.0 - SIGMA) * image.clean[at] + SIGMA * image.noise[at];
                x - SIGMA * mix(image.v[at], image.v_old[at]) - image.clean[at]
            })
        };
        let positive = led(&|v, old| b * v + (1.0 - b) * old);
        let negative = led(&|v, old| (1.0 + b) * old - b * v);
        let sizes = |errors: &[f64]| row_means(&each(count, |_, at| errors[at].abs()));
        let (of_positive, of_negative) = (sizes(&positive), sizes(&negative));
        each(count, |row, at| {
            let rho = (advantage(row) / clip / 2.0 + 0.5).clamp(0.0, 1.0);
            let towards = rho * -2.0 * SIGMA * b * positive[at] / of_positive[row].max(1e-5);
            let away = (1.0 - rho) * 2.0 * SIGMA * b * negative[at] / of_negative[row].max(1e-5);
            (clip / b * (towards + away) + 0.02 * image.of_pull(at)) / 4.0
        })
    };
    check_noised(
        "algorithm={ kind = \"nft\", beta = 0.8, kl_beta = 0.02 }",
        &slopes,
    );
}

#[test]
fn the_gradient_of_awm_is_that_of_the_weighted_error() {
    for weighting in ["uniform", "sigma", "sigma-squared", "huber", "generalised-huber"] {
        // The log-probability of an error, and how it rises with it.
        let log_prob = |error: f64| match weighting {
            "uniform" => (-error, -1.0),
            "sigma" => (-SIGMA * error, -SIGMA),
            "sigma-squared" => (-SIGMA * SIGMA * error, -SIGMA * SIGMA),
            "huber" => {
                let root = (error + 1e-10).sqrt();
                (-(root - 1e-5) * SIGMA, -SIGMA / (2.0 * root))
            }
            _ => {
                let power = (error + 1e-10).powf(0.25);
                let value = -(power - 1e-10_f64.powf(0.25)) * SIGMA / 0.25;
                (value, -SIGMA * (error + 1e-10).powf(-0.75))
            }
        };
        let slopes = |image: &Image| {
            let differences = image.differences(&image.v);
            let (errors, old) = (image.errors(&image.v), image.errors(&image.v_old));
            each(image.v.len(), |row, at| {
                let (value, slope) = log_prob(errors[row]);
                let ratio = (value - log_prob(old[row]).0).exp();
                let of_error = rise(ratio, row) * ratio * slope;
                (of_error * 2.0 * differences[at] + (0.02 + 0.1) * image.of_pull(at)) / 4.0
            })
        };
        let algorithm = format!(
            "algorithm={{ kind = \"awm\", weighting = \"{weighting}\", clip_range = [-1e-3, 1e-3], kl_beta = 0.02, old_policy_beta = 0.1 }}"
        );
        check_noised(&algorithm, &slopes);
    }
}

#[test]
fn the_gradient_of_dpo_lowers_the_error_of_the_better_image_and_raises_the_other() {
    let beta = 3.0;
    let slopes = |image: &Image| {
        let differences = image.differences(&image.v);
        let (errors, of_reference) = (image.errors(&image.v), image.errors(&image.v_old));
        let excess = |row: usize| errors[row] - of_reference[row];
        each(image.v.len(), |row, at| {
            // The better images of two pairs stand before the worse ones.
            let (pair, side) = (row % 2, if row < 2 { 1.0 } else { -1.0 });
            let z = -(beta / 2.0) * (excess(pair) - excess(pair + 2));
            let of_error = side * (beta / 2.0) / (1.0 + z.exp()) / 2.0;
            of_error * 2.0 * differences[at]
        })
    };
    check_noised("algorithm={ kind = \"dpo\", beta = 3.0 }", &slopes);
}
