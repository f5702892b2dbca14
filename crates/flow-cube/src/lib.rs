//! Building blocks of CubeCL kernels for NVIDIA GPUs.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
// CubeCL copies a kernel's documentation into a module that it makes, where `super` is another module.
#![allow(rustdoc::broken_intra_doc_links, rustdoc::private_intra_doc_links)]

// `#[cube]` makes modules that cannot be documented.
#[allow(missing_docs)]
pub mod activation;
#[cfg(feature = "ptx-gate")]
mod arithmetic;
#[allow(missing_docs)]
pub mod barrier;
pub mod caller;
#[allow(missing_docs)]
pub mod copy;
pub mod element;
pub mod emulator;
#[cfg(feature = "ptx-gate")]
pub mod gate;
#[allow(missing_docs)]
pub mod mma;
pub mod offline;
#[allow(missing_docs)]
pub mod register;
#[cfg(feature = "ptx-gate")]
pub mod thread;
#[allow(missing_docs)]
pub mod tma;
#[cfg(feature = "vulkan")]
pub mod vulkan;
#[cfg(feature = "ptx-gate")]
mod warp;
#[allow(missing_docs)]
pub mod warpgroup;
#[allow(missing_docs)]
pub mod wgmma;

pub use caller::Caller;
pub use element::Element;
