//! Why an entry of `[acceleration]` cannot be used.

use crate::{AcceleratorStage, Refusal, Slot};

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
    /// The name was one once, here or in another program.
    #[error("there is no accelerator `{asked}` any more: {why}. {instead}")]
    Removed {
        /// The name asked for.
        asked: String,
        /// What became of it, without a full stop.
        why: String,
        /// What to write instead, ready to paste.
        instead: String,
    },
    /// The parameters are not those of the accelerator.
    #[error("parameters of the accelerator `{name}`: {message}")]
    Params {
        /// The accelerator.
        name: String,
        /// What is wrong with which parameter.
        message: String,
    },
    /// The accelerator refused its parameters, the plan, the model or the weights.
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
    /// The accelerator is in a slot twice.
    #[error("the accelerator `{name}` stands in `acceleration.{slot}` twice. Keep one of the entries")]
    Duplicate {
        /// The accelerator.
        name: String,
        /// The slot.
        slot: Slot,
    },
    /// Two accelerators exclude each other.
    #[error("the accelerators `{name}` and `{other}` exclude each other: {why}. Remove one of them")]
    Conflict {
        /// The one that says so.
        name: String,
        /// The other.
        other: String,
        /// Why, without a full stop.
        why: String,
    },
    /// Two accelerators of a slot stand in the wrong order.
    #[error(
        "the accelerator `{name}` must stand after `{other}` in `acceleration.{slot}`: {why}. Move it down"
    )]
    Order {
        /// The one that must come later.
        name: String,
        /// The one that must come first.
        other: String,
        /// The slot.
        slot: Slot,
        /// Why, without a full stop.
        why: String,
    },
}
