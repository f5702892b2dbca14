//! DGPO, direct group preference optimisation (Luo et al. 2025, arXiv 2510.08425): the better images of a group against the worse ones.
//!
//! Formulas as in Flow-Factory `trainers/dgpo.py` (a0b2bc5), lines 90 to 1000, and the official `scripts/train_sd3_dgpo.py` (01ceb4b),
//! lines 162 to 191 and 1062 to 1177; `K` images in a group, `v` without guidance:
//!
//! ```text
//! x = (1 - sigma) x0 + sigma e        d = mean((v - (e - x0))²), d_ref and d_old likewise under other weights
//! z_g = sum over the group of A beta (d - d_ref) / K        w_g = sigmoid(z_g), not differentiated
//! L = mean(w_g A d) + kl_beta mean((v - v_ref)²)
//! rho = exp(d_old - d)                an image is held if A > 0 ? rho > 1 + hi : rho < 1 + lo
//! ```
//!
//! The term of an image that is held keeps its value and has no gradient. The slower copy follows after each optimizer step, and samples
//! from some step on. `z_g` is of the whole group wherever its images lie: errors are computed before the step, and added up in f64.

mod settings;

pub use settings::{DgpoCopyConfig, DgpoSettings, DgpoTimesConfig};

use super::forward::{Forward, distance, held};
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

const NAME: &str = "dgpo";

/// The model that learns is not guided in this loss, whatever the rollout was.
const UNGUIDED: f32 = 1.0;

/// Direct group preference optimisation.
#[derive(Clone, Debug)]
pub struct Dgpo {
    settings: DgpoSettings,
    /// Where the loss is taken.
    timesteps: TimestepSampler,
}

impl Dgpo {
    /// The algorithm with these settings, its times on the grid of the sampler's steps.
    ///
    /// # Errors
    /// A message, if the range or the count of times does not fit the grid.
    pub fn new(settings: DgpoSettings, grid: &SigmaGrid) -> Result<Self, String> {
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
        let facts = |settings: &DgpoSettings| AlgorithmFacts {
            is_coupled: false,
            inner_epochs: settings.inner_epochs,
            copies: usize::from(settings.keeps_old())
                + usize::from(settings.needs() == Some(ReferenceWeights::Snapshot)),
        };
        let factory = AlgorithmFactory::new::<DgpoSettings>(
            NAME,
            "DGPO (Luo et al. 2025, arXiv 2510.08425): the better images of each group against the worse ones. Decoupled.",
            facts,
            |context, settings| {
                let schedule = crate::setup::schedule(context.config, context.tokens)?;
                let dgpo = Self::new(settings, schedule.grid()).map_err(TrainError::setting)?;
                Ok(Box::new(dgpo))
            },
        );
        registry.register(
            factory
                .with_rules(settings::check)
                .with_step_rule(settings::check_steps),
        )
    }
}

impl Algorithm for Dgpo {
    fn name(&self) -> &str {
        NAME
    }

    fn paradigm(&self) -> Paradigm {
        Paradigm::Decoupled
    }

    fn sampling_weights(&self, steps: u64) -> SamplingWeights {
        if self.settings.keeps_old() && steps > self.settings.old_samples_after as u64 {
            SamplingWeights::Slow(SlowCopy::Old)
        } else {
            SamplingWeights::Current
        }
    }

    fn keeps(&self, copy: SlowCopy) -> bool {
        copy == SlowCopy::Old && self.settings.keeps_old()
    }

    fn survives(&self, _copy: SlowCopy, moment: Moment) -> Option<f64> {
        match moment {
            Moment::Step { steps } => self.settings.old_copy.survives(steps.saturating_sub(1)),
            Moment::Iteration { .. } => None,
        }
    }

    fn reference(&self) -> Option<ReferenceWeights> {
        self.settings.needs()
    }

    fn guidance_scales(&self) -> Vec<f64> {
        let reference = self.settings.needs().map(|_| self.settings.reference_guidance);
        reference.into_iter().collect()
    }

