//! Products on any device that CubeCL runs on: no tensor cores, no plane instructions, 8.1 KiB of shared memory.

pub mod kernel;
pub mod launch;
