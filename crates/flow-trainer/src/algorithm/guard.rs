//! GRPO-Guard (Wang et al. 2025, arXiv:2510.22319): the log-ratio centred and scaled so that its variance does not
//! depend on the step.
//!
//! `q = sqrt(-dt) · s`, `r = exp((log p - log p_old) · q + mean((mu - mu_old)²) / (2 q))`, then the clip of GRPO.
//! Flow-Factory `trainers/grpo.py`, lines 501 to 510; the division of the loss by `-dt` is in the official flow_grpo
//! and left out by Flow-Factory, hence a setting.

use super::grpo::{facts, finish, recorded_positions, replay};
use super::reference::check_clip_range;
use super::{
    Algorithm, AlgorithmFactory, AlgorithmRegistry, Grpo, KlConfig, LossContext, LossPoint, PointLoss,
    ReferenceWeights,
};
use crate::scheduler::Schedule;
use burn::tensor::Tensor;
use flow_accel::Paradigm;
use flow_registry::NameTaken;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const NAME: &str = "grpo-guard";

/// GRPO-Guard, `kind = "grpo-guard"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GrpoGuard {
    /// Ratio is clipped to `[1 + lo, 1 + hi]`, with `-1 < lo <= 0 <= hi`.
    #[schemars(inner(range(min = -0.999_999, max = 1000.0)))]
    pub clip_range: [f64; 2],
    /// Advantages are clamped to plus or minus this.
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0.0))]
    pub advantage_clip: f64,
    /// Pull towards a reference model.
    pub kl: KlConfig,
    /// Passes over the images of one rollout.
    #[schemars(range(min = 1, max = 1000))]
    pub inner_epochs: usize,
    /// Divide the loss of a step by its `-dt`, as the official code does (Flow-Factory leaves it out).
    pub reweight: bool,
}

impl Default for GrpoGuard {
    fn default() -> Self {
        let Grpo {
            clip_range,
            advantage_clip,
            kl,
            inner_epochs,
            step_weights: _,
        } = Grpo::default();
        Self {
            clip_range,
            advantage_clip,
            kl,
            inner_epochs,
            reweight: true,
        }
    }
}

impl GrpoGuard {
    /// Adds the algorithm to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is an algorithm of its name.
    pub fn register(registry: &mut AlgorithmRegistry) -> Result<(), NameTaken> {
        let factory = AlgorithmFactory::new::<Self>(
            NAME,
            "GRPO-Guard (Wang et al. 2025, arXiv 2510.22319): the log-ratio is centred and scaled per step. Coupled.",
            |guard| facts(&guard.kl, guard.inner_epochs),
            |_, guard| Ok(Box::new(guard)),
        );
        registry.register(factory.with_rules(|guard: &Self, rules, path| {
            check_clip_range(guard.clip_range, rules, path);
            guard.kl.check(rules, &format!("{path}.kl"));
        }))
    }
}

impl Algorithm for GrpoGuard {
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
        finish(
            context,
            &replayed,
            ratio,
            self.clip_range,
            weight as f32,
            &self.kl,
        )
    }
}
