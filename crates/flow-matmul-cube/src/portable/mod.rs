//! Products on any device that CubeCL runs on: no tensor cores, no plane instructions, 17 KiB of shared memory.

pub mod kernel;
pub mod launch;
