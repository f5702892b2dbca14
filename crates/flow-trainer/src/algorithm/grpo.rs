//! Flow-GRPO (Liu et al. 2025, arXiv:2505.05470): a clipped importance ratio per stochastic step.
//!
//! Formulas as in Flow-Factory `trainers/grpo.py` (clone a0b2bc5), lines 266 to 311:
//! `r = exp(log p - log p_old)`, `L = mean(max(-A r, -A clamp(r, 1 + lo, 1 + hi)))`, plus an optional
//! `beta · mean((v - v_ref)²)` or `beta · mean((mu - mu_ref)²)`; flow_grpo (`scripts/train_sd3.py`, line 895) divides the latter by
//! `2 s²`.

use super::reference::check_clip_range;
use super::{
    Algorithm, AlgorithmFactory, AlgorithmRegistry, KlConfig, KlKind, LossContext, LossPoint, PointLoss,
    ReferenceWeights, StepWeights, mean_over_rows,
};
use crate::audit::{Distribution, ReplayedStep};
use crate::policy::{CallSite, Conditions, Policy};
use crate::rollout::{StepRecord, coefficient_rows};
use crate::scheduler::Schedule;
use burn::backend::DispatchTensor;
use burn::tensor::Tensor;
use flow_accel::Paradigm;
use flow_config::AlgorithmFacts;
use flow_core::ops::SdeStep;
use flow_core::tensors::plain;
use flow_core::{CallContext, Exec, InferencePass, RawTensor};
use flow_registry::NameTaken;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const NAME: &str = "grpo";

/// Flow-GRPO, `kind = "grpo"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Grpo {
    /// Ratio is clipped to `[1 + lo, 1 + hi]`. Log-probabilities are means over the elements of a latent, so the
    /// range is small. `-1 < lo <= 0 <= hi`.
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
    /// How much each step of a trajectory counts in the policy term.
    pub step_weights: StepWeights,
}

impl Default for Grpo {
    fn default() -> Self {
        Self {
            clip_range: [-1e-4, 1e-4],
            advantage_clip: 5.0,
            kl: KlConfig::default(),
            inner_epochs: 1,
            step_weights: StepWeights::None,
        }
    }
}

impl Grpo {
    /// Adds the algorithm to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is an algorithm of its name.
    pub fn register(registry: &mut AlgorithmRegistry) -> Result<(), NameTaken> {
        let factory = AlgorithmFactory::new::<Self>(
            NAME,
            "Flow-GRPO (Liu et al. 2025, arXiv 2505.05470): clipped ratio of log-probabilities; with windows, branches and weights of steps \
             MixGRPO, TempFlow-GRPO, BranchGRPO and Flash-GRPO. Coupled.",
            |grpo| facts(&grpo.kl, grpo.inner_epochs),
            |_, grpo| Ok(Box::new(grpo)),
        );
        registry.register(factory.with_rules(|grpo: &Self, rules, path| {
            check_clip_range(grpo.clip_range, rules, path);
            grpo.kl.check(rules, &format!("{path}.kl"));
        }))
    }
}

/// What a clipped algorithm asks of a run.
pub(super) fn facts(kl: &KlConfig, inner_epochs: usize) -> AlgorithmFacts {
    AlgorithmFacts {
        is_coupled: true,
        inner_epochs,
        copies: usize::from(kl.needs() == Some(ReferenceWeights::Snapshot)),
    }
}

/// A recorded step computed again with gradients.
pub(super) struct Replayed<'a> {
    pub record: &'a StepRecord,
    pub velocity_bn: Tensor<2>,
    pub log_prob_b: Tensor<1>,
    pub mean_bn: Tensor<2>,
}

