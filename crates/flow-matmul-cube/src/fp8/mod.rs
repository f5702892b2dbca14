//! FP8 e4m3 operands: rows, or columns as rows, quantised to codes and scales, and codes widened to numbers.
//!
//! Codes are bytes, rows of which begin at multiples of 16 where [`Quantised`] makes them; each row has an f32 scale, the row's largest
//! magnitude / 448, rounded to a bf16. They are those of `flow_core::low_precision`: a frozen weight's words are such a matrix, with its
//! scales behind the codes. [`Storage`](crate::problem::Storage) says how a product takes them.
//!
//! A kernel that makes what a product reads may quantise it itself, by [`flow_cube::e4m3`], as layer norm and activations of
//! `flow-kernels-cube` do; [`Quantised::empty`] is room for that.

pub mod columns;
pub mod quantise;
pub mod widen;

pub use quantise::{Quantised, quantise_rows};

/// Threads of a block.
pub(crate) const THREADS: usize = 256;
/// Codes in a word.
pub(crate) const CODES: usize = 4;
