//! Attention masks as data, and their compilation to lists of tiles for kernels.
#![doc = include_str!("../README.md")]

mod bits;
mod coverage;
mod error;
mod kinds;
mod mask;
mod pattern;
mod rows;
mod tiles;

pub use coverage::Coverage;
pub use error::MaskError;
pub use kinds::{BlockSparse, Documents, Extent, Grid, KeyPadding, Packed};
pub use mask::{Bound, Mask, Sizes};
pub use pattern::{UNIT_ROWS, UNIT_THREADS, element, pattern_words};
pub use rows::KeyRun;
pub use tiles::{ALL, Counts, FIRST_PATTERN, MaskTiles, NONE, Side, Tiling};
