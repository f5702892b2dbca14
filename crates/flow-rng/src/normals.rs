//! Many standard normal values at once, with the bits of one after another.
//!
//! [`Draws::normal`](crate::Draws::normal) takes its logarithm, sine and cosine from `libm`, which computes them in f64 by
//! additions, products and a division: rounded by IEEE 754, so the same on every platform. Here are the same operations in
//! the same order (`libm` 0.2.16: `log.rs`, `rem_pio2.rs`, `k_sin.rs`, `k_cos.rs`, after FreeBSD's msun) without its
//! branches, of which these arguments see three: what is chosen between is computed, and chosen by value. So the compiler
//! makes vectors of it, as wide as the processor has them. Rust never fuses a product and an addition by itself.
//!
//! 3.6 ns a value on one core of an AMD EPYC with AVX-512, where one after another takes 16.7.

use crate::msun::{COS, LN2, LOG, PIO2, PIO2_REST, SIN};
use std::array::from_fn;

/// Values made at once: 16 blocks of four words, a pair of words for a pair of values.
pub(crate) const GROUP: usize = 64;
/// Blocks of a group.
pub(crate) const BLOCKS: usize = GROUP / 4;
/// Pairs of a group.
const PAIRS: usize = GROUP / 2;

const TWO_32: f64 = 4_294_967_296.0;

/// Where the next quadrant begins: behind the high words of pi/4 and so on.
const QUADRANTS: [f64; 4] = [
    f64::from_bits(0x3FE9_21FC << 32),
    f64::from_bits(0x4002_D97D << 32),
    f64::from_bits(0x400F_6A7B << 32),
    f64::from_bits(0x4015_FDBD << 32),
];
/// High words of the multiples of pi/2.
const NEAR: [u32; 4] = [0x3FF9_21FB, 0x4009_21FB, 0x4012_D97C, 0x4019_21FB];

/// Fills `out`, whole groups, with the values at an address from block `first` on.
pub(crate) fn fill(key: [u32; 2], address: [u32; 3], first: u32, out: &mut [f32]) {
    pulp::Arch::new().dispatch(Fill {
        key,
        address,
        first,
        out,
    });
}

/// As a type, so that everything below is compiled for the widest vectors of the processor.
struct Fill<'a> {
    key: [u32; 2],
    address: [u32; 3],
    first: u32,
    out: &'a mut [f32],
}

impl pulp::NullaryFnOnce for Fill<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (group, out) in self.out.chunks_exact_mut(GROUP).enumerate() {
            let blocks = words(self.key, self.address, self.first + (group * BLOCKS) as u32);
            // Of the four words of a block the first two make a pair of values, and the last two.
            let (mut a, mut b) = ([0; PAIRS], [0; PAIRS]);
            for block in 0..BLOCKS {
                (a[2 * block], b[2 * block]) = (blocks[0][block], blocks[1][block]);
                (a[2 * block + 1], b[2 * block + 1]) = (blocks[2][block], blocks[3][block]);
            }
            pairs(a, b, out);
        }
    }
}

/// The four words of each block.
#[inline(always)]
fn words(key: [u32; 2], address: [u32; 3], first: u32) -> [[u32; BLOCKS]; 4] {
    let [b, c, d] = address.map(|word| [word; BLOCKS]);
    crate::philox([from_fn(|block| first + block as u32), b, c, d], key)
}

/// A uniform value in (0, 1], so that its logarithm is finite, and an angle in [0, 2 pi).
#[inline(always)]
fn value_and_angle(a: u32, b: u32) -> [f64; 2] {
    [
        (f64::from(a) + 1.0) / TWO_32,
        std::f64::consts::TAU * f64::from(b) / TWO_32,
    ]
}

/// Box and Muller's pair of values, cosine first.
pub(crate) fn pair(a: u32, b: u32) -> [f64; 2] {
    let [u, angle] = value_and_angle(a, b);
    let radius = libm::sqrt(-2.0 * libm::log(u));
    [radius * libm::cos(angle), radius * libm::sin(angle)]
}

/// As [`pair`], many of them, rounded to f32.
#[inline(always)]
fn pairs(a: [u32; PAIRS], b: [u32; PAIRS], out: &mut [f32]) {
    let u: [f64; PAIRS] = from_fn(|i| value_and_angle(a[i], b[i])[0]);
    let angle: [f64; PAIRS] = from_fn(|i| value_and_angle(a[i], b[i])[1]);
    // One in a million: the subtraction below would leave too few bits.
    if angle.iter().any(|angle| NEAR.contains(&high(*angle))) {
        for (i, out) in out.chunks_exact_mut(2).enumerate() {
            out.copy_from_slice(&pair(a[i], b[i]).map(|value| value as f32));
        }
        return;
    }
    let mut values = [[0.0f32; PAIRS]; 2];
    for i in 0..PAIRS {
        let radius = (-2.0 * logarithm(u[i])).sqrt();
        let [cos, sin] = cos_and_sin(angle[i]);
        values[0][i] = (radius * cos) as f32;
        values[1][i] = (radius * sin) as f32;
    }
    for (i, out) in out.chunks_exact_mut(2).enumerate() {
        out[0] = values[0][i];
        out[1] = values[1][i];
    }
}

#[inline(always)]
fn high(x: f64) -> u32 {
    (x.to_bits() >> 32) as u32
}

