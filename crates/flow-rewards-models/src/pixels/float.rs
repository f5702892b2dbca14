//! The arithmetic of torchvision's resizing of floating-point images with antialiasing, which PyTorch computes.
//!
//! Nothing is clamped: a bicubic filter overshoots, and torchvision leaves that in floating-point images.

use super::separable::Arithmetic;

/// Sums in f64, so that each is the nearest f32.
pub struct Float;

impl Arithmetic for Float {
    type Value = f32;
    type Sum = f64;
    const START: f64 = 0.0;

    fn weight(weight: f64) -> f64 {
        weight
    }

    fn add(sum: f64, value: f32, weight: f64) -> f64 {
        sum + f64::from(value) * weight
    }

    fn round(sum: f64) -> f32 {
        sum as f32
    }
}
