//! Activation checkpointing for flow-train: what backward keeps and what it computes again.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod engine;
mod gauge;
pub mod meter;
mod names;
pub mod planner;
mod policy;
mod treatment;

pub use engine::{Checkpointing, Counts};
pub use gauge::{CountingAllocator, Gauge, Sampled};
pub use policy::{Policy, PolicyError};
pub use treatment::{
    ATTENTION, Assignment, BlockTreatment, GROUPED_LINEAR, LINEAR, Ordinals, ROUTER, RegionTreatment,
    SaveRule, Saves,
};
