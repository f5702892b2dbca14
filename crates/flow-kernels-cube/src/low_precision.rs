//! A matrix in 8 bits a value with a scale for each row, as numbers: what frozen weights are right before a product.
//!
//! Stored are 32-bit words: the codes row by row, four in a word, the first in the lowest bits, a row filled up to whole words; behind
//! them the bits of the f32 scales. A value is the product of its code and its row's scale in f32, rounded to nearest where it is
//! stored in fewer bits.

use crate::buffer::{Buffer, Refused, address_type, at_least_one, grid, width, with_type};
use crate::columns::THREADS;
use cubecl::prelude::*;
use cubecl_runtime::server::Handle;

/// Codes in a word.
const CODES: usize = 4;

/// How a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeFormat {
    /// FP8 e4m3: sign, 4 bits of exponent with bias 7, 3 of mantissa (Micikevicius et al. 2022, arXiv:2209.05433). Codes of NaN do
    /// not occur.
    E4m3,
    /// Integers of 8 bits in two's complement.
    Int8,
}

/// The value of a code, without its scale.
#[cube]
fn decoded(code: u32, #[comptime] is_e4m3: bool) -> f32 {
    let mut value = f32::cast_from(code ^ 0x80u32) - 128.0f32;
    if comptime!(is_e4m3) {
        let bits = code & 0x7Fu32;
        // Below the smallest normal number, 2^-6, steps are 2^-9.
        let small = f32::cast_from(bits) * 0.001953125f32;
        // The exponent moved from bias 7 to 127, over three bits of mantissa: (127 - 7) · 8.
        let normal = f32::reinterpret((bits + 960u32) << 20u32);
        let magnitude = select(bits < 8u32, small, normal);
        value = select(code >= 0x80u32, -magnitude, magnitude);
    }
    value
}

/// A thread widens the values of a vector, all of one row.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn widen_kernel<F: Float, N: Size>(
    words: &[u32],
    values: &mut [Vector<F, N>],
    vectors: usize,
    row_vectors: usize,
    row_words: usize,
    scales: usize,
    #[comptime] is_e4m3: bool,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let row = at / row_vectors;
        let first = at % row_vectors * N::value();
        let scale = f32::reinterpret(words[scales + row]);
        let mut value = Vector::<f32, N>::empty();
        #[unroll]
        for lane in 0..N::value() {
            let column = first + lane;
            let word = words[row * row_words + column / 4];
            let code = (word >> ((column % 4) as u32 * 8u32)) & 0xFFu32;
            value.insert(lane, decoded(code, is_e4m3) * scale);
        }
        values[at] = Vector::cast_from(value);
    }
}

/// A matrix in 8 bits a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowPrecision {
    /// How a value is stored.
    pub format: CodeFormat,
    /// Rows, each with a scale.
    pub rows: usize,
    /// Values of a row.
    pub columns: usize,
}

impl LowPrecision {
    /// Words of codes and scales.
    pub fn words(&self) -> usize {
        self.rows * (self.columns.div_ceil(CODES) + 1)
    }

    /// Writes the values `[rows, columns]` of `words` to `values`, of any type.
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit; nothing was launched then.
    pub fn widen(&self, client: &Client, words: &Handle, values: &Buffer) -> Result<(), Refused> {
        at_least_one("rows", self.rows)?;
        at_least_one("columns", self.columns)?;
        values.expect("values", self.rows * self.columns)?;
        let (found, expected) = (words.size_in_used() as usize / 4, self.words());
        if found < expected {
            return Err(Refused::Length {
                name: "words",
                found,
                expected,
            });
        }
        let width = width(self.columns, values.element);
        let row_words = self.columns.div_ceil(CODES);
        let vectors = values.length / width;
        // SAFETY: all lengths were checked.
        with_type!(values.element, F => unsafe {
            widen_kernel::launch_unchecked::<F>(
                client,
                grid(client, vectors.div_ceil(THREADS)),
                CubeDim::new_1d(THREADS as u32),
                address_type(&[values]),
                width,
                BufferArg::from_raw_parts(words.clone(), expected),
                values.argument(),
                vectors,
                self.columns / width,
                row_words,
                self.rows * row_words,
                self.format == CodeFormat::E4m3,
            );
        });
        Ok(())
    }
}
