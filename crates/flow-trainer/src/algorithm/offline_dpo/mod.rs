//! Offline DPO: Diffusion-DPO (Wallace et al. 2023, arXiv 2311.12908) on pairs of images of the data set.
//!
//! Formulas as in Flow-Factory's trainer `offline-dpo`; `e = mean((v - (eps - x0))²)`, for both images of a pair at the same time and
//! noise, each pair with its own:
//!
//! ```text
//! z = -(beta / 2) ((e_w - e_w_ref) - (e_l - e_l_ref))          L = mean(-log sigmoid(z))
//! ```
//!
//! With several times per pair it is the mean of the losses, not the loss of mean errors. Velocities are those of the prompt alone,
//! without classifier-free guidance.

mod settings;

pub use settings::OfflineDpoSettings;

use super::dpo::preference_loss;
use super::forward::{Forward, detached};
use super::{
    Algorithm, AlgorithmFactory, AlgorithmRegistry, LossContext, LossPoint, PointLoss, RecordKind,
    ReferenceWeights,
};
use crate::scheduler::Schedule;
use burn::tensor::Tensor;
use flow_accel::Paradigm;
use flow_config::AlgorithmFacts;
use flow_registry::NameTaken;

const NAME: &str = "offline-dpo";

/// Offline DPO.
#[derive(Clone, Debug)]
pub struct OfflineDpo {
    settings: OfflineDpoSettings,
}

impl OfflineDpo {
    /// The algorithm with these settings.
    pub fn new(settings: OfflineDpoSettings) -> Self {
        Self { settings }
    }

    /// Adds the algorithm to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is an algorithm of its name.
    pub fn register(registry: &mut AlgorithmRegistry) -> Result<(), NameTaken> {
        let facts = |settings: &OfflineDpoSettings| AlgorithmFacts {
            is_coupled: false,
            inner_epochs: 1,
            copies: usize::from(settings.reference == ReferenceWeights::Snapshot),
        };
        let factory = AlgorithmFactory::new::<OfflineDpoSettings>(
            NAME,
            "Offline DPO (Wallace et al. 2023, arXiv 2311.12908): the pairs of images of `data.kind = \"preferences\"`, without rollouts.",
            facts,
            |_, settings| Ok(Box::new(Self::new(settings))),
        );
        let factory = factory.with_records(RecordKind::Preferences);
        registry.register(factory.with_rules(settings::check))
    }
}

/// Of values `[2 P]` of `P` pairs, each the better image's and then the other's: what the better ones' are above the others', `[P]`.
fn better_less_worse(values_b: Tensor<1>) -> Tensor<1> {
    let [rows] = values_b.dims();
    let pairs: Tensor<2> = values_b.reshape([rows / 2, 2]);
    let difference = pairs.clone().narrow(1, 0, 1) - pairs.narrow(1, 1, 1);
    difference.reshape([rows / 2])
}

impl Algorithm for OfflineDpo {
    fn name(&self) -> &str {
        NAME
    }

    fn paradigm(&self) -> Paradigm {
        Paradigm::Decoupled
    }

    fn records(&self) -> Option<RecordKind> {
        Some(RecordKind::Preferences)
    }

    fn reference(&self) -> Option<ReferenceWeights> {
        Some(self.settings.reference)
    }

    fn inner_epochs(&self) -> usize {
        1
    }

    fn advantage_clip(&self) -> f32 {
        // There are none.
        f32::MAX
    }

    fn shares_noise(&self) -> bool {
        true
    }

    fn positions(&self, _schedule: &Schedule, seed: u64, _iteration: u64, pass: usize) -> Vec<LossPoint> {
        self.settings.train_timesteps.positions(seed, pass)
    }

    /// Rows are pairs below one another, of each the better image first.
    fn loss(&self, context: &LossContext<'_, '_>, position: LossPoint) -> PointLoss {
        // Both images of a pair have the time of the better one, as they have its noise.
        let samples = &context.batch.samples;
        let addresses: Vec<u64> = (0..samples.len()).map(|row| samples[row - row % 2]).collect();
        let forward = Forward::of_rows(context, position, &self.settings.train_timesteps, &addresses);
        let reference = context.reference;
        let reference = reference.expect("the loop provides the reference an algorithm asks for");
        let v = forward.velocity_unguided(context, |call| context.pass.exec(call));
        let v_ref = forward.velocity_unguided(context, |call| reference.exec(call));
        let excess = forward.error(context, v) - detached(&forward.error(context, v_ref));
        let z = better_less_worse(excess) * (-0.5 * self.settings.beta) as f32;
        preference_loss(z)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow_core::cpu;
    use flow_core::device::ComputeDevice;

    #[test]
    fn pairs_stand_below_one_another() {
        let values = vec![0.30, 0.42, 7.0, 5.5, -1.0, 1.0];
        let tensor = ComputeDevice::cpu().tensor(values, [6]);
        let found = cpu::to_host(&better_less_worse(tensor).into_dispatch());
        for (found, expected) in found.iter().zip([-0.12, 1.5, -2.0]) {
            assert!((found - expected).abs() < 1e-6, "{found} and {expected}");
        }
        assert_eq!(found.len(), 3);
    }
}
