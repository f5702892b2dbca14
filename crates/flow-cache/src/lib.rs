//! Feature reuse between the steps of a rollout.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod drivers;
mod engine;
mod exact;
mod forecast;
mod policies;
mod policy;
mod round;
mod rules;
mod trajectories;

pub use drivers::{
    GuidanceCache, LayerCache, LayerPolicy, MagnitudeRatios, SignalChanges, StackCache, StackPolicy,
    StackProbe, StackShape, VelocityCache, VelocityPolicy, fit_polynomial,
};
pub use engine::{CallCounters, OnCall};
pub use exact::{ExactReuse, OnReused, Reused};
pub use forecast::Forecast;
pub use policies::{
    Auto, AutoState, DbCache, DbCacheState, EasyCache, EasyCacheState, FasterAttention, FasterGuidance,
    FirstBlock, GuidanceState, MagCache, MagCacheState, Mask, PublishedMask, Pyramid, StepMask, TaylorSeer,
    TeaCache, TeaCacheState, Timesteps,
};
pub use policy::{Change, Compares, Outcome, Policy, Situation};
pub use rules::{Moment, Rules};
pub use trajectories::{StepOrder, TrajectoryStore};

use flow_core::{RunAllBlocks, StackDriver};
use std::sync::Arc;

/// The driver that reuses nothing.
pub fn no_reuse() -> Arc<dyn StackDriver> {
    Arc::new(RunAllBlocks)
}
