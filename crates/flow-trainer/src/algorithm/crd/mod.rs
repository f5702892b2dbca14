//! CRD, centred reward distillation (arXiv 2603.14128): the model's implicit reward learns the reward, both centred.
//!
//! Formulas as in Flow-Factory `trainers/crd.py` (a0b2bc5), lines 50 to 209 and 522 to 870; `clip` the bound on advantages:
//!
//! ```text
//! x = (1 - sigma) x0 + sigma e         d = v - (e - x0), d_old likewise under slower weights
//! R = mean(d_old²) / w_old - mean(d²) / w                  w = max(mean|d|, 1e-5), w_old likewise, not differentiated
//! a = clamp(A / clip / 2 + 1/2, 0, 1)                      rewards between 0 and 1
//! Rt = R - sum p R, a sum that is not differentiated       at = a - sum p a
//! L = clip / beta mean((beta Rt - at)²) + kl_beta mean((m + a (1 - m)) mean((v - v_ref)²)),   m = 1e-4 / kl_beta
//! ```
//!
//! or the cross entropy of `beta Rt` and `sigmoid(at)` in the place of the square. The sums are over the rows of an optimizer step, or of a
//! group, with weights `p` that add up to 1; they are made before the step, in f64. (Flow-Factory's "hard" weights look for negative
//! numbers among rewards between 0 and 1 and find none; here advantages are looked at.)

mod centre;
mod settings;

pub use settings::{
    Baseline, Centre, CentreWeights, CrdLoss, CrdOldConfig, CrdSamplingConfig, CrdSettings, CrdTimesConfig,
};

use super::dpo::negative_log_sigmoid;
use super::forward::{Forward, detached, distance, optimality};
use super::times::drawn_positions;
use super::{
    Algorithm, AlgorithmFactory, AlgorithmRegistry, LossContext, LossPoint, Moment, NetworkRole, PointLoss,
    ReferenceWeights, SamplingWeights, SlowCopy, StepRows, mean_over_rows,
};
use crate::error::TrainError;
use crate::scheduler::{Schedule, SigmaGrid};
use crate::timesteps::TimestepSampler;
use burn::tensor::Tensor;
use flow_accel::Paradigm;
use flow_config::AlgorithmFacts;
use flow_core::RawTensor;
use flow_core::tensors::plain;
use flow_registry::NameTaken;

const NAME: &str = "crd";

/// Least mean absolute value that an error is divided by.
const LEAST_WEIGHT: f64 = 1e-5;

/// Share of the pull on the worst images, over `kl_beta`.
const LEAST_PULL: f64 = 1e-4;

/// Centred reward distillation.
#[derive(Clone, Debug)]
pub struct Crd {
    settings: CrdSettings,
    /// Where the loss is taken.
    timesteps: TimestepSampler,
}

impl Crd {
    /// The algorithm with these settings, its times on the grid of the sampler's steps.
    ///
    /// # Errors
    /// A message, if the range or the count of times does not fit the grid.
    pub fn new(settings: CrdSettings, grid: &SigmaGrid) -> Result<Self, String> {
        let times = (&settings.train_timesteps).into();
        Ok(Self {
            timesteps: TimestepSampler::from_config(&times, grid)?,
            settings,
        })
    }

    /// Adds the algorithm to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is an algorithm of its name.
    pub fn register(registry: &mut AlgorithmRegistry) -> Result<(), NameTaken> {
        let facts = |settings: &CrdSettings| AlgorithmFacts {
            is_coupled: false,
            inner_epochs: settings.inner_epochs,
            // The weights that sample, those that are measured from, and a snapshot.
            copies: 1
                + usize::from(settings.baseline == Baseline::Old)
                + usize::from(settings.needs() == Some(ReferenceWeights::Snapshot)),
        };
        let factory = AlgorithmFactory::new::<CrdSettings>(
            NAME,
            "CRD (arXiv 2603.14128): the model's centred implicit reward learns the centred reward. Decoupled.",
            facts,
            |context, settings| {
                let schedule = crate::setup::schedule(context.config, context.tokens)?;
                let crd = Self::new(settings, schedule.grid()).map_err(TrainError::setting)?;
                Ok(Box::new(crd))
            },
        );
        registry.register(
            factory
                .with_rules(settings::check)
                .with_step_rule(settings::check_steps),
        )
    }

    /// The error of a velocity per row, `[B]`: divided by its size, if the settings say so.
    fn error(&self, context: &LossContext<'_, '_>, forward: &Forward, velocity_bn: Tensor<2>) -> Tensor<1> {
        let error = forward.error(context, velocity_bn.clone());
        if !self.settings.normalise_errors {
            return error;
        }
        let size_b1 = (detached(&velocity_bn) - forward.target()).abs().mean_dim(1);
        let size_b: Tensor<1> = size_b1.clamp_min(LEAST_WEIGHT).squeeze_dim(1);
        error / size_b
    }

