//! Building blocks of CubeCL kernels for NVIDIA GPUs.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
// CubeCL copies a kernel's documentation into a module that it makes, where `super` is another module.
#![allow(rustdoc::broken_intra_doc_links, rustdoc::private_intra_doc_links)]

// `#[cube]` makes modules that cannot be documented.
#[allow(missing_docs)]
pub mod activation;
#[allow(missing_docs)]
pub mod barrier;
#[cfg(feature = "compile-check")]
pub mod compile_check;
#[allow(missing_docs)]
pub mod cp_async;
#[allow(missing_docs)]
pub mod e4m3;
pub mod element;
pub mod emulator;
pub mod issue;
pub mod lasting;
pub mod launch;
#[allow(missing_docs)]
pub mod mma;
pub mod offline;
#[cfg(feature = "compile-check")]
pub mod ptx_interpreter;
#[allow(missing_docs)]
pub mod register;
#[allow(missing_docs)]
pub mod tma;
#[cfg(feature = "vulkan")]
pub mod vulkan;
#[allow(missing_docs)]
pub mod warpgroup;
#[allow(missing_docs)]
pub mod wgmma;

pub use element::Element;
pub use issue::Issue;
