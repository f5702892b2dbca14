//! A model with its guidance: what a rollout samples from and a loss differentiates.
//!
//! Legend: `B` samples, `N` values of one latent. Classifier-free guidance (Ho and Salimans 2022, arXiv:2207.12598)
//! runs both branches as one batch of `2 B` rows, conditional rows first, in the rollout and in the loss alike.

use burn::tensor::Tensor;
use flow_core::{CallContext, Condition, Exec, FlowModel, ModelInput, RowKey, Stage, TrajectoryId};
use flow_pipeline::GuidanceRule;
use std::sync::Arc;

/// Conditional and, under guidance, unconditional inputs of a batch.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// What to generate.
    pub conditional: Condition,
    /// The empty condition; absent without guidance.
    pub unconditional: Option<Condition>,
    /// What determines each row, if that is known.
    pub keys: Option<ConditionKeys>,
}

/// Bytes that determine conditions, for instance tokens: rows with the same bytes have the same condition.
#[derive(Clone, Debug)]
pub struct ConditionKeys {
    /// One entry per conditional row.
    pub conditional: Vec<Arc<[u8]>>,
    /// The empty condition's.
    pub unconditional: Arc<[u8]>,
}

/// A flow model and how strongly it is guided.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The model.
    pub model: Arc<dyn FlowModel>,
    /// How far beyond the unconditional branch; 1 means no guidance and a batch of `B` rows.
    pub guidance_scale: f32,
    /// What becomes of the velocities of both branches, in rollout and loss alike.
    pub guidance: GuidanceRule,
}

/// Where in a run a call stands.
#[derive(Clone, Copy, Debug)]
pub struct CallSite {
    /// The stage.
    pub stage: Stage,
    /// Iteration of the run.
    pub iteration: u64,
    /// Step of the sampler.
    pub step: u32,
    /// Steps of the sampler.
    pub steps: u32,
    /// Whether the step is stochastic.
    pub stochastic: bool,
    /// Noise level of all rows; absent until a step is chosen.
    pub sigma: Option<f64>,
}

impl Policy {
    /// `model` under `guidance_scale`, by the rule of the pipeline that it is of ([`GuidanceRule::of`]).
    pub fn new(model: Arc<dyn FlowModel>, guidance_scale: f32) -> Self {
        let guidance = GuidanceRule::of(model.spec());
        Self {
            model,
            guidance_scale,
            guidance,
        }
    }

    /// The policy under another guidance scale, with `conditions` for it: classifier-free guidance by that scale, or, of a model that
    /// embeds its scale, the same policy that is told that one.
    pub fn under(&self, scale: f32, conditions: &Conditions) -> (Self, Conditions) {
        if !self.model.spec().guidance {
            let policy = Self {
                guidance_scale: scale,
                ..self.clone()
            };
            return (policy, conditions.clone());
        }
        let told = |condition: &Condition| {
            let guidance = condition.guidance.as_ref();
            Condition {
                guidance: guidance.map(|it| Tensor::full(it.dims(), scale, (&it.device(), it.dtype()))),
                ..condition.clone()
            }
        };
        let conditions = Conditions {
            conditional: told(&conditions.conditional),
            unconditional: conditions.unconditional.as_ref().map(told),
            // Rows of the same prompt under another scale are others.
            keys: None,
        };
        (self.clone(), conditions)
    }

    /// Whether calls have an unconditional branch.
    pub fn is_guided(&self) -> bool {
        self.guidance_scale != 1.0
    }

    /// The context of a call on `samples`.
    pub fn call(&self, site: CallSite, samples: &[u64]) -> CallContext {
        let trajectory = |conditional| {
            move |sample: &u64| TrajectoryId {
                sample: *sample,
                conditional,
            }
        };
        let mut trajectories: Vec<TrajectoryId> = samples.iter().map(trajectory(true)).collect();
        if self.is_guided() {
            trajectories.extend(samples.iter().map(trajectory(false)));
        }
        let CallSite {
            stage,
            iteration,
            step,
            steps,
            stochastic,
            sigma,
        } = site;
        CallContext {
            stage,
            iteration,
            step,
            steps,
            sigma,
            stochastic,
            trajectories: trajectories.into(),
        }
    }

    /// What is known of the rows of a call: conditions, the noise level of `exec`'s call, and `latents`, one number per
    /// sample, the same for those whose latents are the same bits. Conditional rows first.
    fn row_keys(&self, exec: &Exec<'_>, conditions: &Conditions, latents: Option<&[u64]>) -> Vec<RowKey> {
        let Some(keys) = &conditions.keys else {
            return Vec::new();
        };
        let sigma = exec.call().sigma.map(|sigma| (sigma as f32).to_bits());
        // Models for several sizes share their weights, and what is computed of a text may depend on the size.
        let latent = self.model.spec().latent;
        let size = [latent.frames, latent.height, latent.width].map(|side| side as u32);
        let size: Vec<u8> = size.into_iter().flat_map(u32::to_le_bytes).collect();
        let key = |(row, condition): (usize, &Arc<[u8]>)| RowKey {
            condition: Some([&condition[..], &size[..]].concat().into()),
            sigma,
            latent: latents.map(|latents| latents[row]),
        };
        let mut rows: Vec<RowKey> = keys.conditional.iter().enumerate().map(key).collect();
        if self.is_guided() && conditions.unconditional.is_some() {
            let empty = std::iter::repeat_n(&keys.unconditional, rows.len()).enumerate();
            rows.extend(empty.map(key));
        }
        rows
    }

    /// The guided velocity at `x_BN`, `sigma_B`. `sigma_B` holds the noise level of `exec`'s call, if that has one.
    pub fn velocity(
        &self,
        exec: &Exec<'_>,
        x_bn: Tensor<2>,
        sigma_b: Tensor<1>,
        conditions: &Conditions,
    ) -> Tensor<2> {
        self.velocity_of(exec, x_bn, sigma_b, conditions, None)
    }

    /// As [`velocity`](Self::velocity), with one number per sample in `latents`: the same for samples whose latents are
    /// the same bits.
    pub fn velocity_of(
        &self,
        exec: &Exec<'_>,
        x_bn: Tensor<2>,
        sigma_b: Tensor<1>,
        conditions: &Conditions,
        latents: Option<&[u64]>,
    ) -> Tensor<2> {
        let rows = self.row_keys(exec, conditions, latents);
        let exec = &exec.clone().with_rows(rows.into());
        let condition = conditions.conditional.clone();
        let Some(empty) = conditions.unconditional.clone().filter(|_| self.is_guided()) else {
            return exec.velocity(
                &*self.model,
                ModelInput {
                    x: x_bn,
                    sigma: sigma_b,
                    condition,
                },
            );
        };
        let [batch, _] = x_bn.dims();
        let input = ModelInput {
            x: Tensor::cat(vec![x_bn.clone(), x_bn], 0),
            sigma: Tensor::cat(vec![sigma_b.clone(), sigma_b], 0),
            condition: condition.stacked(empty),
        };
        let both = exec.velocity(&*self.model, input);
        let conditional = both.clone().narrow(0, 0, batch);
        let unconditional = both.narrow(0, batch, batch);
        self.guidance
            .combine(conditional, unconditional, self.guidance_scale)
    }
}
