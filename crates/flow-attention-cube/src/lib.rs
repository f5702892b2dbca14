//! Attention kernels in CubeCL, forward and backward.
#![doc = include_str!("../README.md")]
// CubeCL copies a kernel's documentation into a module that it makes, where `super` is another module.
#![allow(rustdoc::broken_intra_doc_links, rustdoc::private_intra_doc_links)]

pub mod cases;
mod delta;
pub mod problem;
mod softmax_by_columns;
mod tile_scheduler;
// `#[cube]` makes modules that cannot be documented.
pub mod block_mask;
#[cfg(feature = "compile-check")]
#[allow(missing_docs)]
pub mod block_mask_test_kernel;
pub mod launch_order;
#[allow(missing_docs)]
pub mod mma;
#[allow(missing_docs)]
pub mod portable;
pub mod prepared;
mod softmax;
pub mod sources;
pub mod tensors;
#[allow(missing_docs)]
pub mod wgmma;

pub use flow_cube::Element;
