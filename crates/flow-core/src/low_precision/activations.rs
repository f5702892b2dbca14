//! Rows of activations as e4m3 with a scale, for products of codes.

use super::LowPrecisionFormat;
use super::format::round_to_e4m3;

/// Writes the e4m3 numbers of a row of activations, without its scale, to `values`, and gives that scale. Scale and numbers are those of a
/// row of a matrix that is [stored](super::LowPrecision::quantise) in FP8; a row of zeros gives zeros.
///
/// NaN stays NaN and has no part in the scale. An infinity gets the largest number and its row the largest scale, so that products with it
/// are far beyond all others.
///
/// # Panics
/// If the two are not equally long.
#[inline(always)]
pub fn quantise_activations(row: &[f32], values: &mut [f32]) -> f32 {
    assert_eq!(row.len(), values.len(), "values of a row");
    let format = LowPrecisionFormat::Fp8;
    let (scale, largest) = (format.scale_of(row), format.largest());
    for (value, activation) in values.iter_mut().zip(row) {
        *value = round_to_e4m3((activation / scale).clamp(-largest, largest));
    }
    scale
}
