#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod cpu;
mod registry;

pub use cpu::CpuAttention;
pub use registry::{AttentionRegistry, UnknownBackend, register};
