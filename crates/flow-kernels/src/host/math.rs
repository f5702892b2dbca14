//! Elementary functions as branch-free f32 arithmetic, so that loops over them become vector code.
//!
//! Error bounds hold for every finite argument and are asserted by the tests against f64.

use flow_core::Activation;

/// Arguments beyond these bounds give `0`, and `exp(88)`.
const EXP_RANGE: (f32, f32) = (-87.0, 88.0);
/// ln 2, split so that a multiple up to 128 of the first part is exact (Cody and Waite 1980).
const LN_2: (f32, f32) = (355.0 / 512.0, -2.121_944_4e-4);
/// 1.5 · 2^23: adding and subtracting it rounds to the nearest integer.
const ROUND: f32 = 12_582_912.0;
/// Minimax coefficients of `(exp(r) - 1 - r) / r²` on `|r| ≤ ln 2 / 2`, highest power first: Cephes 2.8, `expf.c`.
const EXP_POLYNOMIAL: [f32; 6] = [
    1.987_569_2e-4,
    1.398_2e-3,
    8.333_452e-3,
    4.166_579_6e-2,
    1.666_666_5e-1,
    0.5,
];

/// `e^x`, relative error at most 2e-7 for `-87 ≤ x ≤ 88`; `0` below, `exp(88)` above; NaN stays NaN.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let (low, high) = EXP_RANGE;
    // Comparisons that NaN fails, so that it passes through.
    let bounded = if x < low { low } else { x };
    let bounded = if bounded > high { high } else { bounded };
    let n = bounded * std::f32::consts::LOG2_E + ROUND - ROUND;
    let r = bounded - n * LN_2.0 - n * LN_2.1;
    let mut p = EXP_POLYNOMIAL[0];
    for coefficient in &EXP_POLYNOMIAL[1..] {
        p = p * r + coefficient;
    }
    let fraction = p * (r * r) + r + 1.0;
    // The integer sits in the low mantissa bits of `n + ROUND`; NaN gives some finite power, and NaN times it.
    let power = f32::from_bits(((n + ROUND).to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    let value = fraction * power;
    if x < low { 0.0 } else { value }
}

/// Minimax coefficients of `(ln(1 + f) - f + f²/2) / f³` on `sqrt(1/2) ≤ 1 + f ≤ sqrt(2)`, highest power first: Cephes
/// 2.8, `logf.c`.
const LN_POLYNOMIAL: [f32; 9] = [
    7.037_683_6e-2,
    -1.151_461e-1,
    1.167_699_9e-1,
    -1.242_014_1e-1,
    1.424_932_3e-1,
    -1.666_805_8e-1,
    2.000_071_5e-1,
    -2.499_999_4e-1,
    3.333_333e-1,
];

/// `ln x` of a positive normal number, error at most 2e-7 relative to the larger of 1 and the result; infinity and NaN
/// stay what they are.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    // x = 2^n · fraction with a fraction around 1: the exponent counts from sqrt(1/2).
    let offset = x
        .to_bits()
        .wrapping_sub(std::f32::consts::FRAC_1_SQRT_2.to_bits());
    let n = (offset as i32 >> 23) as f32;
    let fraction =
        f32::from_bits((offset & 0x007F_FFFF).wrapping_add(std::f32::consts::FRAC_1_SQRT_2.to_bits()));
    let f = fraction - 1.0;
    let mut p = LN_POLYNOMIAL[0];
    for coefficient in &LN_POLYNOMIAL[1..] {
        p = p * f + coefficient;
    }
    let square = f * f;
    let value = n * LN_2.0 + (f + (p * f * square - 0.5 * square + n * LN_2.1));
    if x < f32::INFINITY { value } else { x }
}

/// `1 / (1 + e^-x)`, relative error at most 5e-7 for `x ≥ -87`; `0` below.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    // The quotient never falls below the smallest normal number: one that does costs a hundred times more.
    let bounded = if x < EXP_RANGE.0 { EXP_RANGE.0 } else { x };
    let value = 1.0 / (1.0 + exp(-bounded));
    if x < EXP_RANGE.0 { 0.0 } else { value }
}

/// `x · sigmoid(x)`.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// Derivative of [`silu`].
#[inline(always)]
pub fn silu_derivative(x: f32) -> f32 {
    let s = sigmoid(x);
    s + x * s * (1.0 - s)
}

/// `2 sqrt(2/π)`: twice, because `(1 + tanh u) / 2 = sigmoid(2u)`.
const GELU_SLOPE: f32 = 1.595_769;
/// The cubic term of the tanh approximation (Hendrycks and Gimpel 2016, arXiv:1606.08415).
const GELU_CUBIC: f32 = 0.044_715;

/// GELU, tanh approximation, as `x · sigmoid(2u)`: without the cancellation of `1 + tanh(u)` at negative `x`.
#[inline(always)]
pub fn gelu_tanh(x: f32) -> f32 {
    x * sigmoid(GELU_SLOPE * (x + GELU_CUBIC * x * x * x))
}

/// Derivative of [`gelu_tanh`].
#[inline(always)]
pub fn gelu_tanh_derivative(x: f32) -> f32 {
    let s = sigmoid(GELU_SLOPE * (x + GELU_CUBIC * x * x * x));
    s + x * s * (1.0 - s) * GELU_SLOPE * (1.0 + 3.0 * GELU_CUBIC * x * x)
}

/// Applies `activation` to every value of `values`.
pub fn activate(activation: Activation, values: &mut [f32]) {
    match activation {
        Activation::None => {}
        Activation::Silu => vectorised(
            #[inline(always)]
            || values.iter_mut().for_each(|x| *x = silu(*x)),
        ),
        Activation::GeluTanh => vectorised(
            #[inline(always)]
            || values.iter_mut().for_each(|x| *x = gelu_tanh(*x)),
        ),
    }
}

/// Writes `activation(input)` to `output`.
pub fn activate_into(activation: Activation, input: &[f32], output: &mut [f32]) {
    let pairs = output.iter_mut().zip(input);
    match activation {
        Activation::None => output.copy_from_slice(input),
        Activation::Silu => vectorised(
            #[inline(always)]
            || pairs.for_each(|(y, x)| *y = silu(*x)),
        ),
        Activation::GeluTanh => vectorised(
            #[inline(always)]
            || pairs.for_each(|(y, x)| *y = gelu_tanh(*x)),
        ),
    }
}

/// Writes `gradient · activation'(input)` to `output`.
pub fn activate_backward(activation: Activation, input: &[f32], gradient: &[f32], output: &mut [f32]) {
    let triples = output.iter_mut().zip(input.iter().zip(gradient));
    match activation {
        Activation::None => output.copy_from_slice(gradient),
        Activation::Silu => vectorised(
            #[inline(always)]
            || triples.for_each(|(out, (x, g))| *out = g * silu_derivative(*x)),
        ),
        Activation::GeluTanh => {
            vectorised(
                #[inline(always)]
                || triples.for_each(|(out, (x, g))| *out = g * gelu_tanh_derivative(*x)),
            );
        }
    }
}

/// Runs `work` compiled for the widest vectors of this processor. The result does not depend on which.
#[inline(always)]
pub fn vectorised<R>(work: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(work)
}
