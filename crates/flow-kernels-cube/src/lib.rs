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
pub mod cases;
#[allow(missing_docs)]
pub mod cast;
mod columns;
#[allow(missing_docs)]
pub mod embedding;
#[allow(missing_docs)]
pub mod experts;
#[allow(missing_docs)]
pub mod feature_cache;
#[allow(missing_docs)]
pub mod frequencies;
#[allow(missing_docs)]
pub mod gated_residual;
#[allow(missing_docs)]
pub mod low_precision;
#[allow(missing_docs)]
pub mod modulated_layer_norm;
mod multi_tensor;
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
#[allow(missing_docs)]
pub mod row_codes;
mod rows;
#[allow(missing_docs)]
pub mod runs;
#[allow(missing_docs)]
pub mod sde;
#[allow(missing_docs)]
pub mod softmax;
pub mod sources;
#[allow(missing_docs)]
pub mod split_f32;

pub use activation::Activation;
pub use buffer::{Buffer, Refusal};
pub use flow_cube::Element;
