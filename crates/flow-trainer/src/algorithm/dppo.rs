//! DPPO for flow models (arXiv 2606.11025): a mask on the divergence from the sampling policy, in the place of GRPO's clipped ratio.
//!
//! Formulas as in Flow-Factory `trainers/rl/dppo.py`, UniRL `unirl/algorithms/flowdppo.py` (1a7b501), lines 48 to 140, and verl-omni
//! `diffusion_algos.py` (a1139ba), lines 361 to 443:
//!
//! ```text
//! r = exp(log p - log p_old)              D    = mean((mu - mu_old)²) / (2 q²), q the noise's standard deviation
//! L = mean(0 if drop else -A r)           drop = D >= threshold and ((r > 1 and A > 0) or (r < 1 and A < 0))
//! ```
//!
//! A row is dropped if it has left the neighbourhood of the sampling policy and its gradient would lead it farther away.

use super::forward::detached;
use super::grpo::{facts, recorded_positions, replay, with_reference};
use super::{
    Algorithm, AlgorithmFactory, AlgorithmRegistry, KlConfig, LossContext, LossPoint, PointLoss,
    ReferenceWeights, StepWeights, mean_over_rows,
};
use crate::scheduler::{Schedule, StepCoefficients};
use burn::tensor::Tensor;
use flow_accel::Paradigm;
use flow_core::tensors::plain;
use flow_registry::NameTaken;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const NAME: &str = "dppo";

/// DPPO, `kind = "dppo"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Dppo {
    /// How the divergence from the sampling policy is measured.
    pub mask: MaskKind,
    /// Divergence from which on a row is dropped whose gradient leads farther away. Flow-Factory has 1e-6, UniRL and verl-omni 1e-5.
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0.0))]
    pub mask_threshold: f64,
    /// Advantages are clamped to plus or minus this.
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0.0))]
    pub advantage_clip: f64,
    /// Pull towards a reference model.
    pub kl: KlConfig,
    /// Passes over the images of one rollout.
    #[schemars(range(min = 1, max = 1000))]
    pub inner_epochs: usize,
    /// How much each step of a trajectory counts in the policy term.
    pub step_weights: StepWeights,
}

/// How DPPO measures the divergence from the sampling policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MaskKind {
    /// `mean((mu - mu_old)^2) / (2 q^2)`, the Kullback-Leibler divergence per element of two steps with noise `q`.
    #[default]
    Mean,
    /// `mean((mu - mu_old)^2) / 2`, without the division (`add_kl_coefficient = false` of UniRL and verl-omni).
    MeanUnscaled,
    /// `mean((v - v_old)^2)`.
    Velocity,
}

impl MaskKind {
    /// What makes the divergence of `mean((mu - mu_old)²)`. The mean of a step is `a x + b v`, so velocities differ by `1 / b` of what
    /// means differ.
    fn factor(self, step: &StepCoefficients) -> f64 {
        match self {
            Self::Mean => 0.5 / (step.noise * step.noise),
            Self::MeanUnscaled => 0.5,
            Self::Velocity => 1.0 / (step.mean_v * step.mean_v),
        }
    }
}

impl Default for Dppo {
    fn default() -> Self {
        Self {
            mask: MaskKind::Mean,
            mask_threshold: 1e-6,
            advantage_clip: 5.0,
            kl: KlConfig::default(),
            inner_epochs: 1,
            step_weights: StepWeights::None,
        }
    }
}

impl Dppo {
    /// Adds the algorithm to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is an algorithm of its name.
    pub fn register(registry: &mut AlgorithmRegistry) -> Result<(), NameTaken> {
        let factory = AlgorithmFactory::new::<Self>(
            NAME,
            "DPPO (arXiv 2606.11025): a mask on the divergence from the sampling policy, no clip. Coupled.",
            |dppo| facts(&dppo.kl, dppo.inner_epochs),
            |_, dppo| Ok(Box::new(dppo)),
        );
        registry.register(factory.with_rules(|dppo: &Self, rules, path| {
            dppo.kl.check(rules, &format!("{path}.kl"));
        }))
    }
}

/// 1 for each row that counts, 0 for each that is dropped, of plain values `[B]`.
fn kept(
    divergence_b: &Tensor<1>,
    ratio_b: &Tensor<1>,
    advantages_b: &Tensor<1>,
    threshold: f32,
) -> Tensor<1> {
    let beyond = divergence_b.clone().greater_equal_elem(threshold).float();
    let up = ratio_b.clone().greater_elem(1.0).float() * advantages_b.clone().greater_elem(0.0).float();
    let down = ratio_b.clone().lower_elem(1.0).float() * advantages_b.clone().lower_elem(0.0).float();
    (beyond * (up + down)).neg() + 1.0
}

