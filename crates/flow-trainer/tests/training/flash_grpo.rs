//! The temporal gradient rectification of Flash-GRPO: loss and gradients against host computations in f64 from the formulas of its SDE.

use crate::distillation::velocity;
use crate::loss_pass::{expect_gradients, loss_in};
use crate::losses::{ADVANTAGES, host, in_context, mean, rows};
use crate::support::{Visit, config, environment, registries, with_trainer};
use burn::tensor::Tensor;
use flow_trainer::Trainer;
use flow_trainer::algorithm::{Algorithm, LossPoint, PointLoss};
use flow_trainer::scheduler::StepCoefficients;

const INDEX: usize = 2;
const CLIP: f64 = 1e-3;

/// A step by the formulas of Flow-GRPO's SDE, of its diffusion `s` and its sigmas.
struct Sde {
    sigma: f64,
    dt: f64,
    s: f64,
}

impl Sde {
    fn of(step: &StepCoefficients) -> Self {
        Self {
            sigma: step.sigma,
            dt: step.sigma_next - step.sigma,
            s: step.std_dev,
        }
    }

    fn mean(&self, x: f64, v: f64) -> f64 {
        let drift = self.s * self.s / (2.0 * self.sigma);
        x + (v + drift * (x + (1.0 - self.sigma) * v)) * self.dt
    }

    fn noise(&self) -> f64 {
        self.s * (-self.dt).sqrt()
    }

    /// How a mean falls with the velocity, in units of the noise: the factor of the paper.
    fn factor(&self) -> f64 {
        let root = (-self.dt).sqrt();
        root / self.s + self.s * root * (1.0 - self.sigma) / (2.0 * self.sigma)
    }
}

struct CheckRectified;

impl Visit for CheckRectified {
    type Output = ();

    fn visit<A: Algorithm + 'static>(self, trainer: Trainer<A>) {
        let mut trainer = trainer.set_up().expect("no accelerator refuses");
        let position = LossPoint::Recorded(INDEX);
        in_context(&mut trainer, position, |algorithm, context, [pass, again]| {
            let record = &context.batch.records[INDEX];
            let own = context.policy.guidance_scale;
            let (loss, gradients) = loss_in(pass, context, |inner| PointLoss {
                replayed: None,
                ..algorithm.loss(inner, position)
            });

            let v = velocity(context, record, own, |call| context.current.exec(call));
            let (v, x) = (host(&v.into_dispatch()), host(&record.x));
            let (next, old) = (host(&record.x_next), host(&record.log_prob));
            let steps = context.batch.records.iter().map(|record| Sde::of(&record.step));
            let mean_inverse = mean(steps.map(|step| 1.0 / step.factor()));
            let sde = Sde::of(&record.step);
            let weight = 1.0 / sde.factor() / mean_inverse;
            assert!((weight - 1.0).abs() > 1e-2, "{weight}");

            let (mut losses, mut slopes) = (Vec::new(), Vec::new());
            let of_row = rows(&x).zip(rows(&v)).zip(rows(&next)).enumerate();
            for (row, ((x, v), next)) in of_row {
                let errors = x
                    .iter()
                    .zip(v)
                    .zip(next)
                    .map(|((x, v), next)| next - sde.mean(*x, *v));
                let errors: Vec<f64> = errors.collect();
                let (q, advantage) = (sde.noise(), f64::from(ADVANTAGES[row]));
                let square = mean(errors.iter().map(|error| error * error));
                let log_prob = -square / (2.0 * q * q) - q.ln() - (2.0 * std::f64::consts::PI).ln() / 2.0;
                let ratio = (log_prob - old[row]).exp();
                let (unclipped, clipped) = (
                    -advantage * ratio,
                    -advantage * ratio.clamp(1.0 - CLIP, 1.0 + CLIP),
                );
                losses.push(weight * unclipped.max(clipped));
                // Times the number of elements, over which the tensor's mean is taken.
                let slope = if unclipped >= clipped {
                    unclipped / 4.0
                } else {
                    0.0
                };
                slopes.extend(
                    errors
                        .iter()
                        .map(|error| (-weight * slope * error / q * sde.factor()) as f32),
                );
            }
            let expected = mean(losses.iter().copied());
            assert!(
                (loss - expected).abs() < 2e-4 * expected.abs().max(1.0),
                "{loss} and {expected}"
            );
            assert!(slopes.iter().any(|slope| *slope != 0.0), "every row is clipped");

            let values = slopes.len() / 4;
            let slopes: Tensor<2> = context.device.tensor(slopes, [4, values]);
            let v = velocity(context, record, own, |call| again.exec(call));
            let by_row: Tensor<1> = (v * slopes).mean_dim(1).squeeze_dim(1);
            let wanted = again.gradients(&by_row.sum_dim(0));
            expect_gradients(&gradients, &wanted, (1e-6, 1e-3));
        });
    }
}

#[test]
fn flash_grpo_scales_loss_and_gradients_of_a_step_by_the_inverse_of_its_factor() {
    let registries = registries();
    for dynamics in ["flow-sde", "dance-sde"] {
        let dynamics = format!("scheduler.dynamics=\"{dynamics}\"");
        let config = config(&[
            "algorithm={ kind = \"grpo\", clip_range = [-1e-3, 1e-3], step_weights = \"inverse-gradient\" }",
            &dynamics,
        ]);
        with_trainer(&config, &environment(&registries), CheckRectified);
    }
}
