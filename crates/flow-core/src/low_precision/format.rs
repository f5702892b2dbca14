//! The formats of codes: how many bits a code has, what it stands for, which values share a scale.

use std::fmt;

/// Where the exponents of e4m3 (bias 7) lie among those of f32 (bias 127), over three bits of mantissa.
const E4M3_EXPONENTS: u32 = (127 - 7) << 3;
/// The steps of the smallest e4m3 numbers are 1 / 512.
const E4M3_STEPS: f32 = 512.0;
/// The smallest normal e4m3 number, 2^-6: eight steps, and the code 8.
const E4M3_SMALLEST_NORMAL: f32 = 8.0 / E4M3_STEPS;
/// 1.5 · 2^14: f32s beside it are 1 / 512 apart.
const E4M3_STEPS_APART: f32 = 24_576.0;
/// 1.5 · 2^23: f32s beside it are 1 apart, and their lowest bits are those of the integer that lies between.
const INTEGERS_APART: f32 = 12_582_912.0;
/// Values whose codes are computed at a time, before they are put into words.
const CODES_AT_A_TIME: usize = 64;
/// Values of a block of NF4 (`blocksize` in QLoRA, section 3).
const NF4_BLOCK: usize = 64;
/// The values of NF4 by code (QLoRA, appendix E), each the shortest decimal of the f32 given there.
const NF4_VALUES: [f32; 16] = [
    -1.0,
    -0.6961928,
    -0.52507305,
    -0.3949175,
    -0.28444138,
    -0.18477343,
    -0.091050036,
    0.0,
    0.0795803,
    0.1609302,
    0.2461123,
    0.33791524,
    0.44070983,
    0.562617,
    0.72295684,
    1.0,
];
/// By code but the last: the smallest f32 that is rounded to a larger code.
const NF4_THRESHOLDS: [f32; 15] = nf4_thresholds();

/// How a value of a matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LowPrecisionFormat {
    /// FP8 e4m3: sign, 4 bits of exponent, 3 of mantissa; a scale for each row.
    Fp8,
    /// Integers of 8 bits, from -127 to 127; a scale for each row.
    Int8,
    /// 4-bit NormalFloat: 16 values from -1 to 1, dense where normal numbers are; a scale for each block of 64 values of a row.
    Nf4,
}

impl LowPrecisionFormat {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Fp8, Self::Int8, Self::Nf4];

    /// Name in configs, logs and errors.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp8 => "fp8",
            Self::Int8 => "int8",
            Self::Nf4 => "nf4",
        }
    }

    /// Bits of a code.
    pub(super) fn code_bits(self) -> usize {
        match self {
            Self::Fp8 | Self::Int8 => 8,
            Self::Nf4 => 4,
        }
    }

    /// Codes in a word.
    pub(super) fn codes_per_word(self) -> usize {
        32 / self.code_bits()
    }

    /// Values of a row that share a scale, a multiple of the codes in a word; none if all do.
    pub(super) fn block(self) -> Option<usize> {
        match self {
            Self::Fp8 | Self::Int8 => None,
            Self::Nf4 => Some(NF4_BLOCK),
        }
    }

    /// The largest code's value.
    pub(super) fn largest(self) -> f32 {
        match self {
            Self::Fp8 => 448.0,
            Self::Int8 => 127.0,
            Self::Nf4 => 1.0,
        }
    }

    /// Writes the codes of values that share `scale`, as many in a word as it has room for: the nearest to each value divided by the
    /// scale, of two equally near ones the even one; beyond the largest code that.
    pub(super) fn encode(self, values: &[f32], scale: f32, words: &mut [i32]) {
        let largest = self.largest();
        let scaled = |value: f32| (value / scale).clamp(-largest, largest);
        match self {
            Self::Fp8 => pack::<4>(values, words, |value| e4m3_code(scaled(value))),
            Self::Int8 => pack::<4>(values, words, |value| {
                (scaled(value) + INTEGERS_APART).to_bits() & 0xFF
            }),
            Self::Nf4 => pack::<8>(values, words, |value| nf4_code(scaled(value))),
        }
    }

    /// The value of a code, without its scale. Only the lowest [`code_bits`](Self::code_bits) are read.
    pub(super) fn decode(self, code: u8) -> f32 {
        match self {
            Self::Int8 => f32::from(code as i8),
            Self::Fp8 => {
                let bits = u32::from(code & 0x7F);
                let magnitude = match bits < 8 {
                    true => bits as f32 / E4M3_STEPS,
                    false => f32::from_bits((bits + E4M3_EXPONENTS) << 20),
                };
                if code & 0x80 == 0 { magnitude } else { -magnitude }
            }
            Self::Nf4 => NF4_VALUES[usize::from(code & 0xF)],
        }
    }
}

