//! Attention for flow-train: forward and backward, the same kernel in rollout and in training.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod attention;
mod automatic;
mod cpu;
#[cfg(feature = "cube")]
pub mod cube;
mod node;
mod reference;
mod registry;

pub use attention::{Attention, attention};
pub use automatic::AutomaticAttention;
pub use cpu::CpuAttention;
pub use flow_core::ops::attention::Mask;
pub use flow_core::{AttentionBackend, AttentionCall, AttentionSpec, KeyValue, Refusal, RelativeBias};
pub use reference::ReferenceAttention;
pub use registry::{AttentionRegistry, register};