/// Computes a recorded step again, through the same kernels, on the same batch.
pub(super) fn replay<'a>(context: &'a LossContext<'_, '_>, position: LossPoint) -> Replayed<'a> {
    let LossPoint::Recorded(index) = position else {
        unreachable!("coupled algorithms take their loss at recorded steps");
    };
    let record = &context.batch.records[index];
    let ours = (context.policy, &context.batch.conditions);
    let velocity_bn = velocity_at(context, record, ours, |call| context.pass.exec(call));
    let (log_prob_b, mean_bn) = distribution_at(context, record, &velocity_bn);
    Replayed {
        record,
        velocity_bn,
        log_prob_b,
        mean_bn,
    }
}

/// The velocity `[B, N]` of a policy under its conditions at a recorded step, through the context that `open` makes of the call.
pub(super) fn velocity_at<'w>(
    context: &LossContext<'_, '_>,
    record: &StepRecord,
    (policy, conditions): (&Policy, &Conditions),
    open: impl FnOnce(CallContext) -> Exec<'w>,
) -> Tensor<2> {
    let batch = context.batch.samples.len();
    let site = CallSite {
        step: record.step.step as u32,
        stochastic: record.step.is_stochastic(),
        sigma: Some(record.step.sigma),
        ..context.site
    };
    let exec = open(policy.call(site, &context.batch.samples));
    let sigma = context
        .device
        .tensor(vec![record.step.sigma as f32; batch], [batch]);
    let x = Tensor::from_dispatch(record.x.clone());
    policy.velocity(&exec, x, sigma, conditions)
}

/// Log-probability `[B]` of what a recorded step came to, and mean `[B, N]`, had its velocity been this one.
fn distribution_at(
    context: &LossContext<'_, '_>,
    record: &StepRecord,
    velocity_bn: &Tensor<2>,
) -> (Tensor<1>, Tensor<2>) {
    let coefficients = coefficient_rows(context.device, &record.step, context.batch.samples.len());
    let velocity = velocity_bn.clone().into_dispatch();
    let (log_prob, mean) = context.kernels.ops().loss.sde_log_prob(
        SdeStep {
            x: &record.x,
            v: &velocity,
            coefficients: &coefficients,
        },
        &record.x_next,
    );
    (Tensor::from_dispatch(log_prob), Tensor::from_dispatch(mean))
}

/// `mean(max(-A r, -A clamp(r)))` and the share of rows in which the clip decides.
pub(super) fn clipped_loss(
    ratio_b: Tensor<1>,
    advantages_b: Tensor<1>,
    clip_range: [f64; 2],
) -> (Tensor<1>, Tensor<1>) {
    let [low, high] = clip_range.map(|bound| 1.0 + bound as f32);
    let clamped = ratio_b.clone().clamp(low, high);
    let unclipped = ratio_b * advantages_b.clone().neg();
    let clipped = clamped * advantages_b.neg();
    let decided = clipped
        .clone()
        .inner_or_self()
        .greater(unclipped.clone().inner_or_self())
        .float();
    (unclipped.max_pair(clipped), decided)
}

/// Values without graph, whichever the tensor has.
trait InnerOrSelf {
    fn inner_or_self(self) -> Self;
}

impl<const D: usize> InnerOrSelf for Tensor<D> {
    fn inner_or_self(self) -> Self {
        Tensor::from_dispatch(plain(&self.into_dispatch()))
    }
}

/// The pull towards the reference per row, `[B]`, unscaled.
pub(super) fn kl_per_row(context: &LossContext<'_, '_>, replayed: &Replayed<'_>, kl: &KlConfig) -> Tensor<1> {
    let reference = context
        .reference
        .expect("the loop provides the reference an algorithm asks for");
    let conditions = &context.batch.conditions;
    let own = kl
        .guidance()
        .map(|scale| context.policy.under(scale as f32, conditions));
    let policy = match &own {
        Some((policy, conditions)) => (policy, conditions),
        None => (context.policy, conditions),
    };
    distance_per_row(context, replayed, (kl.kind, reference), policy)
}

