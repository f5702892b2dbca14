//! Products on tensor cores since Ampere, by `mma.sync`.

pub mod kernel;
pub mod launch;
pub mod product;
mod tiles;

pub use tiles::{THREADS, Tiles};
