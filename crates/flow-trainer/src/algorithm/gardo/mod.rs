//! GARDO (He et al. 2025, arXiv:2512.24138): GRPO whose advantages favour images unlike the others of their group, and whose pull towards a
//! recent copy of the weights is for images of doubtful rewards alone.
//!
//! Formulas as in flow_grpo `scripts/train_sd3_gardo.py` and `stat_tracking.py` (94e23ee):
//!
//! ```text
//! A = (R - mean R) w                      w = 1 where R < mean R, else d / mean d over the group, d the distance to the nearest other image
//! L = mean(max(-A r, -A clamp(r))) + beta mean over gated images of mean((mu - mu_old)²) / (2 s²)
//! ```
//!
//! `mu_old` is the mean under a copy that becomes the trained weights where they have moved far from it, or after some iterations.
//!
//! The mean over gated images is over all of an iteration, each of which counts the same however they fall into micro-batches, optimizer
//! steps and processes. flow_grpo takes it within a micro-batch and then over micro-batches, where one without any counts as 0: a gated
//! image there counts the more the fewer others it met.

mod gate;
mod settings;

pub use settings::{GardoSettings, GateConfig, RenewalConfig, Suspects};

use super::grpo::{clipped_loss, distance_per_row, facts, recorded_positions, replay, with_reference};
use super::{
    Algorithm, AlgorithmFactory, AlgorithmRegistry, KlConfig, KlKind, LossContext, LossPoint, Memory,
    PointLoss, ReferenceWeights, RewardedRows, RowWeights, SlowCopy, mean_over_rows,
};
use crate::advantage::moments;
use crate::error::TrainError;
use crate::scheduler::Schedule;
use burn::tensor::Tensor;
use flow_accel::Paradigm;
use flow_config::AlgorithmFacts;
use flow_core::tensors::plain;
use flow_registry::NameTaken;
use gate::{Gate, uncertainty};
use std::collections::BTreeMap;

const NAME: &str = "gardo";

/// Name under which the number of iterations with the same reference is kept.
const AGE: &str = "reference/iterations";

/// GARDO, `kind = "gardo"`.
#[derive(Clone, Debug, PartialEq)]
pub struct Gardo {
    settings: GardoSettings,
}

impl Gardo {
    /// With these settings.
    pub fn new(settings: GardoSettings) -> Self {
        Self { settings }
    }

    /// Adds the algorithm to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is an algorithm of its name.
    pub fn register(registry: &mut AlgorithmRegistry) -> Result<(), NameTaken> {
        let factory = AlgorithmFactory::new::<GardoSettings>(
            NAME,
            "GARDO (He et al. 2025, arXiv 2512.24138): diverse images count more, those of doubtful rewards are held back. Coupled.",
            |settings| AlgorithmFacts {
                copies: usize::from(settings.is_gated()),
                ..facts(&KlConfig::default(), settings.inner_epochs)
            },
            |_, settings| Ok(Box::new(Self::new(settings))),
        );
        registry.register(factory.with_rules(settings::check))
    }

    /// What each image is pulled towards the reference, `[B]`, times how much it counts: the mean over all images of the iteration is that
    /// over the gated ones. Without gates, as in an audit, all count alike.
    fn pull(&self, context: &LossContext<'_, '_>, replayed: &super::grpo::Replayed<'_>) -> Tensor<1> {
        let old = context
            .old
            .expect("the loop provides the copy an algorithm keeps");
        let policy = (context.policy, &context.batch.conditions);
        let distance_b = distance_per_row(context, replayed, (KlKind::Divergence, old), policy);
        match &context.gates {
            Some(gates_b) => distance_b * gates_b.clone(),
            None => distance_b,
        }
    }
}

/// Advantages of images whose rewards are `rewards`, and whose distances to the nearest other image of their groups are `diversity`:
/// `(R - mean R) w`, without a division by a standard deviation.
fn advantages(rewards: &[f64], groups: &[u64], diversity: Option<&[f64]>) -> Vec<f64> {
    let mut members: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (image, group) in groups.iter().enumerate() {
        members.entry(*group).or_default().push(image);
    }
    let mut advantages = vec![0.0; rewards.len()];
    for members in members.values() {
        let mean_of = |values: &[f64]| {
            let of_group: Vec<f64> = members.iter().map(|image| values[*image]).collect();
            moments(&of_group).0
        };
        let (mean, spread) = (mean_of(rewards), diversity.map(mean_of));
        for &image in members {
            let better = rewards[image] - mean;
            let weight = match (diversity, spread) {
                (Some(diversity), Some(spread)) if better >= 0.0 => {
                    // All images of the group are the same.
                    if spread > 0.0 {
                        diversity[image] / spread
                    } else {
                        0.0
                    }
                }
                _ => 1.0,
            };
            advantages[image] = better * weight;
        }
    }
    advantages
}

impl Algorithm for Gardo {
    fn name(&self) -> &str {
        NAME
    }

    fn paradigm(&self) -> Paradigm {
        Paradigm::Coupled
    }

    fn reference(&self) -> Option<ReferenceWeights> {
        None
    }

    fn inner_epochs(&self) -> usize {
        self.settings.inner_epochs
    }

    fn advantage_clip(&self) -> f32 {
        self.settings.advantage_clip as f32
    }

    fn positions(&self, schedule: &Schedule, _seed: u64, iteration: u64, _pass: usize) -> Vec<LossPoint> {
        recorded_positions(schedule, iteration)
    }

