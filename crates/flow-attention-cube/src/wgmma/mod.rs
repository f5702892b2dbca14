//! Attention on Hopper's asynchronous tensor cores.

pub mod backward_keys;
pub mod backward_queries;
mod copy;
pub mod forward;
pub mod launch;
pub mod passing;
pub mod run;
pub mod select;
mod softmax;
mod tiles;

pub use tiles::{BackwardTiles, ForwardTiles, Sums};
