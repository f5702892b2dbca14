//! Why an entry of `[acceleration]` cannot be used.

use crate::{AcceleratorStage, Refusal, Slot};
use flow_registry::{NotFound, Removed, UnknownName};
use std::fmt;

/// Why an entry of `[acceleration]` cannot be used. Displayed as [`message`](Self::message) and [`help`](Self::help);
/// the diagnostics of a config are made of the same two.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccelerationError {
    /// No accelerator is registered under this name.
    Unknown(UnknownName),
    /// The name was one once, here or in another program.
    Removed(Removed),
    /// The parameters are not those of the accelerator.
    Params {
        /// The accelerator.
        name: String,
        /// What is wrong with which parameter.
        message: String,
    },
    /// The accelerator refused its parameters, the plan, the model or the weights.
    Refused {
        /// The accelerator.
        name: String,
        /// Why.
        refusal: Refusal,
    },
    /// The accelerator is not made for the slot it stands in.
    WrongSlot {
        /// The accelerator.
        name: String,
        /// Its stage.
        stage: AcceleratorStage,
        /// Where it stands.
        slot: Slot,
    },
    /// The accelerator is in a slot twice.
    Duplicate {
        /// The accelerator.
        name: String,
        /// The slot.
        slot: Slot,
    },
    /// Two accelerators exclude each other.
    Conflict {
        /// The one that says so.
        name: String,
        /// The other.
        other: String,
        /// Why, without a full stop.
        why: String,
    },
    /// Two accelerators of a slot stand in the wrong order.
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

impl AccelerationError {
    /// What is wrong, in the user's names and values, without a full stop.
    pub fn message(&self) -> String {
        match self {
            Self::Unknown(unknown) => format!("there is no accelerator `{}`", unknown.asked),
            Self::Removed(removed) => format!("there is no accelerator `{}`: {}", removed.asked, removed.why),
            Self::Params { name, message } => format!("parameters of the accelerator `{name}`: {message}"),
            Self::Refused { name, refusal } => {
                format!("the accelerator `{name}` cannot be used: {}", refusal.why)
            }
            Self::WrongSlot { name, slot, .. } => slot.misplaced().0.replace("{name}", name),
            Self::Duplicate { name, slot } => {
                format!("the accelerator `{name}` stands in `acceleration.{slot}` twice")
            }
            Self::Conflict { name, other, why } => {
                format!("the accelerators `{name}` and `{other}` exclude each other: {why}")
            }
            Self::Order {
                name,
                other,
                slot,
                why,
            } => {
                format!("the accelerator `{name}` must stand after `{other}` in `acceleration.{slot}`: {why}")
            }
        }
    }

    /// How to mend it, without a full stop.
    pub fn help(&self) -> String {
        match self {
            Self::Unknown(unknown) if unknown.available.is_empty() => {
                "no accelerator is registered in this program; remove the entry".into()
            }
            Self::Unknown(unknown) => match &unknown.nearest {
                Some(nearest) => format!("did you mean `{nearest}`?"),
                None => "`flow-train list accelerators` says what each does".into(),
            },
            Self::Removed(removed) => sentence(&removed.instead),
            Self::Params { .. } => "correct `params` of the entry".into(),
            Self::Refused { refusal, .. } => match &refusal.help {
                Some(help) => sentence(help),
                None => "change what the message names, or remove the entry".into(),
            },
            Self::WrongSlot { slot, .. } => slot.misplaced().1.into(),
            Self::Duplicate { .. } => "keep one of the entries".into(),
            Self::Conflict { .. } => "remove one of them".into(),
            Self::Order { name, other, .. } => format!("move the entry of `{name}` below that of `{other}`"),
        }
    }
}

impl From<NotFound> for AccelerationError {
    fn from(error: NotFound) -> Self {
        match error {
            NotFound::Unknown(unknown) => Self::Unknown(unknown),
            NotFound::Removed(removed) => Self::Removed(removed),
        }
    }
}

/// The words of an accelerator's author, as part of a message of ours: without a full stop, beginning small.
fn sentence(text: &str) -> String {
    with_first(text.trim_end_matches('.'), |first| first.to_lowercase().collect())
}

fn with_first(text: &str, change: impl Fn(char) -> String) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => change(first) + letters.as_str(),
        None => String::new(),
    }
}

impl fmt::Display for AccelerationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message())?;
        if let Self::Unknown(unknown) = self
            && !unknown.available.is_empty()
        {
            write!(f, "; available: {}", unknown.available.join(", "))?;
        }
        write!(
            f,
            ". {}",
            with_first(&self.help(), |first| first.to_uppercase().collect())
        )
    }
}

impl std::error::Error for AccelerationError {}
