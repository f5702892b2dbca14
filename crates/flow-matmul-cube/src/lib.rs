//! Matrix products in CubeCL, with fused epilogues.

mod activation;
pub mod call;
pub mod catalogue;
mod element;
// `#[cube]` makes modules that cannot be documented.
#[allow(missing_docs)]
pub mod parts;
#[allow(missing_docs)]
pub mod portable;
pub mod run;
pub mod schedule;
pub mod sources;
pub mod tensors;
#[allow(missing_docs)]
pub mod wgmma;

pub use element::Element;
