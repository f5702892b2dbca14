//! Online DPO: Diffusion-DPO (Wallace et al. 2023, arXiv 2311.12908) on the best and the worst image of each group.
//!
//! Formulas as in Flow-Factory `trainers/dpo.py` (a0b2bc5), lines 322 to 644; `e = mean((v - (eps - x0))²)`, for both images at the same
//! time and noise:
//!
//! ```text
//! z = -(beta / 2) ((e_w - e_w_ref) - (e_l - e_l_ref))          L = mean(-log sigmoid(z))
//! ```
//!
//! A group whose advantages are all equal has no pair and is left out. (Flow-Factory trains on it, with a gradient of 0; flow_grpo takes
//! its first two images.)

mod pairs;
mod settings;

pub use settings::{DpoSettings, DpoTimesConfig};

use super::forward::{Forward, detached};
use super::times::drawn_positions;
use super::{
    Algorithm, AlgorithmFactory, AlgorithmRegistry, LossContext, LossPoint, PointLoss, ReferenceWeights,
    RolledOut, RowSet, mean_over_rows,
};
use crate::error::TrainError;
use crate::scheduler::{Schedule, SigmaGrid};
use crate::timesteps::TimestepSampler;
use burn::tensor::Tensor;
use flow_accel::Paradigm;
use flow_config::AlgorithmFacts;
use flow_core::tensors::plain;
use flow_registry::NameTaken;

const NAME: &str = "dpo";

/// Online DPO.
#[derive(Clone, Debug)]
pub struct Dpo {
    settings: DpoSettings,
    /// Where the loss is taken.
    timesteps: TimestepSampler,
}

impl Dpo {
    /// The algorithm with these settings, its times on the grid of the sampler's steps.
    ///
    /// # Errors
    /// A message, if the range or the count of times does not fit the grid.
    pub fn new(settings: DpoSettings, grid: &SigmaGrid) -> Result<Self, String> {
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
        let facts = |settings: &DpoSettings| AlgorithmFacts {
            is_coupled: false,
            inner_epochs: settings.inner_epochs,
            copies: usize::from(settings.reference == ReferenceWeights::Snapshot),
        };
        let factory = AlgorithmFactory::new::<DpoSettings>(
            NAME,
            "Online DPO (Wallace et al. 2023, arXiv 2311.12908): the best and the worst image of each group. Decoupled.",
            facts,
            |context, settings| {
                let schedule = crate::setup::schedule(context.config, context.tokens)?;
                let dpo = Self::new(settings, schedule.grid()).map_err(TrainError::setting)?;
                Ok(Box::new(dpo))
            },
        );
        registry.register(
            factory
                .with_rules(settings::check)
                .with_step_rule(settings::check_steps),
        )
    }
}

/// `-log sigmoid(z)` per row, exact for large and for small z, and with its gradient at 0.
pub(super) fn negative_log_sigmoid(z_b: Tensor<1>) -> Tensor<1> {
    // 1 for z >= 0, -1 below: log(1 + exp(-|z|)), plus |z| below.
    let sign = detached(&z_b).greater_equal_elem(0.0).float() * 2.0 - 1.0;
    let below = (sign.clone().neg() + 1.0) * 0.5;
    (z_b.clone() * sign.neg()).exp().log1p() - z_b * below
}

/// `mean(-log sigmoid(z))` of pairs with the logits `z`, `[P]`, and the terms that are logged of it.
pub(super) fn preference_loss(z_p: Tensor<1>) -> PointLoss {
    let values_p = detached(&z_p);
    let loss = mean_over_rows(negative_log_sigmoid(z_p));
    PointLoss {
        terms: vec![
            ("policy_loss", plain(&loss.clone().into_dispatch())),
            (
                "implicit_accuracy",
                values_p.clone().greater_elem(0.0).float().into_dispatch(),
            ),
            ("implicit_margin", values_p.into_dispatch()),
        ],
        loss,
        replayed: None,
    }
}

impl Algorithm for Dpo {
    fn name(&self) -> &str {
        NAME
    }

    fn paradigm(&self) -> Paradigm {
        Paradigm::Decoupled
    }

    fn reference(&self) -> Option<ReferenceWeights> {
        Some(self.settings.reference)
    }

    fn inner_epochs(&self) -> usize {
        self.settings.inner_epochs
    }

    fn advantage_clip(&self) -> f32 {
        // Only their order counts.
        f32::MAX
    }

    fn positions(&self, _schedule: &Schedule, seed: u64, iteration: u64, pass: usize) -> Vec<LossPoint> {
        drawn_positions(&self.timesteps, seed, iteration, pass)
    }

    fn arrange(&self, rollout: &RolledOut<'_>) -> Option<Vec<Vec<RowSet>>> {
        Some(pairs::arranged(rollout))
    }

    /// The first half of the rows are the better images of pairs, the second half the worse ones, in the same order.
    fn loss(&self, context: &LossContext<'_, '_>, position: LossPoint) -> PointLoss {
        let forward = Forward::new(context, position);
        let reference = context.reference;
        let reference = reference.expect("the loop provides the reference an algorithm asks for");
        let error = forward.error(context, forward.velocity(context, |call| context.pass.exec(call)));
        let v_ref = forward.velocity(context, |call| reference.exec(call));
        let excess = error - detached(&forward.error(context, v_ref));
        let pairs = context.batch.samples.len() / 2;
        let (better, worse) = (excess.clone().narrow(0, 0, pairs), excess.narrow(0, pairs, pairs));
        let z = (better - worse) * (-0.5 * self.settings.beta) as f32;
        preference_loss(z)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow_core::cpu;
    use flow_core::device::ComputeDevice;

    #[test]
    fn the_preference_loss_is_exact_for_large_small_and_zero_differences() {
        for (z, expected) in [
            (1.5, 0.201_413_278_0),
            (30.0, 9.357_622_968_840_175e-14),
            (0.0, std::f64::consts::LN_2),
            (-1.5, 1.701_413_278_0),
            (-200.0, 200.0),
        ] {
            let tensor = ComputeDevice::cpu().tensor(vec![z], [1]);
            let found = f64::from(cpu::to_host(&negative_log_sigmoid(tensor).into_dispatch())[0]);
            assert!(
                (found / expected - 1.0).abs() < 1e-6,
                "{z}: {found} and {expected}"
            );
        }
    }
}
