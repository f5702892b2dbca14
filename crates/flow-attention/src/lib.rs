//! Attention for flow-train: forward and backward, the same kernel in rollout and in training.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod cpu;
#[cfg(feature = "cuda")]
pub mod cube;
mod reference;
mod registry;

pub use cpu::CpuAttention;
pub use reference::ReferenceAttention;
pub use registry::{AttentionRegistry, UnknownBackend, register};
