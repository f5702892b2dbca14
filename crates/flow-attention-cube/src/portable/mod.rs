//! Attention on any device that CubeCL runs on: no plane instructions, no tensor cores, no atomics, at most 32 KiB of
//! shared memory. Sums and statistics are in f32 and in a fixed order, so results are the same from run to run.

pub mod arguments;
pub mod backward_keys;
pub mod backward_queries;
mod block;
pub mod forward;
mod launch;
mod mask;
mod problem;
mod refusals;
mod stream;
mod tiles;

pub use launch::{backward, forward};
pub use mask::PortableMask;
pub use problem::{Call, KeyValues, Statistics, check_device};
pub use tiles::{ROWS, THREADS, Tiles};
