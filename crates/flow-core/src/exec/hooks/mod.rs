//! The places where an accelerator may answer for a model: regions, stacks of blocks, attention layers, whole calls, and
//! what several rows or calls have in common.
//!
//! Each has a trait, and an implementation that computes everything.

mod attention_layer;
mod region;
mod reuse;
mod stack;
mod velocity;

pub use attention_layer::{AttentionKind, AttentionLayer, ComputeAllLayers, LayerBody, LayerDriver};
pub use region::{Body, Effect, NoCheckpointing, RegionEngine, Site};
pub use reuse::{CallBody, DependsOn, NoReuse, Reusable, ReuseDriver, RowKey, RowsBody};
pub use stack::{Block, RunAllBlocks, Stack, StackDriver};
pub use velocity::{CallModel, VelocityDriver};
