//! Matrix products in CubeCL, with fused epilogues.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
// CubeCL copies a kernel's documentation into a module that it makes, where `super` is another module.
#![allow(rustdoc::broken_intra_doc_links, rustdoc::private_intra_doc_links)]

pub mod cases;
#[allow(missing_docs)]
pub mod column_sums;
pub mod epilogue;
#[allow(missing_docs)]
pub mod fp8;
pub mod problem;
// `#[cube]` makes modules that cannot be documented.
#[allow(missing_docs)]
pub mod mma;
#[allow(missing_docs)]
pub mod portable;
pub mod prepared;
#[allow(missing_docs)]
pub mod reduce_split_k;
pub mod schedule;
pub mod sources;
pub mod tensors;
#[allow(missing_docs)]
pub mod wgmma;

pub use flow_cube::Element;
