//! The fused operations a diffusion transformer needs besides attention, and the optimizer's.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

pub mod host;

mod cpu;
#[cfg(feature = "cube")]
mod cube;
mod registry;

pub use cpu::{
    CpuFeatureCache, CpuKernels, NoBf16, combine, draw_noise, low_frequency_radius, split_frequencies,
};
#[cfg(feature = "cube")]
pub use cube::CubeKernels;
pub use registry::{KernelRegistry, register};
