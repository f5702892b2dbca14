//! Activations and their derivatives, with the approximate exponential and reciprocal of NVIDIA GPUs (2 and 1 units in the
//! last place), for the kernels for tensor cores.

use crate::call::Activation;
use cubecl::prelude::*;
use flow_cube::register::{exp2_approximate, reciprocal_approximate};

/// `sqrt(2 / π)`.
pub(crate) const GELU_SCALE: f32 = 0.797_884_6;
/// Of the cube in the argument.
pub(crate) const GELU_CUBE: f32 = 0.044_715;

/// `1 / (1 + e⁻ˣ)`.
#[cube]
fn sigmoid(x: f32) -> f32 {
    reciprocal_approximate(1.0f32 + exp2_approximate(x * comptime!(-std::f32::consts::LOG2_E)))
}

/// `activation(x)`. GELU by `1/2 (1 + tanh u) = sigmoid(2 u)`.
#[cube]
pub(crate) fn activate(x: f32, #[comptime] activation: Activation) -> f32 {
    if comptime!(activation == Activation::Silu) {
        x * sigmoid(x)
    } else {
        let inner = x * (comptime!(2.0 * GELU_SCALE) + comptime!(2.0 * GELU_SCALE * GELU_CUBE) * x * x);
        x * sigmoid(inner)
    }
}

/// `activation'(x)`.
#[cube]
pub(crate) fn derivative(x: f32, #[comptime] activation: Activation) -> f32 {
    if comptime!(activation == Activation::Silu) {
        let s = sigmoid(x);
        s * (1.0f32 + x * (1.0f32 - s))
    } else {
        let square = x * x;
        let inner = x * (comptime!(2.0 * GELU_SCALE) + comptime!(2.0 * GELU_SCALE * GELU_CUBE) * square);
        let slope = comptime!(2.0 * GELU_SCALE) + comptime!(6.0 * GELU_SCALE * GELU_CUBE) * square;
        let s = sigmoid(inner);
        s + x * s * (1.0f32 - s) * slope
    }
}
