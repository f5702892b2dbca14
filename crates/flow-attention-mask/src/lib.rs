//! Attention masks as data, and their compilation to lists of tiles for kernels.
#![doc = include_str!("../README.md")]

mod bits;
mod coverage;
mod error;
mod kinds;
mod mask;
mod partial_masks;
mod rows;
mod tiles;

pub use coverage::Coverage;
pub use error::MaskError;
pub use kinds::{BlockSparse, Documents, Extent, Grid, KeyPadding, Packed};
pub use mask::{Bound, Mask, Sizes};
pub use partial_masks::{ROW_GROUP, ROW_GROUP_THREADS, element, partial_mask_words};
pub use rows::KeyRun;
pub use tiles::{ALL, Counts, FIRST_PARTIAL, MaskTiles, NONE, Side, Tiling};
