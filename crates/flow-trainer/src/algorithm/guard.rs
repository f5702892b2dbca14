//! GRPO-Guard (Wang et al. 2025, arXiv:2510.22319): the log-ratio centred and scaled so that its variance does not
//! depend on the step.
//!
//! `q = sqrt(-dt) · s`, `r = exp((log p - log p_old) · q + mean((mu - mu_old)²) / (2 q))`, then the clip of GRPO.
//! Flow-Factory `trainers/grpo.py`, lines 501 to 510; the division of the loss by `-dt` is in the official flow_grpo
//! and left out by Flow-Factory, hence a setting.

use super::grpo::{finish, recorded_positions, replay};
use super::{Algorithm, Kl, LossContext, Position, ReferenceWeights, UnitLoss};
use crate::scheduler::Schedule;
use burn::tensor::Tensor;
use flow_accel::Paradigm;

/// GRPO-Guard's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct GrpoGuard {
    /// `lo`, `hi` of the clip range, around 0.
    pub clip_range: (f32, f32),
    /// Bound on advantages.
    pub advantage_clip: f32,
    /// Pull towards a reference.
    pub kl: Option<Kl>,
    /// Passes over one rollout.
    pub inner_epochs: usize,
    /// Divide a step's loss by its `-dt`.
    pub reweight: bool,
}

impl Algorithm for GrpoGuard {
    const NAME: &'static str = "grpo-guard";
    const PARADIGM: Paradigm = Paradigm::Coupled;

    fn reference(&self) -> Option<ReferenceWeights> {
        self.kl.map(|kl| kl.reference)
    }

    fn inner_epochs(&self) -> usize {
        self.inner_epochs
    }

    fn advantage_clip(&self) -> f32 {
        self.advantage_clip
    }

    fn positions(&self, schedule: &Schedule, _seed: u64, iteration: u64, _pass: usize) -> Vec<Position> {
        recorded_positions(schedule, iteration)
    }

    fn loss(&self, context: &LossContext<'_, '_>, position: Position) -> UnitLoss {
        let replayed = replay(context, position);
        let step = &replayed.record.step;
        let q = step.guard_scale();
        let old = Tensor::from_dispatch(replayed.record.log_prob.clone());
        let mean = replayed.mean_bn.clone().into_dispatch();
        let drift = context
            .kernels
            .ops()
            .loss
            .mean_squared_distance(&mean, &replayed.record.mean);
        let drift: Tensor<1> = Tensor::from_dispatch(drift);
        let ratio = ((replayed.log_prob_b.clone() - old) * q as f32 + drift * (0.5 / q) as f32).exp();
        let weight = if self.reweight { 1.0 / -step.dt } else { 1.0 };
        finish(context, &replayed, ratio, self.clip_range, weight as f32, self.kl)
    }
}
