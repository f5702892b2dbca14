//! A pair of normal values of two words (Box and Muller 1958), with the bits of `flow_rng`.
//!
//! The operations and constants of `libm` 0.2.16 (`log.rs`, `rem_pio2.rs`, `k_sin.rs`, `k_cos.rs`, after FreeBSD's msun) in its
//! order, of whose branches these arguments see five. Nothing here is CubeCL's own but the choice between values, so a test
//! runs it on the host.

use super::arithmetic::{add, divide, lower, multiply, narrow, of_bits, of_integer, root, subtract, upper};
use cubecl::prelude::*;
use flow_rng::msun::{COS, LN2, LOG, PIO2, PIO2_REST, SIN};

/// `2^-32` and `2 pi`.
const SCALE: f64 = 1.0 / 4_294_967_296.0;
const TAU: f64 = std::f64::consts::TAU;
/// Upper word of the root of a half, and of one.
const ROOT: u32 = 0x3FE6_A09E;
const ONE: u32 = 0x3FF0_0000;

/// The pair's values, cosine first.
#[cube]
pub(super) fn pair(a: u32, b: u32) -> (f32, f32) {
    // In (0, 1], so that its logarithm is finite. Nothing rounds: it is an integer of 33 bits at most, times a power of two.
    let u = multiply(add(of_integer(a), 1.0), SCALE);
    let angle = multiply(multiply(TAU, of_integer(b)), SCALE);
    let radius = root(multiply(-2.0, logarithm(u)));
    let (cos, sin) = cos_and_sin(angle);
    (narrow(multiply(radius, cos)), narrow(multiply(radius, sin)))
}

/// `ln x` for `x` in `[2^-32, 1]`: `x = 2^-k (1 + f)` with `1 + f` between the root of a half and the root of two, and
/// `ln(1 + f) = f - f²/2 + s (f²/2 + R(s²))` with `s = f / (2 + f)`.
#[cube]
fn logarithm(x: f64) -> f64 {
    let shifted = upper(x) + (ONE - ROOT);
    // Not minus zero for an `x` near one.
    let k = subtract(0.0, of_integer(0x3FFu32 - (shifted >> 20u32)));
    let f = subtract(of_bits(lower(x), (shifted & 0xF_FFFFu32) + ROOT), 1.0);
    let half = multiply(multiply(0.5, f), f);
    let s = divide(f, add(2.0, f));
    let z = multiply(s, s);
    let w = multiply(z, z);
    let even = multiply(w, LOG[5]);
    let even = multiply(w, add(LOG[3], even));
    let even = multiply(w, add(LOG[1], even));
    let odd = multiply(w, LOG[6]);
    let odd = multiply(w, add(LOG[4], odd));
    let odd = multiply(w, add(LOG[2], odd));
    let odd = multiply(z, add(LOG[0], odd));
    let sum = multiply(s, add(half, add(odd, even)));
    let sum = subtract(add(sum, multiply(k, LN2[1])), half);
    add(add(sum, f), multiply(k, LN2[0]))
}

/// Cosine and sine of an angle from 0 to 2 pi.
#[cube]
fn cos_and_sin(angle: f64) -> (f64, f64) {
    let high = upper(angle);
    // The nearest multiple of pi/2: the upper words of pi/4 and so on lie between them.
    let mut n = 0u32;
    if high > 0x3FE9_21FBu32 {
        n += 1u32;
    }
    if high > 0x4002_D97Cu32 {
        n += 1u32;
    }
    if high > 0x400F_6A7Au32 {
        n += 1u32;
    }
    if high > 0x4015_FDBCu32 {
        n += 1u32;
    }
    let (x, y) = rest(angle, high, of_integer(n));

    let z = multiply(x, x);
    let w = multiply(z, z);
    let r = add(COS[1], multiply(z, COS[2]));
    let r = multiply(z, add(COS[0], multiply(z, r)));
    let s = add(COS[4], multiply(z, COS[5]));
    let s = add(COS[3], multiply(z, s));
    let r = add(r, multiply(multiply(w, w), s));
    let half = multiply(0.5, z);
    let near_one = subtract(1.0, half);
    let lost = subtract(subtract(1.0, near_one), half);
    let cos = add(near_one, add(lost, subtract(multiply(z, r), multiply(x, y))));

    let r = multiply(z, add(SIN[2], multiply(z, SIN[3])));
    let s = multiply(multiply(z, w), add(SIN[4], multiply(z, SIN[5])));
    let r = add(add(SIN[1], r), s);
    let v = multiply(z, x);
    // In the first quadrant there is no rest.
    let mut sin = add(x, multiply(v, add(SIN[0], multiply(z, r))));
    if n > 0u32 {
        let t = subtract(multiply(0.5, y), multiply(v, r));
        let t = subtract(multiply(z, t), y);
        sin = subtract(x, subtract(t, multiply(v, SIN[0])));
    }

    let mut c = cos;
    let mut s = sin;
    if n % 2u32 == 1u32 {
        c = sin;
        s = cos;
    }
    if n == 1u32 || n == 2u32 {
        c = multiply(c, -1.0);
    }
    if n == 2u32 || n == 3u32 {
        s = multiply(s, -1.0);
    }
    (c, s)
}

