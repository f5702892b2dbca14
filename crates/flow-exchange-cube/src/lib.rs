//! Gradients of GPUs between the processes of a training run.
#![doc = ""]
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod block_exchange;
mod block_parts;
mod flat_tensor;
#[cfg(feature = "cuda")]
mod nccl;
#[cfg(feature = "cuda")]
mod stream;

pub use block_exchange::BlockExchange;
pub use block_parts::BlockParts;
pub use flat_tensor::FlatTensor;
#[cfg(feature = "cuda")]
pub use nccl::{NcclExchange, NcclSettings, SumOrder};
