//! What accelerators are in force for and did not do: named, or with `acceleration.strict` the end of the work.

use crate::error::TrainError;
use flow_accel::Activity;
use std::borrow::Cow;
use std::fmt;

/// An accelerator that did nothing, or less than it is in force for. Results are the same; the work took longer than the
/// config says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undone {
    /// The accelerator.
    pub name: String,
    /// What it did not do, as metrics name it; none if it did nothing at all.
    pub shortfall: Option<Cow<'static, str>>,
    /// What happened and what to change, without a full stop.
    pub why: String,
    /// Where it was in force, in words: `iteration 3`, `the evaluation`.
    pub within: String,
}

impl Undone {
    /// What tells it apart from others of the same work: a person is told once.
    pub fn key(&self) -> (String, Option<Cow<'static, str>>) {
        (self.name.clone(), self.shortfall.clone())
    }
}

impl fmt::Display for Undone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.shortfall {
            Some(_) => "did not do all it is in force for",
            None => "did nothing",
        };
        let (name, within, why) = (&self.name, &self.within, &self.why);
        write!(f, "the accelerator `{name}` {what} in {within}: {why}")
    }
}

impl From<Undone> for TrainError {
    fn from(undone: Undone) -> Self {
        let Undone {
            name,
            shortfall,
            why,
            within,
        } = undone;
        match shortfall {
            Some(_) => Self::AcceleratorFellShort { name, within, why },
            None => Self::IdleAccelerator { name, within, why },
        }
    }
}

/// What accelerators fell short of. One that did nothing is no such case: of an evaluation of few images, say, nothing may be
/// left to do for it.
pub fn shortfalls(activity: &[Activity], within: &str) -> Vec<Undone> {
    let of = |each: &Activity| {
        let named = each.shortfalls.keys().map(|shortfall| Undone {
            name: each.name.clone(),
            shortfall: Some(shortfall.name.clone()),
            why: shortfall.why.clone(),
            within: within.to_owned(),
        });
        named.collect::<Vec<_>>()
    };
    activity.iter().flat_map(of).collect()
}

/// As [`shortfalls`], and those that did nothing at all: for a whole iteration, rollout and losses, or a whole rollout.
pub fn undone(activity: &[Activity], within: &str) -> Vec<Undone> {
    let idle = activity.iter().filter_map(|each| {
        Some(Undone {
            name: each.name.clone(),
            shortfall: None,
            why: each.why_idle.clone()?,
            within: within.to_owned(),
        })
    });
    let mut found = shortfalls(activity, within);
    found.extend(idle);
    found
}

/// What a person is to be told; of strict work the first is an error.
///
/// # Errors
/// [`TrainError::AcceleratorFellShort`] or [`TrainError::IdleAccelerator`], if `strict` and something was found.
pub fn settle(found: Vec<Undone>, strict: bool) -> Result<Vec<Undone>, TrainError> {
    match found.first() {
        Some(first) if strict => Err(first.clone().into()),
        _ => Ok(found),
    }
}