    fn keeps(&self, copy: SlowCopy) -> bool {
        copy == SlowCopy::Old && self.settings.is_gated()
    }

    fn weigh(&self, rows: &RewardedRows<'_>, memory: &mut Memory) -> Result<Option<RowWeights>, TrainError> {
        let values = |key: &str, name: &str| {
            rows.values(name).ok_or_else(|| {
                TrainError::setting(format!(
                    "`algorithm.{key}` names a reward `{name}`, and no reward is called so"
                ))
                .about(format!("algorithm.{key}"))
            })
        };
        let settings = &self.settings;
        let diversity = settings.diversity().map(|name| values("diversity", name));
        let diversity = diversity.transpose()?;
        let total = rows.total();
        let advantages = advantages(&total, rows.groups, diversity.as_deref());
        let mut weights = RowWeights {
            advantages: advantages.into_iter().map(|value| value as f32).collect(),
            gates: Vec::new(),
            metrics: Vec::new(),
        };
        if let Some(diversity) = &diversity {
            weights.metrics.push(("diversity", moments(diversity).0));
        }
        if settings.is_gated() {
            let judges = settings.judges.iter().map(|name| values("judges", name));
            let judges: Vec<Vec<f64>> = judges.collect::<Result<_, _>>()?;
            let uncertainty = uncertainty(&total, &judges, settings.gate.suspects);
            let gate = Gate::of(&uncertainty, &settings.gate, memory);
            weights.gates = gate.weights();
            weights.metrics.push(("gate_share", gate.share));
            weights.metrics.push(("gated_fraction", gate.fraction()));
            weights.metrics.push(("uncertainty", gate.uncertainty));
        }
        Ok(Some(weights))
    }

    fn renews(&self, copy: SlowCopy, logged: &dyn Fn(&str) -> Option<f64>, memory: &mut Memory) -> bool {
        if !self.keeps(copy) {
            return false;
        }
        let renewal = &self.settings.renewal;
        let age = memory.get(AGE).first().copied().unwrap_or(0.0) + 1.0;
        let is_far = logged("kl").is_some_and(|divergence| divergence > renewal.divergence);
        let renews = is_far || age >= renewal.iterations as f64;
        memory.set(AGE, vec![if renews { 0.0 } else { age }]);
        renews
    }

    fn loss(&self, context: &LossContext<'_, '_>, position: LossPoint) -> PointLoss {
        let replayed = replay(context, position);
        let old = Tensor::from_dispatch(replayed.record.log_prob.clone());
        let ratio = (replayed.log_prob_b.clone() - old).exp();
        let (policy_b, decided_b) = clipped_loss(
            ratio.clone(),
            context.advantages.clone(),
            self.settings.clip_range,
        );
        let trained = &context.batch.trained;
        let weight = self.settings.step_weights.of(&replayed.record.step, trained) as f32;
        let policy = mean_over_rows(policy_b) * weight;
        let terms = vec![("clip_fraction", decided_b.into_dispatch())];
        // Its own pull is below.
        let mut loss_term = with_reference(context, &replayed, ratio, policy, terms, &KlConfig::default());
        if self.settings.is_gated() {
            let pull_b = self.pull(context, &replayed);
            loss_term
                .terms
                .push(("kl", plain(&pull_b.clone().into_dispatch())));
            loss_term.loss = loss_term.loss + mean_over_rows(pull_b) * self.settings.kl_beta as f32;
        }
        loss_term
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_images_count_by_how_unlike_the_others_they_are() {
        let groups = [7, 7, 7];
        let found = advantages(&[1.0, 2.0, 3.0], &groups, Some(&[0.3, 0.2, 0.4]));
        for (found, expected) in found.iter().zip([-1.0, 0.0, 4.0 / 3.0]) {
            assert!((found - expected).abs() < 1e-12, "{found} and {expected}");
        }
        assert_eq!(advantages(&[1.0, 2.0, 3.0], &groups, None), [-1.0, 0.0, 1.0]);
        // The best image twice, in a group that does not lie together.
        let found = advantages(
            &[1.0, 4.0, 4.0, 5.0, 4.0],
            &[3, 3, 3, 9, 9],
            Some(&[0.6, 0.0, 0.0, 0.5, 0.5]),
        );
        assert_eq!(found, [-2.0, 0.0, 0.0, 0.5, -0.5]);
        // Of images that are all the same nothing counts.
        assert_eq!(advantages(&[2.0, 2.0], &[1, 1], Some(&[0.0, 0.0])), [0.0, 0.0]);
    }

    #[test]
    fn the_reference_is_renewed_where_the_weights_are_far_from_it_or_it_is_old() {
        let gardo = Gardo::new(GardoSettings {
            renewal: RenewalConfig {
                divergence: 0.5,
                iterations: 3,
            },
            ..GardoSettings::default()
        });
        let mut memory = Memory::default();
        let renewed: Vec<bool> = [0.1, 0.1, 0.1, 0.6, 0.5, 0.5, 0.1, 0.1]
            .iter()
            .map(|divergence| {
                let logged = |name: &str| (name == "kl").then_some(*divergence);
                gardo.renews(SlowCopy::Old, &logged, &mut memory)
            })
            .collect();
        assert_eq!(renewed, [false, false, true, true, false, false, true, false]);
        assert!(!gardo.renews(SlowCopy::Sampling, &|_| Some(9.0), &mut memory));
    }
}
