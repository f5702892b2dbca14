//! The operations a diffusion transformer and its trainer need besides attention and matrix products, in CubeCL.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

// `#[cube]` makes modules that cannot be documented.
#[allow(missing_docs)]
pub mod activation;
#[allow(missing_docs)]
pub mod adamw;
#[allow(missing_docs)]
mod buffer;
#[allow(missing_docs)]
pub mod cast;
pub mod catalogue;
mod columns;
#[allow(missing_docs)]
pub mod embedding;
#[allow(missing_docs)]
pub mod experts;
#[allow(missing_docs)]
pub mod frequencies;
#[allow(missing_docs)]
pub mod gated_residual;
mod groups;
#[allow(missing_docs)]
pub mod halves;
#[allow(missing_docs)]
pub mod lanes;
#[allow(missing_docs)]
pub mod modulated_layer_norm;
#[allow(missing_docs)]
pub mod normals;
#[allow(missing_docs)]
pub mod optimizer;
mod partials;
mod philox;
#[allow(missing_docs)]
pub mod pictures;
#[allow(missing_docs)]
pub mod rms_norm;
#[allow(missing_docs)]
pub mod rotary;
mod rows;
#[allow(missing_docs)]
pub mod sde;
#[allow(missing_docs)]
pub mod softmax;
pub mod sources;

pub use activation::Activation;
pub use buffer::{Buffer, Refused};
pub use flow_cube::Element;
