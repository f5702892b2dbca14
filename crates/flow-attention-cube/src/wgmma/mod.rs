//! Attention on Hopper's asynchronous tensor cores.

pub mod forward;
pub mod launch;
mod softmax;
mod tiles;

pub use tiles::ForwardTiles;
