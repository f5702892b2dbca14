//! The second, transposed copy of a matrix: what gradients of activations are products of, where these are products of codes.
//!
//! Tensor cores for FP8 multiply rows with rows, and a scale can be taken out of a sum only where all its summands share it. Forward sums
//! over input channels, so a row of its codes has those of one output channel. The gradient of the activations, `dX = dY W`, sums over
//! output channels: a row of its codes has the values of one input channel, and a scale of its own.
//!
//! The copy is made of the first one's widened values, not of what these were rounded from. So it is a function of the first, gradients
//! are those of the weights that forward multiplies with, and a matrix that was widened is stored again as the same words.
//!
//! A trained matrix has no such copy: kernels round its columns right before each product, from the numbers themselves, as gradients of
//! trained weights take no part of forward's rounding.

use super::{LowPrecision, LowPrecisionCompute, NotFinite};
use crate::tensors::RawTensor;
use rayon::prelude::*;

/// Words at whose multiples the second copy begins: 256 bytes, where every device lets a part of a buffer begin.
const ALIGNMENT: usize = 64;
/// Columns that [`columns_as_rows`] turns at a time: 64 bytes of every row of the matrix are read together.
pub const COLUMNS_AT_A_TIME: usize = 16;

impl LowPrecision {
    /// The word at which the second copy begins, and its form, `[columns, rows]`; none if there is no second copy.
    pub fn transposed(&self) -> Option<(usize, Self)> {
        let of = Self {
            compute: LowPrecisionCompute::Storage,
            rows: self.columns,
            columns: self.rows,
            ..*self
        };
        let start = self.copy_words().next_multiple_of(ALIGNMENT);
        self.compute.quantises_gradients().then_some((start, of))
    }

    /// The values `[columns, rows]` of the second copy's codes of a stored matrix on any device, without the scales of its rows, and
    /// these, on the host; none if there is no second copy.
    ///
    /// # Panics
    /// If `stored` is not of this form, or the format has several scales in a row.
    pub fn host_transposed(&self, stored: &RawTensor) -> Option<(Vec<f32>, Vec<f32>)> {
        let (start, of) = self.transposed()?;
        Some(of.codes_and_scales(&self.host_words(stored)[start..]))
    }

    /// Writes the second copy, if there is one, behind the first. Its words are zero.
    ///
    /// # Errors
    /// [`NotFinite`] if a widened value is.
    pub(super) fn quantise_transposed(&self, words: &mut [i32]) -> Result<(), NotFinite> {
        let Some((start, of)) = self.transposed() else {
            return Ok(());
        };
        let widened = self.decode(words, true);
        let (codes, scales) = words[start..].split_at_mut(of.code_words());
        let (row_words, row_scale_words) = (of.words_per_row(), of.scale_words_per_row());
        let several = codes
            .par_chunks_mut(COLUMNS_AT_A_TIME * row_words)
            .zip(scales.par_chunks_mut(COLUMNS_AT_A_TIME * row_scale_words));
        several.enumerate().try_for_each(|(index, (codes, scales))| {
            let rows = columns_as_rows(&widened, self.columns, index * COLUMNS_AT_A_TIME);
            let stored = codes
                .chunks_mut(row_words)
                .zip(scales.chunks_mut(row_scale_words));
            rows.chunks(of.columns)
                .zip(stored)
                .try_for_each(|(values, (codes, scales))| of.quantise_row(values, codes, scales))
        })
    }
}

/// The columns from `first` on, at most [`COLUMNS_AT_A_TIME`] of them, of a matrix with rows of `columns` values: each as a row.
///
/// # Panics
/// If there is no column `first`.
pub fn columns_as_rows(matrix: &[f32], columns: usize, first: usize) -> Vec<f32> {
    let (count, length) = (COLUMNS_AT_A_TIME.min(columns - first), matrix.len() / columns);
    let mut rows = vec![0.0; count * length];
    for (place, row) in matrix.chunks_exact(columns).enumerate() {
        for (column, value) in row[first..first + count].iter().enumerate() {
            rows[column * length + place] = *value;
        }
    }
    rows
}
