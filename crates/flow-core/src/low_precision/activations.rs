//! Rows of activations as e4m3 with a scale, for products of codes.

use super::{LowPrecisionFormat, SMALLEST_SCALE, round_to_e4m3};

/// The bits of an f32's magnitude from which on it is not finite.
const NOT_FINITE: u32 = 0x7F80_0000;

/// Writes the e4m3 numbers of a row of activations, without its scale, to `values`, and gives that scale: the row's largest magnitude
/// divided by 448, in f32, but at least 2^-116, so that a row of zeros gives zeros. Each number is that nearest to the quotient of the
/// activation and the scale, of two equally near ones the even one.
///
/// The scale of a row with a value that is not finite is NaN, and so is every product with it.
///
/// # Panics
/// If the two are not equally long.
#[inline(always)]
pub fn quantise_activations(row: &[f32], values: &mut [f32]) -> f32 {
    assert_eq!(row.len(), values.len(), "values of a row");
    // Bits of magnitudes are ordered as these are, those that are not finite above all others.
    let largest = row
        .iter()
        .fold(0u32, |largest, value| largest.max(value.to_bits() & 0x7FFF_FFFF));
    let scale = match largest < NOT_FINITE {
        true => (f32::from_bits(largest) / LowPrecisionFormat::Fp8.largest()).max(SMALLEST_SCALE),
        false => f32::NAN,
    };
    // A quotient is 448 at most, but for the rounding of the scale: its nearest number is no larger.
    for (value, activation) in values.iter_mut().zip(row) {
        *value = round_to_e4m3(activation / scale);
    }
    scale
}