    /// The loss `[B]` of implicit rewards `[B]` whose centre is `centre_b`, against centred rewards.
    fn compared_loss(&self, rewards_b: Tensor<1>, centre_b: Tensor<1>, target_b: Tensor<1>) -> Tensor<1> {
        let implicit = (rewards_b - centre_b) * self.settings.beta as f32;
        match self.settings.loss {
            CrdLoss::Mse => {
                let difference = implicit - target_b;
                difference.clone() * difference
            }
            // -y log sigmoid(x) - (1 - y) log sigmoid(-x) = -log sigmoid(-x) - x y
            CrdLoss::Bce => {
                let share = (target_b.neg().exp() + 1.0).recip();
                negative_log_sigmoid(implicit.clone().neg()) - implicit * share
            }
        }
    }

    /// The pull towards the reference, `[1]`, without its factor.
    fn pull(&self, context: &LossContext<'_, '_>, forward: &Forward, v: Tensor<2>) -> Tensor<1> {
        let reference = context.reference;
        let reference = reference.expect("the loop provides the reference an algorithm asks for");
        let guidance = self.settings.guidance();
        let guidance = guidance.map_or(context.policy.guidance_scale, |guidance| guidance as f32);
        let v_ref = forward.velocity_at(context, guidance, |call| reference.exec(call));
        let pull = distance(context, v, v_ref);
        if !self.settings.adaptive_kl {
            return mean_over_rows(pull);
        }
        let least = (LEAST_PULL / self.settings.kl_beta) as f32;
        let reward = optimality(context.advantages.clone(), self.advantage_clip());
        mean_over_rows(pull * (reward * (1.0 - least) + least))
    }
}

impl Algorithm for Crd {
    fn name(&self) -> &str {
        NAME
    }

    fn paradigm(&self) -> Paradigm {
        Paradigm::Decoupled
    }

    fn sampling_weights(&self, _steps: u64) -> SamplingWeights {
        SamplingWeights::Slow(SlowCopy::Sampling)
    }

    fn keeps(&self, copy: SlowCopy) -> bool {
        copy == SlowCopy::Sampling || self.settings.baseline == Baseline::Old
    }

    fn survives(&self, copy: SlowCopy, moment: Moment) -> Option<f64> {
        match (moment, copy) {
            (Moment::Step { .. }, _) => None,
            (Moment::Iteration { steps, .. }, SlowCopy::Old) => self.settings.old_copy.survives(steps),
            (Moment::Iteration { steps, .. }, SlowCopy::Sampling) => {
                self.settings.sampling_copy.survives(steps)
            }
        }
    }

    fn reference(&self) -> Option<ReferenceWeights> {
        self.settings.needs()
    }

    fn guidance_scales(&self) -> Vec<f64> {
        self.settings.guidance().into_iter().collect()
    }

    fn inner_epochs(&self) -> usize {
        self.settings.inner_epochs
    }

    fn advantage_clip(&self) -> f32 {
        self.settings.advantage_clip as f32
    }

    fn positions(&self, _schedule: &Schedule, seed: u64, iteration: u64, pass: usize) -> Vec<LossPoint> {
        drawn_positions(&self.timesteps, seed, iteration, pass)
    }

    fn compares_rows(&self, role: Option<NetworkRole>) -> bool {
        role.is_none()
    }

    /// The error under the weights that are measured from, and the one under those that learn.
    fn row_numbers(&self, context: &LossContext<'_, '_>, position: LossPoint) -> Vec<RawTensor> {
        let forward = Forward::new(context, position);
        let baseline = match self.settings.baseline {
            Baseline::Old => context.old,
            Baseline::Reference => context.reference,
        };
        let baseline = baseline.expect("the loop provides the weights an algorithm asks for");
        let velocities = [
            forward.velocity(context, |call| baseline.exec(call)),
            forward.velocity(context, |call| context.current.exec(call)),
        ];
        velocities
            .map(|velocity| plain(&self.error(context, &forward, velocity).into_dispatch()))
            .into()
    }

    /// The error under the weights that are measured from; then, for each loss, the centre of implicit rewards and the centred reward.
    fn compare(&self, rows: &StepRows<'_>) -> Vec<Vec<f32>> {
        let [baselines, errors] = rows.numbers else {
            unreachable!("`row_numbers` gives two");
        };
        let rewards: Vec<f64> = (baselines.iter().zip(errors))
            .map(|(baseline, error)| f64::from(*baseline) - f64::from(*error))
            .collect();
        let mut compared = vec![baselines.clone()];
        compared.extend(centre::centred(&self.settings, rows, &rewards));
        compared
    }