impl fmt::Display for LowPrecisionFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The number nearest to `value` of those that e4m3 has, of two equally near ones the one with the even code; beyond 464, where 448 is
/// no longer the nearest, the numbers go on as if there were larger exponents. NaN stays NaN.
#[inline(always)]
pub(super) fn round_to_e4m3(value: f32) -> f32 {
    let rounded = e4m3_magnitude(
        value.abs(),
        |steps| steps - E4M3_STEPS_APART,
        |upper_bits| f32::from_bits(upper_bits << 20),
    );
    // The rounding of some NaN would carry into the sign.
    if value.is_nan() {
        value
    } else {
        rounded.copysign(value)
    }
}

/// The e4m3 code nearest to `value`, which is at most 448 and no NaN; of two equally near ones the even one.
#[inline(always)]
fn e4m3_code(value: f32) -> u32 {
    // Codes of small numbers are multiples of a step.
    let code = e4m3_magnitude(
        value.abs(),
        |steps| steps.to_bits() - E4M3_STEPS_APART.to_bits(),
        |upper_bits| upper_bits.wrapping_sub(E4M3_EXPONENTS),
    );
    (value.to_bits() >> 24) & 0x80 | code
}

/// Rounds `magnitude`, which has no sign, to e4m3. `small` makes the result of a number below the normal ones, of which it is given the
/// sum with [`E4M3_STEPS_APART`]; `normal` that of any other, of which it is given the upper 12 bits as f32: no sign, the exponent, 3 bits
/// of mantissa. A code is made of these, not of the number: that would take more instructions for each of a model's billions of weights.
#[inline(always)]
fn e4m3_magnitude<T>(magnitude: f32, small: impl Fn(f32) -> T, normal: impl Fn(u32) -> T) -> T {
    let bits = magnitude.to_bits();
    // Both are computed, so that a loop needs no branch.
    let small = small(magnitude + E4M3_STEPS_APART);
    let normal = normal((bits + 0x7_FFFF + ((bits >> 20) & 1)) >> 20);
    if bits < E4M3_SMALLEST_NORMAL.to_bits() {
        small
    } else {
        normal
    }
}

/// The NF4 code nearest to `value`: as many as there are thresholds that it has reached.
#[inline(always)]
fn nf4_code(value: f32) -> u32 {
    let reached = NF4_THRESHOLDS.map(|threshold| u32::from(threshold <= value));
    reached.iter().sum()
}

/// Puts the codes of values into words, `PER_WORD` of them into each, the first into the lowest bits. Codes of many values are computed
/// before any is put into its word: that loop has no branch, and processors do it for several values at once.
#[inline(always)]
fn pack<const PER_WORD: usize>(values: &[f32], words: &mut [i32], code: impl Fn(f32) -> u32) {
    let bits = 32 / PER_WORD;
    let several = words.chunks_mut(CODES_AT_A_TIME / PER_WORD);
    for (values, words) in values.chunks(CODES_AT_A_TIME).zip(several) {
        let codes = match <&[f32; CODES_AT_A_TIME]>::try_from(values) {
            Ok(values) => values.map(&code),
            Err(_) => std::array::from_fn(|place| values.get(place).map_or(0, |value| code(*value))),
        };
        for (word, codes) in words.iter_mut().zip(codes.chunks_exact(PER_WORD)) {
            let with = |word: u32, code: &u32| (word << bits) | code;
            *word = codes.iter().rev().fold(0, with) as i32;
        }
    }
}

/// See [`NF4_THRESHOLDS`]. The middle of two codes is exact in f64; a value there gets the even code.
const fn nf4_thresholds() -> [f32; 15] {
    let mut thresholds = [0.0; 15];
    let mut code = 0;
    while code < thresholds.len() {
        let middle = (NF4_VALUES[code] as f64 + NF4_VALUES[code + 1] as f64) / 2.0;
        let rounded = middle as f32;
        let is_middle_above = code % 2 == 1;
        let is_above = rounded as f64 > middle || (rounded as f64 == middle && is_middle_above);
        thresholds[code] = if is_above { rounded } else { rounded.next_up() };
        code += 1;
    }
    thresholds
}