/// `-A r` of each row that counts, 0 of each that is dropped, `[B]`, with the gradient in the log-ratio.
fn counted(log_ratio_b: Tensor<1>, advantages_b: &Tensor<1>, keep_b: &Tensor<1>) -> Tensor<1> {
    // Before the exponential: the ratio of a dropped row may be infinite, and infinity times 0 is not a number.
    (log_ratio_b * keep_b.clone()).exp() * (advantages_b.clone() * keep_b.clone()).neg()
}

impl Algorithm for Dppo {
    fn name(&self) -> &str {
        NAME
    }

    fn paradigm(&self) -> Paradigm {
        Paradigm::Coupled
    }

    fn reference(&self) -> Option<ReferenceWeights> {
        self.kl.needs()
    }

    fn guidance_scales(&self) -> Vec<f64> {
        self.kl.guidance().into_iter().collect()
    }

    fn inner_epochs(&self) -> usize {
        self.inner_epochs
    }

    fn advantage_clip(&self) -> f32 {
        self.advantage_clip as f32
    }

    fn positions(&self, schedule: &Schedule, _seed: u64, iteration: u64, _pass: usize) -> Vec<LossPoint> {
        recorded_positions(schedule, iteration)
    }

    fn loss(&self, context: &LossContext<'_, '_>, position: LossPoint) -> PointLoss {
        let replayed = replay(context, position);
        let (record, advantages) = (replayed.record, &context.advantages);
        let log_ratio = replayed.log_prob_b.clone() - Tensor::from_dispatch(record.log_prob.clone());
        let ratio = detached(&log_ratio).exp();
        let mean = plain(&replayed.mean_bn.clone().into_dispatch());
        let distance = (context.kernels.ops().loss).mean_squared_distance(&mean, &record.mean);
        let divergence = Tensor::<1>::from_dispatch(distance) * self.mask.factor(&record.step) as f32;
        let keep = kept(&divergence, &ratio, advantages, self.mask_threshold as f32);
        let counted = counted(log_ratio, advantages, &keep);
        let weight = self.step_weights.of(&record.step, &context.batch.trained);
        let policy = mean_over_rows(counted) * weight as f32;
        let terms = vec![
            ("divergence", divergence.into_dispatch()),
            ("masked_fraction", (keep.neg() + 1.0).into_dispatch()),
        ];
        with_reference(context, &replayed, ratio, policy, terms, &self.kl)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow_core::cpu;
    use flow_core::device::ComputeDevice;

    fn is_kept(divergence: f32, ratio: f32, advantage: f32, threshold: f32) -> bool {
        let device = ComputeDevice::cpu();
        let one = |value: f32| -> Tensor<1> { device.tensor(vec![value], [1]) };
        let keep = kept(&one(divergence), &one(ratio), &one(advantage), threshold);
        cpu::to_host(&keep.into_dispatch()) == [1.0]
    }

    #[test]
    fn rows_are_dropped_only_beyond_the_threshold_and_on_their_way_out() {
        for (ratio, advantage, kept) in [
            (1.01, 1.0, false),
            (1.01, -1.0, true),
            (0.99, 1.0, true),
            (0.99, -1.0, false),
            (1.0, 1.0, true),
            (1.0, -1.0, true),
            (1.5, 0.0, true),
            (f32::INFINITY, 1.0, false),
        ] {
            assert_eq!(
                is_kept(5e-5, ratio, advantage, 1e-6),
                kept,
                "{ratio}, {advantage}"
            );
            assert!(is_kept(5e-7, ratio, advantage, 1e-6), "{ratio}, {advantage}");
        }
        assert!(!is_kept(0.125, 2.0, 1.0, 0.125), "the threshold itself is beyond");
        assert!(is_kept(0.125, 2.0, 1.0, 0.125_f32.next_up()));
    }

    #[test]
    fn a_row_that_is_dropped_has_no_loss_even_where_its_ratio_is_infinite() {
        let device = ComputeDevice::cpu();
        let tensor = |values: &[f32]| -> Tensor<1> { device.tensor(values.to_vec(), [values.len()]) };
        let log_ratios = [0.01, 0.01, -0.01, -0.01, 200.0];
        let advantages = tensor(&[1.0, -1.0, 1.0, -1.0, 1.0]);
        let log_ratio = tensor(&log_ratios);
        let keep = kept(&tensor(&[5e-5; 5]), &log_ratio.clone().exp(), &advantages, 1e-6);
        let found = cpu::to_host(&counted(log_ratio, &advantages, &keep).into_dispatch());
        let expected = [0.0, 1.010_050_167_1, -0.990_049_833_7, 0.0, 0.0];
        for ((found, expected), log_ratio) in found.iter().zip(expected).zip(log_ratios) {
            assert!(
                (f64::from(*found) - expected).abs() < 2e-6,
                "{log_ratio}: {found}"
            );
        }
    }
}
