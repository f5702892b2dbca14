//! What an accelerator is.

use crate::{AcceleratorStage, Meter, Refusal, Safety};
use flow_core::{Backends, LowPrecisionRule, ModelSpec, Weights};
use std::fmt::Debug;

/// Something that makes the same model faster or smaller by answering some of its requests in another way.
///
/// An accelerator is built from its parameters, and then transforms a [`Backends`]: it replaces, or wraps, the attention
/// backend, the kernels, the region engine or the stack driver. It sees neither model nor trainer.
///
/// One of stage `both` is set up once, when the weights are those the run starts with, and applied once. One of stage
/// `rollout` is applied anew at the start of every rollout. What it keeps between the steps of a trajectory belongs into
/// what it puts into the plan: that lives exactly as long as the rollout, so there is nothing to reset, and nothing is
/// left behind by an error or a panic.
pub trait Accelerator: Debug + Send + Sync {
    /// Name in configs, logs and manifests; as registered.
    fn name(&self) -> &str;

    /// The parts of an iteration it is made for.
    fn stage(&self) -> AcceleratorStage;

    /// Whether results under it are the same bits in rollout and training, given its parameters and the plan that it
    /// is about to transform.
    fn safety(&self, plan: &Backends) -> Safety;

    /// Names of accelerators that must not be in force beside it, each with the reason.
    fn conflicts(&self) -> &[(&'static str, &'static str)] {
        &[]
    }

    /// Names of accelerators of the same slot that must stand before it if they are there, each with the reason.
    fn after(&self) -> &[(&'static str, &'static str)] {
        &[]
    }

    /// How frozen matrices are stored while it is in force, if it asks for it. Weights are made so before it is
    /// [set up](Self::set_up).
    fn low_precision(&self) -> Option<&LowPrecisionRule> {
        None
    }

    /// Called once, in the order of the config, when weights, average and reference are what the run starts with.
    ///
    /// # Errors
    /// [`Refusal`] if it cannot work with these weights.
    fn set_up(&self, _weights: &Weights) -> Result<(), Refusal> {
        Ok(())
    }

    /// The plan with this accelerator in force.
    ///
    /// # Errors
    /// [`Refusal`] if it would do nothing, or cannot do what its parameters say, with this plan and model. An
    /// accelerator never returns the plan unchanged in silence.
    fn apply(&self, plan: Backends, target: &Target<'_>) -> Result<Backends, Refusal>;

    /// Share of samples, from 0 to 1, that it wants to be taken once more without it, to learn how far its
    /// [predictions](Meter::predict) are from the truth.
    fn audit_share(&self) -> f64 {
        0.0
    }

    /// Predicted and true errors of samples of the last rollout. What is learned here holds from the next rollout on, so that
    /// no sample depends on others of its rollout.
    fn audited(&self, _pairs: &[(f64, f64)]) {}

    /// What it has learned, as words that a checkpoint keeps; empty if it learns nothing.
    fn learned(&self) -> Vec<u64> {
        Vec::new()
    }

    /// Takes back what [`learned`](Self::learned) gave, before it is set up.
    fn restore(&self, _learned: &[u64]) {}

    /// Why nothing may have been counted in a whole iteration, and what to change; without a full stop.
    fn why_idle(&self) -> String {
        "nothing in the run asked for what it answers; remove the entry".into()
    }
}

/// What an accelerator is applied for.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The model.
    pub model: &'a ModelSpec,
    /// Where the accelerator counts what it does.
    pub meter: &'a Meter,
    /// Where those count that were applied to the plan before it. Who answers in their place with what they did once
    /// counts it for them ([`Meter::count_again`]), so that they are not taken for idle.
    pub below: &'a [Meter],
}
