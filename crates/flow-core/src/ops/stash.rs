//! A store that results worth keeping pass through.

use crate::tensors::RawTensor;
use std::any::Any;
use std::fmt::Debug;

/// Gives a named result, computed now or kept from an earlier run of the same region.
///
/// The order and names of requests are the same in every run of a region.
pub trait Stash: Debug + Send + Sync {
    /// The result called `name`: `compute`d, or the one kept.
    fn through(&self, name: &'static str, compute: &mut dyn FnMut() -> Vec<RawTensor>) -> Vec<RawTensor>;

    /// Whether the result called `name` may be asked for again, so that an operation must make it even where it needs
    /// none for a gradient of its own.
    fn keeps(&self, _name: &'static str) -> bool {
        true
    }

    /// What the operation that asks made in an earlier run of the same region, if that left the region. No gradient needs it, and
    /// whatever follows the region holds it anyway, so that an operation which is given it need not compute it again.
    ///
    /// An operation that a region may end with asks once in each run, and tells of its result by
    /// [`note_ending`](Self::note_ending) if it was given none.
    fn ending(&self) -> Option<RawTensor> {
        None
    }

    /// Takes note of what the operation made that asked for its [`ending`](Self::ending) and was given none.
    fn note_ending(&self, _result: &RawTensor) {}

    /// The store itself, for the region engine that made it: how an engine knows, at a region within another, what it
    /// is doing with the outer one. `None` for stores that no engine looks for.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }
}

impl dyn Stash + '_ {
    /// What an operation gives that a region may end with: what it was given of its [`ending`](Stash::ending), or else what it computes.
    pub fn ending_or(&self, ending: Option<RawTensor>, compute: impl FnOnce() -> RawTensor) -> RawTensor {
        ending.unwrap_or_else(|| {
            let result = compute();
            self.note_ending(&result);
            result
        })
    }
}

/// Keeps nothing.
#[derive(Debug)]
pub struct Compute;

impl Stash for Compute {
    fn through(&self, _: &'static str, compute: &mut dyn FnMut() -> Vec<RawTensor>) -> Vec<RawTensor> {
        compute()
    }

    fn keeps(&self, _: &'static str) -> bool {
        false
    }
}
