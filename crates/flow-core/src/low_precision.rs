//! Matrices in 8 bits a value with one scale for each row: how frozen weights are stored that are widened before each product.
//!
//! A row's scale is its largest magnitude divided by the largest code, rounded to a bf16; a value is the product of its code and the
//! scale. A code has at most 7 significant bits and a scale 8, so the product is exact in f32. Therefore a matrix that was widened
//! is stored again as the same bits, and every device widens to the same f32.
//!
//! | format | codes | error of a value |
//! |---|---|---|
//! | FP8 e4m3 (Micikevicius et al. 2022, arXiv:2209.05433) | up to 448, 4 significant bits, none for infinities | 1/16 of the value; 2^-10 of the scale where that is more |
//! | INT8 | -127 to 127 | half of the scale: 1/253 of the row's largest magnitude |
//!
//! Stored is one tensor of 32-bit words: the codes row by row, four in a word, the first in the lowest bits, a row filled up to whole
//! words; behind them the bits of the f32 scales.

mod rule;

pub use rule::{LowPrecisionRule, MIN_COLUMNS};

use crate::tensors::{RawTensor, is_float, shape};
use burn::tensor::{Int, Tensor};
use half::bf16;
use rayon::prelude::*;
use std::fmt;

/// Codes in a word.
const CODES: usize = 4;
/// The smallest scale, 2^-116: the product of any code and a scale is a normal f32, which no device takes for zero.
const SMALLEST_SCALE: f32 = f32::from_bits((127 - 116) << 23);
/// Where the exponents of e4m3 (bias 7) lie among those of f32 (bias 127), over three bits of mantissa.
const E4M3_EXPONENTS: u32 = (127 - 7) << 3;
/// The steps of the smallest e4m3 numbers are 1 / 512.
const E4M3_STEPS: f32 = 512.0;

/// How a value of a matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LowPrecisionFormat {
    /// FP8 e4m3: sign, 4 bits of exponent, 3 of mantissa.
    Fp8,
    /// Integers of 8 bits, from -127 to 127.
    Int8,
}

/// How a matrix is stored whose values are codes with a scale for each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LowPrecision {
    /// How a value is stored.
    pub format: LowPrecisionFormat,
    /// Output channels of the layer.
    pub rows: usize,
    /// Input channels of the layer.
    pub columns: usize,
}

/// A value that is not finite, for which there is no code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotFinite;

impl LowPrecisionFormat {
    /// All formats.
    pub const ALL: [Self; 2] = [Self::Fp8, Self::Int8];

    /// Name in configs, logs and errors.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp8 => "fp8",
            Self::Int8 => "int8",
        }
    }

    /// The largest code.
    fn largest(self) -> f32 {
        match self {
            Self::Fp8 => 448.0,
            Self::Int8 => 127.0,
        }
    }

    /// The code nearest to `value`, of two equally near ones the even one; beyond the largest code that.
    fn encode(self, value: f32) -> u8 {
        let largest = self.largest();
        let value = value.clamp(-largest, largest);
        match self {
            Self::Int8 => value.round_ties_even() as i8 as u8,
            Self::Fp8 => {
                let sign = (value.to_bits() >> 24) as u8 & 0x80;
                let magnitude = value.abs();
                // The smallest normal number is 2^-6; eight steps below it are that number's code.
                let code = if magnitude < 8.0 / E4M3_STEPS {
                    (magnitude * E4M3_STEPS).round_ties_even() as u8
                } else {
                    let bits = magnitude.to_bits();
                    let rounded = bits + 0x7_FFFF + ((bits >> 20) & 1);
                    ((rounded >> 20) - E4M3_EXPONENTS) as u8
                };
                sign | code
            }
        }
    }

    /// The value of a code, without its scale.
    fn decode(self, code: u8) -> f32 {
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
        }
    }
}

impl fmt::Display for LowPrecisionFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl LowPrecision {
    /// Words of the codes of a row.
    pub fn words_per_row(&self) -> usize {
        self.columns.div_ceil(CODES)
    }

