//! Attention kernels in CubeCL, forward and backward.
#![doc = include_str!("../README.md")]

pub mod catalogue;
mod element;
// `#[cube]` makes modules that cannot be documented.
#[allow(missing_docs)]
pub mod portable;
pub mod wgmma;

pub use element::Element;