/// What an angle is beyond `n` times pi/2, in two parts.
#[cube]
fn rest(angle: f64, high: u32, n: f64) -> (f64, f64) {
    let first = subtract(angle, multiply(n, PIO2[0]));
    let first_rest = multiply(n, PIO2_REST[0]);
    let mut r = first;
    let mut w = first_rest;
    // One angle in a million is so near that the subtraction leaves too few bits, and more of pi/2 is taken.
    let near =
        high == 0x3FF9_21FBu32 || high == 0x4009_21FBu32 || high == 0x4012_D97Cu32 || high == 0x4019_21FBu32;
    if near && lost(high, subtract(first, first_rest)) > 16u32 {
        let (second, second_rest) = less(first, n, PIO2[1], PIO2_REST[1]);
        r = second;
        w = second_rest;
        if lost(high, subtract(second, second_rest)) > 49u32 {
            let (third, third_rest) = less(second, n, PIO2[2], PIO2_REST[2]);
            r = third;
            w = third_rest;
        }
    }
    let x = subtract(r, w);
    (x, subtract(subtract(r, x), w))
}

/// `of - n · part`, and what is to be taken of that for its rounding and for the rest of `n · pi/2`.
#[cube]
fn less(of: f64, n: f64, part: f64, part_rest: f64) -> (f64, f64) {
    let w = multiply(n, part);
    let r = subtract(of, w);
    let rounding = subtract(subtract(of, r), w);
    (r, subtract(multiply(n, part_rest), rounding))
}

/// Leading bits that a difference of an angle lost.
#[cube]
fn lost(high: u32, difference: f64) -> u32 {
    (high >> 20u32) - ((upper(difference) >> 20u32) & 0x7FFu32)
}

#[cfg(test)]
mod tests {
    use super::pair;

    fn check(a: u32, b: u32) {
        let u = (f64::from(a) + 1.0) / 4_294_967_296.0;
        let angle = std::f64::consts::TAU * f64::from(b) / 4_294_967_296.0;
        let radius = libm::sqrt(-2.0 * libm::log(u));
        let (cos, sin) = pair(a, b);
        let bits = [cos, sin].map(f32::to_bits);
        let expected = [libm::cos(angle), libm::sin(angle)].map(|of| ((radius * of) as f32).to_bits());
        assert_eq!(bits, expected, "words {a:#x} and {b:#x}");
        // And before they are rounded, which hides a last bit.
        let bits = |(cos, sin): (f64, f64)| [cos, sin].map(f64::to_bits);
        let expected = (libm::cos(angle), libm::sin(angle));
        assert_eq!(
            bits(super::cos_and_sin(angle)),
            bits(expected),
            "cosine and sine of {angle:e}"
        );
        let found = super::logarithm(u);
        assert_eq!(found.to_bits(), libm::log(u).to_bits(), "log of {u:e}");
    }

    #[test]
    fn a_pair_has_the_bits_of_libm_around_every_turn_of_the_angle_and_at_both_ends() {
        let ends = [
            0,
            1,
            2,
            u32::MAX / 2,
            u32::MAX - 1,
            u32::MAX,
            0xB504_F333,
            0x5A82_7999,
        ];
        for eighth in 0..8u32 {
            for far in [1u32, 3, 11, 37, 101, 500, 2_000, 5_000, 70_000, 3_000_000] {
                for at in 0..2048u32 {
                    let away = at.wrapping_sub(1024).wrapping_mul(far);
                    let a = ends[(at % 8) as usize];
                    check(a, (eighth << 29).wrapping_add(away));
                }
            }
        }
    }

    #[test]
    fn a_pair_of_any_words_has_the_bits_of_libm() {
        for block in 0..300_000 {
            let [a, b, c, d] = flow_rng::philox4x32_10([block, 1, 2, 3], [7, 8]);
            check(a, b);
            check(c, d);
        }
    }
}
