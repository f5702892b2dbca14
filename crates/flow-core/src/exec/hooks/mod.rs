//! The places where an accelerator may answer for a model: regions, stacks of blocks, attention layers, whole calls, and
//! what several rows or calls have in common.
//!
//! Each has a trait, which stands beside the context; here is of each an implementation that computes everything, and what a model
//! calls.

mod attention_layer;
mod region;
mod reuse;
mod stack;
mod velocity;

pub use attention_layer::ComputeAllLayers;
pub use region::NoCheckpointing;
pub use reuse::NoReuse;
pub use stack::{Block, RunAllBlocks};
pub use velocity::CallModel;