    /// Words of all codes.
    fn code_words(&self) -> usize {
        self.rows * self.words_per_row()
    }

    /// Words of codes and scales.
    pub fn words(&self) -> usize {
        self.code_words() + self.rows
    }

    /// Bytes of codes and scales.
    pub fn bytes(&self) -> usize {
        4 * self.words()
    }

    /// Number of values.
    pub fn values(&self) -> usize {
        self.rows * self.columns
    }

    /// Whether `tensor` is as long as a matrix that is stored so, and of words.
    pub fn is_stored_in(&self, tensor: &RawTensor) -> bool {
        !is_float(tensor) && shape(tensor) == [self.words()]
    }

    /// The words of `values`, `[rows, columns]`, row-major.
    ///
    /// # Errors
    /// [`NotFinite`] if a value is.
    ///
    /// # Panics
    /// If there are not as many values.
    pub fn quantise(&self, values: &[f32]) -> Result<Vec<i32>, NotFinite> {
        assert_eq!(values.len(), self.values(), "values of a matrix");
        let mut words = vec![0; self.words()];
        if values.is_empty() {
            return Ok(words);
        }
        let (codes, scales) = words.split_at_mut(self.code_words());
        let rows = codes.par_chunks_mut(self.words_per_row()).zip(scales);
        rows.zip(values.par_chunks(self.columns))
            .try_for_each(|((codes, scale), values)| {
                let found = self.format.quantise_row(values, codes)?;
                *scale = found.to_bits() as i32;
                Ok::<(), NotFinite>(())
            })?;
        Ok(words)
    }

    /// The values `[rows, columns]` of [`words`](Self::quantise), row-major.
    ///
    /// # Panics
    /// If there are not as many words.
    pub fn widen(&self, words: &[i32]) -> Vec<f32> {
        assert_eq!(words.len(), self.words(), "words of a matrix");
        let mut values = vec![0.0; self.values()];
        if values.is_empty() {
            return values;
        }
        let decoded: [f32; 256] = std::array::from_fn(|code| self.format.decode(code as u8));
        let (codes, scales) = words.split_at(self.code_words());
        let rows = codes.par_chunks(self.words_per_row()).zip(scales);
        rows.zip(values.par_chunks_mut(self.columns))
            .for_each(|((codes, scale), values)| {
                let scale = f32::from_bits(*scale as u32);
                for (values, word) in values.chunks_mut(CODES).zip(codes) {
                    for (value, code) in values.iter_mut().zip(word.to_le_bytes()) {
                        *value = decoded[usize::from(code)] * scale;
                    }
                }
            });
        values
    }

    /// The values `[rows, columns]` of a stored matrix on any device, on the host.
    ///
    /// # Panics
    /// If `stored` is not of this form.
    pub fn host(&self, stored: &RawTensor) -> Vec<f32> {
        assert!(self.is_stored_in(stored), "a matrix in another form");
        let words = Tensor::<1, Int>::from_dispatch(stored.clone()).into_data();
        let words: Vec<i32> = words.iter::<i32>().collect();
        self.widen(&words)
    }
}

impl LowPrecisionFormat {
    /// Writes the codes of a row; gives its scale.
    fn quantise_row(self, values: &[f32], codes: &mut [i32]) -> Result<f32, NotFinite> {
        if !values.iter().all(|value| value.is_finite()) {
            return Err(NotFinite);
        }
        let largest = values
            .iter()
            .fold(0.0f32, |largest, value| largest.max(value.abs()));
        // Rounded by 2^-8 at most, so that the row's largest value has the largest code again.
        let scale = bf16::from_f32(largest / self.largest())
            .to_f32()
            .max(SMALLEST_SCALE);
        for (word, values) in codes.iter_mut().zip(values.chunks(CODES)) {
            let mut bytes = [0; CODES];
            for (byte, value) in bytes.iter_mut().zip(values) {
                *byte = self.encode(value / scale);
            }
            *word = i32::from_le_bytes(bytes);
        }
        Ok(scale)
    }
}

#[cfg(test)]
mod tests;
