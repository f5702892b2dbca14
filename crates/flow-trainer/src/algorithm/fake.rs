//! The fake score: a second network that learns the velocities of what the student makes, with an optimizer of its own.
//!
//! Legend: `B` rows, `N` values of one latent.

use super::forward::detached;
use super::{LossContext, NetworkPlan, ReferenceWeights};
use crate::policy::{CallSite, Conditions};
use burn::tensor::Tensor;
use flow_config::DistillationFacts;
use flow_core::{CallContext, Exec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Least mean absolute difference that a direction is divided by (Flow-Factory's constant).
const LEAST_DIFFERENCE: f64 = 1e-6;

/// What a run of an algorithm with a fake score has to hold: all steps of a rollout, and that network.
pub(super) const RUN_FACTS: DistillationFacts = DistillationFacts {
    step_range: [0.0, 1.0],
    adapters: 0,
    models: 0,
    networks: 1,
};

/// `[algorithm.fake_score]`: how the network learns that follows what the student makes. It begins as the student does, and what of
/// `[optimizer]` does not stand here is its own, too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FakeScoreConfig {
    /// Its optimizer steps before each of the student's.
    #[schemars(range(min = 1, max = 1000))]
    pub updates: usize,
    /// Its learning rate.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
    pub learning_rate: f64,
    /// Decays of its moments.
    #[schemars(inner(range(min = 0.0, max = 0.999_999)))]
    pub betas: [f64; 2],
}

impl Default for FakeScoreConfig {
    fn default() -> Self {
        Self {
            updates: 5,
            learning_rate: 1e-5,
            betas: [0.9, 0.999],
        }
    }
}

impl From<&FakeScoreConfig> for NetworkPlan {
    fn from(config: &FakeScoreConfig) -> Self {
        Self {
            updates: config.updates,
            learning_rate: config.learning_rate,
            betas: config.betas,
            keeps_slow: false,
        }
    }
}

/// What the frozen teacher and the fake score make of noisy points around what the student made, both without a graph.
pub(super) struct Scores {
    /// What the teacher makes of the points, `x_s - s v`, `[B, N]`.
    pub real_bn: Tensor<2>,
    /// What the fake score makes of them, `[B, N]`.
    pub fake_bn: Tensor<2>,
}

impl Scores {
    /// At the points `x_bn` of noise levels `sigmas`, one per row; the teacher under `guidance_scale`, without one that of the rollout, the
    /// fake score under none.
    pub(super) fn at(
        context: &LossContext<'_, '_>,
        x_bn: &Tensor<2>,
        sigmas: &[f64],
        guidance_scale: Option<f64>,
    ) -> Self {
        let guidance_scale = guidance_scale.map_or(context.policy.guidance_scale, |scale| scale as f32);
        let reference = context.reference;
        let reference = reference.expect("the loop provides the reference an algorithm asks for");
        let fake = context
            .fake
            .expect("the loop provides the fake score an algorithm asks for");
        let points = (x_bn, sigmas);
        Self {
            real_bn: image_at_rows(context, points, guidance_scale, |call| reference.exec(call)),
            fake_bn: image_at_rows(context, points, 1.0, |call| fake.exec(call)),
        }
    }
}

/// `max(mean|made - other|, 1e-6)` per row of `[B, N]`, `[B, 1]`.
pub(super) fn size(made_bn: &Tensor<2>, other_bn: &Tensor<2>) -> Tensor<2> {
    let difference_b1 = (made_bn.clone() - other_bn.clone()).abs().mean_dim(1);
    difference_b1.clamp_min(LEAST_DIFFERENCE)
}

/// Points around `clean_bn` at noise levels of each row's own, `[B, N]`, and their noise.
pub(super) fn noisy(
    context: &LossContext<'_, '_>,
    clean_bn: &Tensor<2>,
    sigmas: &[f64],
) -> (Tensor<2>, Tensor<2>) {
    let noise = context
        .noise
        .clone()
        .expect("the loop draws the noise of a position");
    let noise_bn = Tensor::<2>::from_dispatch(noise);
    let sigma_b1 = column(context, sigmas);
    let x_bn = clean_bn.clone() * (sigma_b1.clone().neg() + 1.0) + noise_bn.clone() * sigma_b1;
    (x_bn, noise_bn)
}

/// What a model makes of points `[B, N]` at noise levels of each row's own, `x_s - s v`, without a graph; through the context that `open`
/// makes of the call.
pub(super) fn image_at_rows<'w>(
    context: &LossContext<'_, '_>,
    (x_bn, sigmas): (&Tensor<2>, &[f64]),
    guidance_scale: f32,
    open: impl FnOnce(CallContext) -> Exec<'w>,
) -> Tensor<2> {
    let velocity_bn = velocity_at_rows(context, x_bn.clone(), sigmas, guidance_scale, open);
    x_bn.clone() - detached(&velocity_bn) * column(context, sigmas)
}

/// The model's velocity `[B, N]` at noise levels of each row's own, through the context that `open` makes of the call.
pub(super) fn velocity_at_rows<'w>(
    context: &LossContext<'_, '_>,
    x_bn: Tensor<2>,
    sigmas: &[f64],
    guidance_scale: f32,
    open: impl FnOnce(CallContext) -> Exec<'w>,
) -> Tensor<2> {
    let (policy, conditions) = context.policy.under(guidance_scale, &context.batch.conditions);
    // Rows of one prompt differ in their noise levels, which the call does not have.
    let conditions = Conditions {
        keys: None,
        ..conditions
    };
    let site = CallSite {
        step: 0,
        stochastic: false,
        sigma: None,
        ..context.site
    };
    let exec = open(policy.call(site, &context.batch.samples));
    let levels: Vec<f32> = sigmas.iter().map(|sigma| *sigma as f32).collect();
    let rows = levels.len();
    let sigma_b: Tensor<1> = context.device.tensor(levels, [rows]);
    policy.velocity(&exec, x_bn, sigma_b, &conditions)
}

/// One number per row as a column, `[B, 1]`.
pub(super) fn column(context: &LossContext<'_, '_>, values: &[f64]) -> Tensor<2> {
    let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
    let rows = values.len();
    context.device.tensor(values, [rows, 1])
}

/// Copies of the trained weights that a run keeps for a frozen teacher.
pub(super) fn copies(reference: ReferenceWeights) -> usize {
    usize::from(reference == ReferenceWeights::Snapshot)
}
