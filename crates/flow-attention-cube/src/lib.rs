//! Attention kernels in CubeCL, forward and backward.
#![doc = include_str!("../README.md")]
// CubeCL copies a kernel's documentation into a module that it makes, where `super` is another module.
#![allow(rustdoc::broken_intra_doc_links, rustdoc::private_intra_doc_links)]

pub mod call;
pub mod catalogue;
mod columns;
mod deal;
mod delta;
// `#[cube]` makes modules that cannot be documented.
#[allow(missing_docs)]
pub mod mma;
pub mod order;
pub mod passing;
#[cfg(feature = "ptx-gate")]
#[allow(missing_docs)]
pub mod passing_alone;
#[allow(missing_docs)]
pub mod portable;
pub mod run;
mod softmax;
pub mod sources;
pub mod tensors;
#[allow(missing_docs)]
pub mod wgmma;

pub use flow_cube::Element;