/// How far a recorded step is from that under other weights, per row, `[B]`; these have the guidance and the conditions of `policy`.
pub(super) fn distance_per_row(
    context: &LossContext<'_, '_>,
    replayed: &Replayed<'_>,
    (kind, weights): (KlKind, &InferencePass<'_>),
    policy: (&Policy, &Conditions),
) -> Tensor<1> {
    let velocity_bn = velocity_at(context, replayed.record, policy, |call| weights.exec(call));
    let (ours, theirs) = match kind {
        KlKind::None | KlKind::Velocity => (&replayed.velocity_bn, velocity_bn),
        KlKind::Mean | KlKind::Divergence => {
            let (_, mean_bn) = distribution_at(context, replayed.record, &velocity_bn);
            (&replayed.mean_bn, mean_bn)
        }
    };
    let (ours, theirs) = (ours.clone().into_dispatch(), plain(&theirs.into_dispatch()));
    let distance_b = Tensor::from_dispatch(context.kernels.ops().loss.mean_squared_distance(&ours, &theirs));
    match kind {
        KlKind::None | KlKind::Velocity | KlKind::Mean => distance_b,
        KlKind::Divergence => distance_b * (0.5 / replayed.record.step.std_dev.powi(2)) as f32,
    }
}

/// Ratio, losses and terms shared by the clipped algorithms; `weight` multiplies the policy term.
pub(super) fn finish(
    context: &LossContext<'_, '_>,
    replayed: &Replayed<'_>,
    ratio_b: Tensor<1>,
    clip_range: [f64; 2],
    weight: f32,
    kl: &KlConfig,
) -> PointLoss {
    let (policy_b, decided_b) = clipped_loss(ratio_b.clone(), context.advantages.clone(), clip_range);
    let terms = vec![("clip_fraction", decided_b.into_dispatch())];
    let policy = mean_over_rows(policy_b) * weight;
    with_reference(context, replayed, ratio_b, policy, terms, kl)
}

/// The whole loss of a coupled algorithm, of its policy term `[1]`: with the pull towards a reference, what the audit compares, and
/// the terms that are logged.
pub(super) fn with_reference(
    context: &LossContext<'_, '_>,
    replayed: &Replayed<'_>,
    ratio_b: Tensor<1>,
    policy: Tensor<1>,
    mut terms: Vec<(&'static str, RawTensor)>,
    kl: &KlConfig,
) -> PointLoss {
    let values = |tensor: DispatchTensor| plain(&tensor);
    let replayed_step = ReplayedStep {
        ratio: values(ratio_b.into_dispatch()),
        distribution: Some(Distribution {
            log_prob: values(replayed.log_prob_b.clone().into_dispatch()),
            mean: values(replayed.mean_bn.clone().into_dispatch()),
        }),
    };
    let mut loss = policy;
    terms.push(("policy_loss", plain(&loss.clone().into_dispatch())));
    if kl.kind != KlKind::None {
        let distance = mean_over_rows(kl_per_row(context, replayed, kl));
        terms.push(("kl", plain(&distance.clone().into_dispatch())));
        loss = loss + distance * kl.beta as f32;
    }
    PointLoss {
        loss,
        replayed: Some(replayed_step),
        terms,
    }
}

/// Every recorded step of the iteration.
pub(super) fn recorded_positions(schedule: &Schedule, iteration: u64) -> Vec<LossPoint> {
    (0..schedule.trained_steps(iteration).len())
        .map(LossPoint::Recorded)
        .collect()
}

impl Algorithm for Grpo {
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
        let old = Tensor::from_dispatch(replayed.record.log_prob.clone());
        let ratio = (replayed.log_prob_b.clone() - old).exp();
        let trained = &context.batch.trained;
        let weight = self.step_weights.of(&replayed.record.step, trained) as f32;
        finish(context, &replayed, ratio, self.clip_range, weight, &self.kl)
    }
}
