//! Gradients of GPUs between the processes of a training run.
#![doc = ""]
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod flat_tensor;
#[cfg(feature = "cuda")]
mod nccl;
#[cfg(feature = "cuda")]
mod stream;

pub use flat_tensor::FlatTensor;
#[cfg(feature = "cuda")]
pub use nccl::{NcclExchange, NcclSettings, SumOrder};
