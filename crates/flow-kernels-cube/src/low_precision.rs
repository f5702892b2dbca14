//! A matrix in 8 or 4 bits a value with scales, as numbers: what frozen weights are right before a product.
//!
//! Stored are 32-bit words: the codes row by row, as many in a word as it has room for, the first in the lowest bits, a row filled up to
//! whole words; behind them the scales row by row, two bf16s in a word, the first in the upper half, a row filled up to whole words. A
//! value is the product of its code's value and its scale in f32, rounded to nearest where it is stored in fewer bits.

use crate::buffer::{Buffer, Refusal, address_type, at_least_one, grid, width, with_type, wrong_length};
use crate::columns::THREADS;
use cubecl::prelude::*;
use cubecl_runtime::server::Handle;
use flow_cube::e4m3::decode;

/// Values of a block of NF4. Every vector lies in one: its width is a power of two of at most 16 bytes, and divides a row.
const NF4_BLOCK: usize = 64;

/// How a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeFormat {
    /// FP8 e4m3: sign, 4 bits of exponent with bias 7, 3 of mantissa (Micikevicius et al. 2022, arXiv:2209.05433). Codes of NaN do
    /// not occur. A row has a scale.
    E4m3,
    /// Integers of 8 bits in two's complement. A row has a scale.
    Int8,
    /// 4-bit NormalFloat (Dettmers et al. 2023, QLoRA, arXiv:2305.14314, appendix E). Blocks of 64 values of a row have scales; the
    /// last may be shorter.
    Nf4,
}

impl CodeFormat {
    /// Bits of a code.
    pub fn code_bits(self) -> usize {
        match self {
            Self::E4m3 | Self::Int8 => 8,
            Self::Nf4 => 4,
        }
    }

    /// Codes in a word.
    pub fn codes_per_word(self) -> usize {
        32 / self.code_bits()
    }

    /// Scales of a row of `columns` values.
    pub fn scales(self, columns: usize) -> usize {
        match self {
            Self::E4m3 | Self::Int8 => 1,
            Self::Nf4 => columns.div_ceil(NF4_BLOCK),
        }
    }
}

/// Of four values the one that the two lowest bits of `index` say.
#[cube]
fn one_of_four(index: u32, value_0: f32, value_1: f32, value_2: f32, value_3: f32) -> f32 {
    let is_odd = (index & 1u32) == 1u32;
    let lower = select(is_odd, value_1, value_0);
    let upper = select(is_odd, value_3, value_2);
    select((index & 2u32) == 2u32, upper, lower)
}

/// The value of a code of NF4. A tree of choices, since a table that threads index is not kept in registers.
#[cube]
fn normal_float(code: u32) -> f32 {
    let quarter_0 = one_of_four(code, -1.0f32, -0.6961928f32, -0.52507305f32, -0.3949175f32);
    let quarter_1 = one_of_four(code, -0.28444138f32, -0.18477343f32, -0.091050036f32, 0.0f32);
    let quarter_2 = one_of_four(code, 0.0795803f32, 0.1609302f32, 0.2461123f32, 0.33791524f32);
    let quarter_3 = one_of_four(code, 0.44070983f32, 0.562617f32, 0.72295684f32, 1.0f32);
    one_of_four(code >> 2u32, quarter_0, quarter_1, quarter_2, quarter_3)
}

/// The value of a code, without its scale.
#[cube]
fn decoded(code: u32, #[comptime] format: CodeFormat) -> f32 {
    let mut value = 0.0f32;
    if comptime!(format == CodeFormat::Int8) {
        value = f32::cast_from(code ^ 0x80u32) - 128.0f32;
    }
    if comptime!(format == CodeFormat::Nf4) {
        value = normal_float(code);
    }
    if comptime!(format == CodeFormat::E4m3) {
        value = decode(code);
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
    row_scale_words: usize,
    #[comptime] format: CodeFormat,
) {
    let codes_per_word = comptime!(format.codes_per_word());
    let code_bits = comptime!(format.code_bits() as u32);
    let code_mask = comptime!((1u32 << format.code_bits()) - 1);
    let at = ABSOLUTE_POS;
    if at < vectors {
        let row = at / row_vectors;
        let first = at % row_vectors * N::value();
        let row_scales = scales + row * row_scale_words;
        let mut scale_bits = words[row_scales];
        if comptime!(format == CodeFormat::Nf4) {
            let block = first / NF4_BLOCK;
            let pair = words[row_scales + block / 2];
            scale_bits = select(block % 2 == 1, pair << 16u32, pair);
        }
        let scale = f32::reinterpret(scale_bits & 0xFFFF_0000u32);
        let mut value = Vector::<f32, N>::empty();
        #[unroll]
        for lane in 0..N::value() {
            let column = first + lane;
            let word = words[row * row_words + column / codes_per_word];
            let code = (word >> ((column % codes_per_word) as u32 * code_bits)) & code_mask;
            value.insert(lane, decoded(code, format) * scale);
        }
        values[at] = Vector::cast_from(value);
    }
}

/// A matrix in 8 or 4 bits a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowPrecision {
    /// How a value is stored.
    pub format: CodeFormat,
    /// Rows.
    pub rows: usize,
    /// Values of a row.
    pub columns: usize,
}

impl LowPrecision {
    /// Words of the codes of a row.
    pub fn row_words(&self) -> usize {
        self.columns.div_ceil(self.format.codes_per_word())
    }

    /// Words of the scales of a row, two in a word.
    fn row_scale_words(&self) -> usize {
        self.format.scales(self.columns).div_ceil(2)
    }

    /// Words of codes and scales.
    pub fn words(&self) -> usize {
        self.rows * (self.row_words() + self.row_scale_words())
    }

    /// Writes the values `[rows, columns]` of `words` to `values`, of any type.
    ///
    /// # Errors
    /// [`Refusal`] if a tensor does not fit; nothing was launched then.
    pub fn widen(&self, client: &Client, words: &Handle, values: &Buffer) -> Result<(), Refusal> {
        at_least_one("rows", self.rows)?;
        at_least_one("columns", self.columns)?;
        values.expect("values", self.rows * self.columns)?;
        let (found, expected) = (words.size_in_used() as usize / 4, self.words());
        if found < expected {
            return Err(wrong_length("words", found, expected));
        }
        let width = width(self.columns, values.element);
        let row_words = self.row_words();
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
                self.row_scale_words(),
                self.format,
            );
        });
        Ok(())
    }
}
