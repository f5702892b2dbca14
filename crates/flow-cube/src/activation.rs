//! Activations of layers and their derivatives. One arithmetic for every kernel that applies them, so that a layer's
//! result has the same bits whether its product applies the activation or a kernel of its own does later.

use crate::Element;
use crate::register::{exp2_approximate, reciprocal_approximate};
use cubecl::prelude::*;

/// Activation of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x / 2 (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))` (Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2), as
    /// `x · sigmoid(2u)`: without the cancellation of `1 + tanh(u)` at negative `x`.
    GeluTanh,
    /// `x / (1 + e⁻ˣ)`.
    Silu,
}

/// How exponentials and quotients are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// To f32's precision, by the functions of the device's language.
    Precise,
    /// By NVIDIA's approximations, 2 and 1 units in the last place of f32: a fraction of the instructions, and nothing
    /// that a result of 16 bits would show.
    Approximate,
}

impl Arithmetic {
    /// For results of type `element` on `client`'s device.
    pub fn of(client: &Client, element: Element) -> Self {
        // The approximations are PTX; devices with `cp.async` are NVIDIA's.
        match element != Element::F32 && client.properties().features.copy_async {
            true => Self::Approximate,
            false => Self::Precise,
        }
    }
}

/// `2 sqrt(2/π)`.
const SLOPE: f32 = 1.595_769;
/// `2 sqrt(2/π) · 0.044715`.
const CUBIC: f32 = 0.071_354_81;

/// `1 / (1 + e⁻ˣ)`. The precise exponential stays finite, since shader languages promise nothing about infinities.
#[cube]
fn sigmoid(x: f32, #[comptime] arithmetic: Arithmetic) -> f32 {
    if comptime!(arithmetic == Arithmetic::Approximate) {
        reciprocal_approximate(1.0f32 + exp2_approximate(x * comptime!(-std::f32::consts::LOG2_E)))
    } else {
        1.0f32 / (1.0f32 + (-max(x, -80.0f32)).exp())
    }
}

/// `activation(x)`.
#[cube]
pub fn activate(x: f32, #[comptime] activation: Activation, #[comptime] arithmetic: Arithmetic) -> f32 {
    if comptime!(activation == Activation::Silu) {
        x * sigmoid(x, arithmetic)
    } else {
        x * sigmoid(x * (SLOPE + CUBIC * x * x), arithmetic)
    }
}

/// `activation'(x)`.
#[cube]
pub fn derivative(x: f32, #[comptime] activation: Activation, #[comptime] arithmetic: Arithmetic) -> f32 {
    if comptime!(activation == Activation::Silu) {
        let s = sigmoid(x, arithmetic);
        s * (1.0f32 + x * (1.0f32 - s))
    } else {
        let square = x * x;
        let s = sigmoid(x * (SLOPE + CUBIC * square), arithmetic);
        s + x * s * (1.0f32 - s) * (SLOPE + comptime!(3.0 * CUBIC) * square)
    }
}
