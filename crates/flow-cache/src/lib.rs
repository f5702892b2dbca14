//! Feature reuse between the steps of a rollout.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod engine;
mod first_block;
mod forecast;
mod lanes;
mod policy;
mod rules;
mod stack;

pub use engine::OnSkip;
pub use first_block::FirstBlock;
pub use forecast::{Forecast, combine};
pub use lanes::{LaneStore, StepOrder};
pub use policy::{Change, Compares, Outcome, Policy, Situation};
pub use rules::{Moment, Rules};
pub use stack::{StackCache, StackPolicy, StackProbe, StackShape};

use flow_core::{RunAll, StackDriver};
use std::sync::Arc;

/// The driver that reuses nothing.
pub fn no_reuse() -> Arc<dyn StackDriver> {
    Arc::new(RunAll)
}
