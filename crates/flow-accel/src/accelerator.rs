//! What an accelerator is, and what can go wrong with one.

use crate::{AcceleratorStage, Slot};
use flow_core::Plan;
use std::fmt::Debug;

/// Something that makes the same model faster or smaller by answering some of its requests in another way.
///
/// An accelerator is built from its parameters, and then transforms a [`Plan`]: it replaces, or wraps, the attention
/// backend, the kernels, the region engine or the stack driver. It sees neither model nor trainer. State between steps
/// belongs into what it puts into the plan, keyed by lane and step.
pub trait Accelerator: Debug + Send + Sync {
    /// Name in configs, logs and manifests; as registered.
    fn name(&self) -> &str;

    /// The parts of an iteration it is made for.
    fn stage(&self) -> AcceleratorStage;

    /// Whether results under it are the same bits in rollout and training, given its parameters and the plan that it
    /// is about to transform. If unsure: `false`.
    fn lossless(&self, plan: &Plan) -> bool;

    /// The plan with this accelerator in force.
    ///
    /// # Errors
    /// [`Refusal`] if it would do nothing, or cannot do what its parameters say, with this plan. An accelerator never
    /// returns the plan unchanged in silence.
    fn apply(&self, plan: Plan) -> Result<Plan, Refusal>;
}

/// Why an accelerator will not be in force, and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}. {help}")]
pub struct Refusal {
    /// The reason, in the user's names and values, without a full stop.
    pub why: String,
    /// What to change.
    pub help: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(why: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            help: help.into(),
        }
    }
}

/// Why an entry of `[acceleration]` cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccelerationError {
    /// No accelerator is registered under this name.
    #[error("there is no accelerator `{asked}`; available: {available}{}", nearest.as_ref().map(|name| format!(". The nearest name is `{name}`")).unwrap_or_default())]
    Unknown {
        /// The name asked for.
        asked: String,
        /// The registered names, or `none`.
        available: String,
        /// The registered name most like it, if any is registered.
        nearest: Option<String>,
    },
    /// The parameters are not those of the accelerator.
    #[error("parameters of the accelerator `{name}`: {message}")]
    Params {
        /// The accelerator.
        name: String,
        /// What is wrong with which parameter.
        message: String,
    },
    /// The accelerator refused its parameters or the plan.
    #[error("the accelerator `{name}` cannot be used: {refusal}")]
    Refused {
        /// The accelerator.
        name: String,
        /// Why.
        refusal: Refusal,
    },
    /// The accelerator is not made for the slot it stands in.
    #[error(
        "the accelerator `{name}` (stage `{stage}`) cannot stand in `acceleration.{slot}`. \
         Move it to `acceleration.{}`", stage.slot()
    )]
    WrongSlot {
        /// The accelerator.
        name: String,
        /// Its stage.
        stage: AcceleratorStage,
        /// Where it stands.
        slot: Slot,
    },
}
