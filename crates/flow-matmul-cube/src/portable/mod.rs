//! Products on any device that CubeCL runs on: no tensor cores, no plane instructions, 8.1 KiB of shared memory.

pub mod arguments;
mod block_tile;
mod epilogue;
pub mod kernel;
pub mod kind;
pub mod launch;