/// `ln x` of a normal number: `x = 2^k (1 + f)` with `1 + f` between the root of a half and the root of two, and
/// `ln(1 + f) = f - f²/2 + s (f²/2 + R(s²))` with `s = f / (2 + f)`.
#[inline(always)]
fn logarithm(x: f64) -> f64 {
    const ROOT: u64 = 0x3FE6_A09E << 32;
    const ONE: u64 = 0x3FF0_0000 << 32;
    let [c1, c2, c3, c4, c5, c6, c7] = LOG;
    let shifted = x.to_bits().wrapping_add(ONE.wrapping_sub(ROOT));
    let k = ((shifted >> 52) as i32 - 0x3FF) as f64;
    let f = f64::from_bits((shifted & (u64::MAX >> 12)).wrapping_add(ROOT)) - 1.0;
    let half = 0.5 * f * f;
    let s = f / (2.0 + f);
    let z = s * s;
    let w = z * z;
    let even = w * (c2 + w * (c4 + w * c6));
    let odd = z * (c1 + w * (c3 + w * (c5 + w * c7)));
    s * (half + (odd + even)) + k * LN2[1] - half + f + k * LN2[0]
}

/// Cosine and sine of an angle from 0 to 2 pi that is not [`NEAR`] a multiple of pi/2.
#[inline(always)]
fn cos_and_sin(angle: f64) -> [f64; 2] {
    let beyond = QUADRANTS.map(|start| angle >= start);
    let [first, second, third, fourth] = beyond;
    let n = beyond.map(|beyond| if beyond { 1.0 } else { 0.0 });
    let n = (n[0] + n[1]) + (n[2] + n[3]);
    // What is left of the angle, in two parts; in the first quadrant the angle itself, and nothing.
    let (z, w) = (angle - n * PIO2[0], n * PIO2_REST[0]);
    let x = z - w;
    let y = (z - x) - w;

    let z = x * x;
    let w = z * z;
    let [c1, c2, c3, c4, c5, c6] = COS;
    let r = z * (c1 + z * (c2 + z * c3)) + w * w * (c4 + z * (c5 + z * c6));
    let half = 0.5 * z;
    let near_one = 1.0 - half;
    let cos = near_one + (((1.0 - near_one) - half) + (z * r - x * y));

    let [s1, s2, s3, s4, s5, s6] = SIN;
    let r = s2 + z * (s3 + z * s4) + z * w * (s5 + z * s6);
    let v = z * x;
    let of_angle = x + v * (s1 + z * r);
    let of_rest = x - ((z * (0.5 * y - v * r) - y) - v * s1);
    let sin = if first { of_rest } else { of_angle };

    let odd = (first & !second) | (third & !fourth);
    let [c, s] = if odd { [sin, cos] } else { [cos, sin] };
    [
        if first & !third { -c } else { c },
        if second & !fourth { -s } else { s },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn angle(b: u32) -> f64 {
        std::f64::consts::TAU * f64::from(b) / TWO_32
    }

    /// One pair after another, as `Draws::normal` makes them.
    fn expected(a: u32, b: u32) -> [f32; 2] {
        let radius = libm::sqrt(-2.0 * libm::log((f64::from(a) + 1.0) / TWO_32));
        [libm::cos(angle(b)), libm::sin(angle(b))].map(|of| (radius * of) as f32)
    }

    fn check(a: [u32; PAIRS], b: [u32; PAIRS]) {
        let mut found = [0.0; GROUP];
        pairs(a, b, &mut found);
        for (i, found) in found.chunks_exact(2).enumerate() {
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(
                bits(found),
                bits(&expected(a[i], b[i])),
                "words {:#x} and {:#x}",
                a[i],
                b[i]
            );
            // And before they are rounded, which hides a last bit.
            let u = (f64::from(a[i]) + 1.0) / TWO_32;
            assert_eq!(logarithm(u).to_bits(), libm::log(u).to_bits(), "log of {u:e}");
            let angle = angle(b[i]);
            if !NEAR.contains(&high(angle)) {
                let expected = [libm::cos(angle), libm::sin(angle)];
                let bits = |values: [f64; 2]| values.map(f64::to_bits);
                assert_eq!(
                    bits(cos_and_sin(angle)),
                    bits(expected),
                    "cosine and sine of {angle:e}"
                );
            }
        }
    }

    #[test]
    fn pairs_have_the_bits_of_libm_around_every_turn_of_the_angle_and_at_both_ends() {
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
            let turn = eighth << 29;
            for far in [1u32, 3, 11, 37, 101, 500, 2_000, 5_000, 70_000, 3_000_000] {
                for from in 0..64u32 {
                    let at = |i: usize| {
                        (i as u32)
                            .wrapping_sub(1024)
                            .wrapping_add(from * 32)
                            .wrapping_mul(far)
                    };
                    check(
                        from_fn(|i| ends[(i + eighth as usize) % ends.len()]),
                        from_fn(|i| turn.wrapping_add(at(i))),
                    );
                }
            }
        }
    }

    #[test]
    fn pairs_of_any_words_have_the_bits_of_libm() {
        for block in 0..20_000 {
            let words = words([7, 8], [1, 2, 3], block * BLOCKS as u32);
            check(
                from_fn(|i| words[i % 2][i / 2]),
                from_fn(|i| words[2 + i % 2][i / 2]),
            );
        }
    }
}
