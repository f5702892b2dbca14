//! Products on tensor cores since Ampere, by `mma.sync`.

pub mod arguments;
mod block_tile;
mod epilogue;
pub mod kernel;
pub mod launch;
pub mod product;
mod tiles;

pub use tiles::{THREADS, Tiles};
