//! The fused operations a diffusion transformer needs besides attention, and the optimizer's.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

pub mod host;

mod activation;
mod cpu;
#[cfg(feature = "cube")]
mod cube;
mod embedding;
mod experts;
mod feature_cache;
mod frequencies;
mod fused;
mod gated_residual;
mod layer_norm;
mod linear;
mod modulated_layer_norm;
mod narrow;
mod noise;
mod optimizer;
mod registry;
mod rms_norm;
mod rotary;
mod sde;

pub use cpu::{CpuKernels, NoBf16};
#[cfg(feature = "cube")]
pub use cube::CubeKernels;
pub use feature_cache::{CpuFeatureCache, combine};
pub use frequencies::{low_frequency_radius, split_frequencies};
pub use noise::draw_noise;
pub use registry::{KernelRegistry, UnknownKernels, register};
