//! Matrices in 8 or 4 bits a value with scales: how frozen weights are stored that are widened before each product.
//!
//! A block of a row, or the whole of it, has a scale: its largest magnitude divided by the value of the largest code, rounded to a
//! bf16. A value is the product of its code's value and the scale in f32. Such a product is exact for FP8 and INT8, whose codes have at
//! most 7 significant bits beside the 8 of a scale, and rounded once, to nearest, for NF4. Therefore every device widens to the same f32,
//! and a matrix that was widened is stored again as the same bits.
//!
//! | format | codes | scale for | error of a value |
//! |---|---|---|---|
//! | FP8 e4m3 (Micikevicius et al. 2022, arXiv:2209.05433) | up to 448, 4 significant bits, none for infinities | a row | 1/16 of the value; 2^-10 of the scale where that is more |
//! | INT8 | -127 to 127 | a row | half of the scale: 1/253 of the row's largest magnitude |
//! | NF4 (Dettmers et al. 2023, QLoRA, arXiv:2305.14314, appendix E), without its double quantisation | 16 quantiles of the normal distribution, -1 to 1 | 64 values of a row; what is left at its end | half of the widest gap: 0.152 of the scale |
//!
//! Stored is one tensor of 32-bit words: the codes row by row, as many in a word as it has room for, the first in the lowest bits, a row
//! filled up to whole words; behind them the scales row by row, two bf16s in a word, the first in the upper half, a row filled up to
//! whole words. So the word of a row with one scale is that scale as an f32. Where gradients are products of codes, too, a second,
//! [transposed](LowPrecision::transposed) copy lies behind all of this.

mod activations;
mod format;
mod transposed;

pub use activations::quantise_activations;
pub use format::LowPrecisionFormat;
pub use transposed::{COLUMNS_AT_A_TIME, columns_as_rows};

use crate::tensors::{RawTensor, is_float, shape};
use burn::tensor::{Int, Tensor};
use half::bf16;
use rayon::prelude::*;

/// Scales in a word.
const SCALES: usize = 2;
/// The smallest scale, 2^-116: the product of any code but zero's and a scale is a normal f32, which no device takes for zero.
const SMALLEST_SCALE: f32 = f32::from_bits((127 - 116) << 23);

/// What a product with a matrix in low precision multiplies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LowPrecisionCompute {
    /// Activations as they are, and the widened matrix.
    #[default]
    Storage,
    /// Codes: of the matrix, in e4m3, and of the activations, each row of which is [quantised](quantise_activations) to e4m3. Sums of
    /// such products are f32, and multiplied by the scales of the matrix's row and of the activations' row. The gradient of the
    /// activations is that of the widened matrix, as if they had not been quantised (the straight-through estimator, Bengio et al. 2013,
    /// arXiv:1308.3432). A low-rank adapter of the layer reads the activations as they are.
    Fp8,
    /// As [`Fp8`](Self::Fp8), but the gradient of the activations is a product of codes as well: of the gradients of the layer's sums, each
    /// row of which is [quantised](quantise_activations) as one of activations, and of the matrix's [transposed](LowPrecision::transposed)
    /// copy, or where the matrix is numbers of its columns, each quantised so as well. A low-rank adapter of the layer reads the gradients
    /// as they are, and so does the gradient of the matrix.
    Fp8WithDataGradient,
}

impl LowPrecisionCompute {
    /// Whether forward multiplies codes of activations.
    pub fn quantises_activations(self) -> bool {
        self != Self::Storage
    }

    /// Whether backward multiplies codes of gradients.
    pub fn quantises_gradients(self) -> bool {
        self == Self::Fp8WithDataGradient
    }
}

/// How a matrix is stored whose values are codes with scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LowPrecision {
    /// How a value is stored.
    pub format: LowPrecisionFormat,
    /// What a product with it multiplies. All but [`Storage`](LowPrecisionCompute::Storage) is for matrices in
    /// [`Fp8`](LowPrecisionFormat::Fp8).
    pub compute: LowPrecisionCompute,
    /// Output channels of the layer.
    pub rows: usize,
    /// Input channels of the layer.
    pub columns: usize,
}

/// A value that is not finite, for which there is no code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotFinite;

impl LowPrecision {
    /// Words of the codes of a row.
    fn words_per_row(&self) -> usize {
        self.columns.div_ceil(self.format.codes_per_word())
    }

    /// Words of the scales of a row.
    fn scale_words_per_row(&self) -> usize {
        let blocks = self
            .format
            .block()
            .map_or(1, |block| self.columns.div_ceil(block));
        blocks.div_ceil(SCALES)
    }

    /// Words of all codes.
    fn code_words(&self) -> usize {
        self.rows * self.words_per_row()
    }

    /// Words of the codes and scales of the copy that forward reads.
    fn copy_words(&self) -> usize {
        self.code_words() + self.rows * self.scale_words_per_row()
    }

    /// Words of codes and scales, of both copies if there are two.
    pub fn words(&self) -> usize {
        let second = self.transposed();
        second.map_or(self.copy_words(), |(start, of)| start + of.words())
    }

