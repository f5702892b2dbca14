//! NVIDIA's NCCL, loaded when it is needed.
#![doc = ""]
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod communicator;
mod error;
mod find;
mod library;

pub use communicator::{Communicator, Group};
pub use error::NcclError;
pub use library::{Nccl, UniqueId};
