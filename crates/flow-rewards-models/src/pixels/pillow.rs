//! The arithmetic of Pillow's resizing of 8-bit images, bit by bit.
//!
//! Source: Pillow, `src/libImaging/Resample.c`: rows first, then columns, each pass with weights of 22 bits and rounded to 8 bits.

use super::separable::Arithmetic;

/// Bits of a weight behind the point: 32, less 8 of a value, less 2 for what a filter overshoots.
const PRECISION: u32 = 32 - 8 - 2;

/// Weights and sums in fixed point.
pub struct Pillow;

impl Arithmetic for Pillow {
    type Value = u8;
    type Sum = i32;
    const START: i32 = 1 << (PRECISION - 1);

    /// Rounded away from zero at halves as Pillow does.
    fn weight(weight: f64) -> i32 {
        (weight * f64::from(1u32 << PRECISION) + 0.5f64.copysign(weight)) as i32
    }

    fn add(sum: i32, value: u8, weight: i32) -> i32 {
        sum + i32::from(value) * weight
    }

    fn round(sum: i32) -> u8 {
        (sum >> PRECISION).clamp(0, 255) as u8
    }
}