    /// Bytes of codes and scales, of both copies if there are two.
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
        let rows = codes
            .par_chunks_mut(self.words_per_row())
            .zip(scales.par_chunks_mut(self.scale_words_per_row()));
        rows.zip(values.par_chunks(self.columns))
            .try_for_each(|((codes, scales), values)| self.quantise_row(values, codes, scales))?;
        self.quantise_transposed(&mut words)?;
        Ok(words)
    }

    /// The values `[rows, columns]` of [`words`](Self::quantise), row-major.
    ///
    /// # Panics
    /// If there are not as many words.
    pub fn widen(&self, words: &[i32]) -> Vec<f32> {
        self.decode(words, true)
    }

    /// The values of the codes `[rows, columns]` of [`words`](Self::quantise), row-major, without the scales of the rows, and these.
    ///
    /// # Panics
    /// If there are not as many words, or the format has several scales in a row.
    pub fn codes_and_scales(&self, words: &[i32]) -> (Vec<f32>, Vec<f32>) {
        assert!(
            self.format.block().is_none(),
            "a row of {} has several scales",
            self.format
        );
        let codes = self.decode(words, false);
        // The word of a row with one scale is that scale.
        let scales = words[self.code_words()..self.copy_words()].iter();
        (codes, scales.map(|word| f32::from_bits(*word as u32)).collect())
    }

    /// The values of the codes that forward reads, times their scales if `scaled`.
    fn decode(&self, words: &[i32], scaled: bool) -> Vec<f32> {
        assert_eq!(words.len(), self.words(), "words of a matrix");
        let words = &words[..self.copy_words()];
        let mut values = vec![0.0; self.values()];
        if values.is_empty() {
            return values;
        }
        let decoded: [f32; 256] = std::array::from_fn(|code| self.format.decode(code as u8));
        let (codes, scales) = words.split_at(self.code_words());
        let rows = codes
            .par_chunks(self.words_per_row())
            .zip(scales.par_chunks(self.scale_words_per_row()));
        rows.zip(values.par_chunks_mut(self.columns))
            .for_each(|((codes, scales), values)| {
                self.widen_row(codes, scaled.then_some(scales), &decoded, values);
            });
        values
    }

    /// The values `[rows, columns]` of a stored matrix on any device, on the host.
    ///
    /// # Panics
    /// If `stored` is not of this form.
    pub fn host(&self, stored: &RawTensor) -> Vec<f32> {
        self.widen(&self.host_words(stored))
    }

    /// [`codes_and_scales`](Self::codes_and_scales) of a stored matrix on any device, on the host.
    ///
    /// # Panics
    /// If `stored` is not of this form, or the format has several scales in a row.
    pub fn host_codes_and_scales(&self, stored: &RawTensor) -> (Vec<f32>, Vec<f32>) {
        self.codes_and_scales(&self.host_words(stored))
    }

    fn host_words(&self, stored: &RawTensor) -> Vec<i32> {
        assert!(self.is_stored_in(stored), "a matrix in another form");
        let words = Tensor::<1, Int>::from_dispatch(stored.clone()).into_data();
        words.iter::<i32>().collect()
    }

    /// Values that share a scale, and the words of their codes.
    fn block(&self) -> (usize, usize) {
        let block = self.format.block().unwrap_or(self.columns);
        (block, block.div_ceil(self.format.codes_per_word()))
    }

    /// Writes the codes and the scales of a row; `scales` are zero.
    fn quantise_row(&self, values: &[f32], codes: &mut [i32], scales: &mut [i32]) -> Result<(), NotFinite> {
        let (block, words) = self.block();
        let blocks = values.chunks(block).zip(codes.chunks_mut(words));
        for (index, (values, codes)) in blocks.enumerate() {
            // The lower half of an f32 that is a bf16 is zero.
            let bits = self.format.quantise_block(values, codes)?.to_bits();
            scales[index / SCALES] |= (bits >> (16 * (index % SCALES))) as i32;
        }
        Ok(())
    }

    /// Writes the values of a row, without scales if there are none; `decoded` are those of the codes.
    fn widen_row(&self, codes: &[i32], scales: Option<&[i32]>, decoded: &[f32; 256], values: &mut [f32]) {
        let (block, words) = self.block();
        let (bits, per_word) = (self.format.code_bits(), self.format.codes_per_word());
        let mask = (1u32 << bits) - 1;
        let blocks = values.chunks_mut(block).zip(codes.chunks(words));
        for (index, (values, codes)) in blocks.enumerate() {
            let scale = scales.map_or(1.0, |scales| {
                let bits = (scales[index / SCALES] as u32) << (16 * (index % SCALES));
                f32::from_bits(bits & 0xFFFF_0000)
            });
            for (values, word) in values.chunks_mut(per_word).zip(codes) {
                let mut word = *word as u32;
                for value in values {
                    *value = decoded[(word & mask) as usize] * scale;
                    word >>= bits;
                }
            }
        }
    }
}

impl LowPrecisionFormat {
    /// The scale of values that share one. NaN has no part in it.
    #[inline(always)]
    fn scale_of(self, values: &[f32]) -> f32 {
        let largest = values
            .iter()
            .fold(0.0f32, |largest, value| largest.max(value.abs()));
        self.scale_for(largest)
    }

    /// The scale of values whose largest magnitude is `largest`.
    #[inline(always)]
    fn scale_for(self, largest: f32) -> f32 {
        // Rounded by 2^-8 at most, so that the largest value has the largest code again. The bf16 nearest to the largest f32s is
        // infinite.
        bf16::from_f32(largest / self.largest())
            .to_f32()
            .clamp(SMALLEST_SCALE, bf16::MAX.to_f32())
    }

    /// Writes the codes of values that share a scale; gives that scale.
    fn quantise_block(self, values: &[f32], codes: &mut [i32]) -> Result<f32, NotFinite> {
        // Bits of magnitudes are in the order of these, infinity behind all that are finite, and NaN behind it.
        let magnitudes = values.iter().map(|value| value.to_bits() & 0x7FFF_FFFF);
        let largest = f32::from_bits(magnitudes.fold(0, u32::max));
        if !largest.is_finite() {
            return Err(NotFinite);
        }
        let scale = self.scale_for(largest);
        self.encode(values, scale, codes);
        Ok(scale)
    }
}

#[cfg(test)]
mod tests;