    fn loss(&self, context: &LossContext<'_, '_>, position: LossPoint) -> PointLoss {
        let compared: Vec<Tensor<1>> = (context.compared.iter().cloned())
            .map(Tensor::from_dispatch)
            .collect();
        let (baseline, losses) = compared
            .split_first()
            .expect("the loop compares the rows of an algorithm that asks for it");
        let forward = Forward::new(context, position);
        let v = forward.velocity(context, |call| context.pass.exec(call));
        let rewards = baseline.clone() - self.error(context, &forward, v.clone());
        let mut terms = vec![("implicit_reward", plain(&rewards.clone().into_dispatch()))];
        let count = losses.len() / 2;
        let each = losses.chunks_exact(2).map(|pair| {
            let (centre, target) = (pair[0].clone(), pair[1].clone());
            self.compared_loss(rewards.clone(), centre, target)
        });
        let sum = each.reduce(|sum, loss| sum + loss);
        let sum = sum.expect("there is at least one loss");
        let factor = self.settings.advantage_clip / (self.settings.beta * count as f64);
        let mut loss = mean_over_rows(sum) * factor as f32;
        terms.push(("policy_loss", plain(&loss.clone().into_dispatch())));
        if self.settings.kl_beta > 0.0 {
            let pull = self.pull(context, &forward, v);
            terms.push(("kl", plain(&pull.clone().into_dispatch())));
            loss = loss + pull * self.settings.kl_beta as f32;
        }
        PointLoss {
            loss,
            replayed: None,
            terms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow_core::cpu;
    use flow_core::device::ComputeDevice;

    fn crd(settings: CrdSettings) -> Crd {
        let grid = SigmaGrid::new(4, crate::scheduler::SigmaShift::NONE).expect("a grid");
        Crd::new(settings, &grid).expect("the times fit the grid")
    }

    /// The mean of the losses over four rows, for implicit rewards; without `advantage_clip / beta`.
    fn loss_of(settings: CrdSettings, implicit: [f32; 4]) -> f64 {
        let crd = crd(settings);
        let rows = StepRows {
            advantages: &[2.5, -2.5, 0.0, 5.0],
            groups: &[1; 4],
            numbers: &[vec![0.0; 4], implicit.map(|reward| -reward).to_vec()],
        };
        let device = ComputeDevice::cpu();
        let tensor = |values: &[f32]| -> Tensor<1> { device.tensor(values.to_vec(), [4]) };
        let compared = crd.compare(&rows);
        let losses: Vec<f64> = (compared[1..].chunks_exact(2))
            .flat_map(|pair| {
                let loss = crd.compared_loss(tensor(&implicit), tensor(&pair[0]), tensor(&pair[1]));
                cpu::to_host(&loss.into_dispatch())
            })
            .map(f64::from)
            .collect();
        losses.iter().sum::<f64>() / losses.len() as f64
    }

    #[test]
    fn squares_and_cross_entropies_of_centred_rewards_follow_their_formulas() {
        let of = |loss, centre_weights| CrdSettings {
            loss,
            centre_weights,
            ..CrdSettings::default()
        };
        let implicit = [0.1, -0.1, 0.0, 0.2];
        for (settings, implicit, expected) in [
            (of(CrdLoss::Mse, CentreWeights::Uniform), implicit, 0.028_125),
            (
                of(CrdLoss::Mse, CentreWeights::Softmax),
                implicit,
                0.030_246_917_385,
            ),
            (of(CrdLoss::Mse, CentreWeights::Signs), implicit, 0.064_687_5),
            (
                of(CrdLoss::Bce, CentreWeights::Uniform),
                implicit,
                0.686_978_118_6,
            ),
            (of(CrdLoss::Mse, CentreWeights::Uniform), [0.0; 4], 0.078_125),
        ] {
            let found = loss_of(settings.clone(), implicit);
            assert!((found - expected).abs() < 1e-6, "{settings:?}: {found}");
        }
    }

    #[test]
    fn both_copies_follow_after_iterations_by_the_optimizer_steps_that_were_taken() {
        let crd = crd(CrdSettings::default());
        let after = |copy, steps| {
            let found = crd.survives(copy, Moment::Iteration { iteration: 1, steps });
            found.expect("some of the copy goes")
        };
        for (copy, steps, expected) in [
            (SlowCopy::Old, 0, 0.25),
            (SlowCopy::Old, 100, 0.75),
            (SlowCopy::Old, 150, 0.999),
            (SlowCopy::Sampling, 74, 0.0),
            (SlowCopy::Sampling, 75, 0.0),
            (SlowCopy::Sampling, 100, 0.1875),
            (SlowCopy::Sampling, 300, 0.999),
        ] {
            let found = after(copy, steps);
            assert!((found - expected).abs() < 1e-12, "{copy:?} at {steps}: {found}");
        }
        assert_eq!(crd.survives(SlowCopy::Old, Moment::Step { steps: 5 }), None);
    }
}