    fn shares_noise(&self) -> bool {
        self.settings.shared_noise
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

    /// The error, the one that the group's weight compares it with, and under the slower copy if rows are held by it.
    fn row_numbers(&self, context: &LossContext<'_, '_>, position: LossPoint) -> Vec<RawTensor> {
        let forward = Forward::new(context, position);
        let error = |velocity| plain(&forward.error(context, velocity).into_dispatch());
        let mut numbers = vec![error(
            forward.velocity_at(context, UNGUIDED, |call| context.current.exec(call)),
        )];
        if !self.settings.against_old {
            numbers.push(error(self.reference_velocity(context, &forward)));
        }
        if self.settings.keeps_old() {
            let old = context
                .old
                .expect("the loop provides the copy an algorithm keeps");
            numbers.push(error(
                forward.velocity_at(context, UNGUIDED, |call| old.exec(call)),
            ));
        }
        numbers
    }

    fn compare(&self, rows: &StepRows<'_>) -> Vec<Vec<f32>> {
        let [errors, others, ..] = rows.numbers else {
            unreachable!("`row_numbers` gives two or three");
        };
        let mut compared = vec![rows.group_weights(self.settings.beta, errors, others)];
        if let (true, Some(old)) = (self.settings.clips(), rows.numbers.last()) {
            compared.push(rows.learns(self.settings.clip_range, errors, old));
        }
        compared
    }

    fn loss(&self, context: &LossContext<'_, '_>, position: LossPoint) -> PointLoss {
        let mut compared = context.compared.iter().cloned().map(Tensor::<1>::from_dispatch);
        let weight = compared.next();
        let weight = weight.expect("the loop compares the rows of an algorithm that asks for it");
        let learns = compared.next();
        let held_if = |is_clipped: bool, values: Tensor<1>| match learns.as_ref().filter(|_| is_clipped) {
            Some(learns) => held(values, learns),
            None => values,
        };
        let forward = Forward::new(context, position);
        let v = forward.velocity_at(context, UNGUIDED, |call| context.pass.exec(call));
        let error = held_if(self.settings.clip_error, forward.error(context, v.clone()));
        let mut terms = vec![("group_weight", weight.clone().into_dispatch())];
        if let Some(learns) = &learns {
            terms.push(("clip_fraction", (learns.clone().neg() + 1.0).into_dispatch()));
        }
        let mut loss = mean_over_rows(error * (weight * context.advantages.clone()));
        terms.push(("policy_loss", plain(&loss.clone().into_dispatch())));
        if self.settings.kl_beta > 0.0 {
            let pull = distance(context, v, self.reference_velocity(context, &forward));
            let pull = mean_over_rows(held_if(self.settings.clip_kl, pull));
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

impl Dgpo {
    /// The reference's velocity `[B, N]`.
    fn reference_velocity(&self, context: &LossContext<'_, '_>, forward: &Forward) -> Tensor<2> {
        let reference = context.reference;
        let reference = reference.expect("the loop provides the reference an algorithm asks for");
        let guidance = self.settings.reference_guidance as f32;
        forward.velocity_at(context, guidance, |call| reference.exec(call))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow_core::cpu;
    use flow_core::device::ComputeDevice;

    fn dgpo(settings: DgpoSettings) -> Dgpo {
        let grid = SigmaGrid::new(4, crate::scheduler::SigmaShift::NONE).expect("a grid");
        Dgpo::new(settings, &grid).expect("the times fit the grid")
    }

    fn compared(
        settings: DgpoSettings,
        advantages: &[f32],
        groups: &[u64],
        numbers: &[Vec<f32>],
    ) -> Vec<Vec<f32>> {
        dgpo(settings).compare(&StepRows {
            advantages,
            groups,
            numbers,
        })
    }

    #[test]
    fn the_weight_of_a_group_follows_its_formula() {
        let numbers = [vec![0.30, 0.50], vec![0.32, 0.46], vec![0.31, 0.50]];
        let clip_range = [-1e-3, 1e-3];
        let settings = DgpoSettings {
            clip_range,
            ..DgpoSettings::default()
        };
        let found = compared(settings, &[1.0, -1.0], &[7, 7], &numbers);
        // z = 100 (-0.02 - 0.04) / 2 = -3; exp(0.31 - 0.30) is beyond 1.001, and the advantage asks for less error still.
        for weight in &found[0] {
            assert!((weight - 0.047_425_87).abs() < 2e-6, "{weight}");
        }
        assert_eq!(found[1], [0.0, 1.0]);
    }

    #[test]
    fn a_group_has_the_weight_of_its_own_images_and_one_half_where_nothing_has_moved() {
        let settings = DgpoSettings {
            clip_error: false,
            ..DgpoSettings::default()
        };
        let advantages = [1.0, -1.0, 0.5, -0.5];
        let same = vec![vec![0.3, 0.5, 0.2, 0.4]; 2];
        assert_eq!(
            compared(settings.clone(), &advantages, &[1, 1, 2, 2], &same),
            [vec![0.5; 4]]
        );
        let numbers = [vec![0.3, 0.5, 0.30, 0.50], vec![0.3, 0.5, 0.32, 0.46]];
        let found = compared(settings, &advantages, &[1, 1, 2, 2], &numbers).remove(0);
        assert_eq!(found[..2], [0.5, 0.5]);
        let expected = 1.0 / (1.0 + 1.5_f32.exp());
        assert!(
            (found[2] - expected).abs() < 1e-5 && found[2] == found[3],
            "{found:?}"
        );
    }

    #[test]
    fn an_image_is_held_only_beyond_the_range_on_the_side_that_its_advantage_asks_for() {
        let settings = DgpoSettings {
            clip_range: [-1e-3, 1e-3],
            ..DgpoSettings::default()
        };
        let (near, far) = (0.0005, 0.002);
        let old = vec![0.5; 6];
        let errors = vec![0.5 - far, 0.5 - near, 0.5 + far, 0.5 + far, 0.5 + near, 0.5 - far];
        let advantages = [1.0, 1.0, 1.0, -1.0, -1.0, -1.0];
        let found = compared(settings, &advantages, &[1; 6], &[errors, old.clone(), old]);
        assert_eq!(found[1], [0.0, 1.0, 1.0, 0.0, 1.0, 1.0]);
    }

    #[test]
    fn the_slower_copy_is_a_copy_at_first_and_samples_after_some_steps() {
        let dgpo = dgpo(DgpoSettings::default());
        let after = |steps| dgpo.survives(SlowCopy::Old, Moment::Step { steps });
        assert_eq!(
            [1, 101, 301, 1001].map(after),
            [Some(0.0), Some(0.1), Some(0.3), Some(0.3)]
        );
        let iteration = Moment::Iteration {
            iteration: 5,
            steps: 5,
        };
        assert_eq!(dgpo.survives(SlowCopy::Old, iteration), None);
        assert_eq!(dgpo.sampling_weights(200), SamplingWeights::Current);
        assert_eq!(dgpo.sampling_weights(201), SamplingWeights::Slow(SlowCopy::Old));
    }

    #[test]
    fn a_held_value_keeps_its_bits() {
        let device = ComputeDevice::cpu();
        let values = vec![0.1, 3.7];
        let learns: Tensor<1> = device.tensor(vec![1.0, 0.0], [2]);
        let found = held(device.tensor(values.clone(), [2]), &learns);
        assert_eq!(cpu::to_host(&found.into_dispatch()), values);
    }
}
