//! Activation checkpointing for flow-train: what backward keeps and what it computes again.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod block_policy;
mod engine;
mod memory_probe;
mod names;
pub mod planner;
mod policy;
pub mod profiler;

pub use block_policy::{
    ATTENTION, Assignment, BlockPolicy, GROUPED_LINEAR, LINEAR, Ordinals, ROUTER, RegionPolicy, SaveRule,
    Saves,
};
pub use engine::{Checkpointing, Counts};
pub use memory_probe::{CountingAllocator, MemoryProbe, Sampled};
pub use policy::{Policy, PolicyError};
