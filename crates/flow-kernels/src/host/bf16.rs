//! Matrix products of bf16 operands with f32 sums, by the processor's dot products of bf16 pairs (AVX512_BF16).
//!
//! Operands are rounded to the nearest bf16 value, ties to even, when they are packed. A result's bits depend on its row
//! and column of the operands alone. The instruction rounds each sum to nearest and takes denormal values as zero
//! (Intel's instruction set reference, `VDPBF16PS`).

use super::matrix::{Matrix, MatrixMut, Write};

/// Whether this processor has the instructions.
pub fn is_supported() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        std::arch::is_x86_feature_detected!("avx512f")
            && std::arch::is_x86_feature_detected!("avx512bw")
            && std::arch::is_x86_feature_detected!("avx512bf16")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// `output = a · b`, or `output += a · b`, on the calling thread.
///
/// # Panics
/// If the shapes do not fit, or if the processor lacks the instructions; see [`is_supported`].
pub fn multiply(output: &mut MatrixMut<'_>, a: Matrix<'_>, b: Matrix<'_>, write: Write) {
    assert!(is_supported(), "this processor has no dot products of bf16 pairs");
    output.check_product(a, b);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instructions are there, and the shapes fit.
    unsafe {
        avx512::multiply(output, a, b, write);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = write;
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::{Matrix, MatrixMut, Write};
    use std::arch::x86_64::*;

    /// Rows whose sums are in registers at a time: with two registers of columns each, 24 of the 32 registers.
    const ROWS: usize = 12;
    /// Columns whose sums are in registers at a time.
    const COLUMNS: usize = 32;
    /// Rows of the left operand that are packed at a time, so that they stay in a cache.
    const BLOCK: usize = 240;

    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub(super) fn multiply(output: &mut MatrixMut<'_>, a: Matrix<'_>, b: Matrix<'_>, write: Write) {
        let (rows, columns, pairs) = (a.rows(), b.columns(), a.columns().div_ceil(2));
        let right = pack_right(b, pairs);
        let mut left = vec![0u32; rows.min(BLOCK) * pairs];
        for block in (0..rows).step_by(BLOCK) {
            let block = block..rows.min(block + BLOCK);
            pack_left(a, block.clone(), pairs, &mut left);
            for (panel, right) in right.chunks_exact((pairs * COLUMNS).max(1)).enumerate() {
                let first = panel * COLUMNS;
                let count = COLUMNS.min(columns - first);
                let mut row = block.start;
                while row < block.end {
                    let here = (block.end - row).min(ROWS);
                    let left = &left[(row - block.start) * pairs..][..here * pairs];
                    let mut tile = Tile {
                        output: &mut *output,
                        row,
                        first,
                        count,
                        write,
                    };
                    match here {
                        12 => tile.compute::<12>(left, right),
                        8.. => tile.compute_some::<8>(left, right, here),
                        4.. => tile.compute_some::<4>(left, right, here),
                        _ => tile.compute_some::<1>(left, right, here),
                    }
                    row += here;
                }
            }
        }
    }

    /// A place in the output.
    struct Tile<'t, 'o> {
        output: &'t mut MatrixMut<'o>,
        row: usize,
        first: usize,
        count: usize,
        write: Write,
    }

    impl Tile<'_, '_> {
        /// `here` rows, `N` at a time as far as they go, then one at a time.
        #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
        fn compute_some<const N: usize>(&mut self, left: &[u32], right: &[u32], here: usize) {
            let pairs = left.len() / here;
            let mut done = 0;
            while done + N <= here {
                self.compute::<N>(&left[done * pairs..][..N * pairs], right);
                (done, self.row) = (done + N, self.row + N);
            }
            while done < here {
                self.compute::<1>(&left[done * pairs..][..pairs], right);
                (done, self.row) = (done + 1, self.row + 1);
            }
        }

        /// `N` rows of up to 32 columns. `left` has `N` rows of pairs, `right` has 32 columns of each pair.
        #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
        fn compute<const N: usize>(&mut self, left: &[u32], right: &[u32]) {
            let pairs = left.len() / N;
            assert!(right.len() >= pairs * COLUMNS);
            let mask = u32::MAX >> (COLUMNS - self.count);
            let masks = [mask as u16, (mask >> 16) as u16];
            let mut sums = [[_mm512_setzero_ps(); 2]; N];
            if self.write == Write::Add {
                for (row, sums) in sums.iter_mut().enumerate() {
                    let values = self.output.row_mut(self.row + row)[self.first..].as_ptr();
                    for (half, sum) in sums.iter_mut().enumerate() {
                        // SAFETY: masked lanes are not read, and the others lie within the row.
                        *sum = unsafe { _mm512_maskz_loadu_ps(masks[half], values.wrapping_add(16 * half)) };
                    }
                }
            }
            for pair in 0..pairs {
                // SAFETY: `right` has 32 values for each pair.
                let halves = [0, 16].map(|half| unsafe {
                    _mm512_loadu_si512(right.as_ptr().add(pair * COLUMNS + half).cast())
                });
                // SAFETY: both types are 512 bits without invalid values.
                let halves: [__m512bh; 2] = halves.map(|half| unsafe { std::mem::transmute(half) });
                for (row, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: `left` has N rows of `pairs` values.
                    let value = unsafe { *left.get_unchecked(row * pairs + pair) };
                    let value = _mm512_set1_epi32(value as i32);
                    // SAFETY: as above.
                    let value: __m512bh = unsafe { std::mem::transmute(value) };
                    sums[0] = _mm512_dpbf16_ps(sums[0], value, halves[0]);
                    sums[1] = _mm512_dpbf16_ps(sums[1], value, halves[1]);
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                let values = self.output.row_mut(self.row + row)[self.first..].as_mut_ptr();
                for (half, sum) in sums.iter().enumerate() {
                    // SAFETY: masked lanes are not written, and the others lie within the row.
                    unsafe { _mm512_mask_storeu_ps(values.wrapping_add(16 * half), masks[half], *sum) };
                }
            }
        }
    }

    /// `value` rounded to bf16, in the lower half.
    fn round(value: f32) -> u32 {
        u32::from(half::bf16::from_f32(value).to_bits())
    }

    /// 16 values as bf16, each in the lower half of a lane.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn round_16(values: __m512) -> __m512i {
        // SAFETY: both types are 256 bits without invalid values.
        let rounded: __m256i = unsafe { std::mem::transmute(_mm512_cvtneps_pbh(values)) };
        _mm512_cvtepu16_epi32(rounded)
    }

    /// Rows of `a` as rows of bf16 pairs of neighbouring columns; an odd last column is paired with zero.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn pack_left(a: Matrix<'_>, rows: std::ops::Range<usize>, pairs: usize, packed: &mut [u32]) {
        let depth = a.columns();
        let (row_stride, column_stride) = a.strides();
        for (row, packed) in rows.zip(packed.chunks_exact_mut(pairs.max(1))) {
            let at = |column: usize| {
                // SAFETY: the row and the column lie within the matrix, whose constructor checked its extent.
                unsafe { *a.pointer().add(row * row_stride + column * column_stride) }
            };
            let mut pair = 0;
            if column_stride == 1 {
                while 2 * (pair + 8) <= depth {
                    // SAFETY: 16 columns from `2 pair` on lie within the row, 8 pairs within `packed`.
                    unsafe {
                        let values = _mm512_loadu_ps(a.pointer().add(row * row_stride + 2 * pair));
                        let rounded: __m256i = std::mem::transmute(_mm512_cvtneps_pbh(values));
                        _mm256_storeu_si256(packed.as_mut_ptr().add(pair).cast(), rounded);
                    }
                    pair += 8;
                }
            }
            for (pair, packed) in packed.iter_mut().enumerate().skip(pair) {
                let second = if 2 * pair + 1 < depth {
                    round(at(2 * pair + 1))
                } else {
                    0
                };
                *packed = round(at(2 * pair)) | second << 16;
            }
        }
    }

    /// `b` in panels of 32 columns; in a panel, pair by pair of neighbouring rows, with zeros where there is none.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn pack_right(b: Matrix<'_>, pairs: usize) -> Vec<u32> {
        let (depth, columns) = (b.rows(), b.columns());
        let (row_stride, column_stride) = b.strides();
        let mut packed = vec![0u32; columns.div_ceil(COLUMNS) * pairs * COLUMNS];
        for (panel, packed) in packed.chunks_exact_mut((pairs * COLUMNS).max(1)).enumerate() {
            let first = panel * COLUMNS;
            let count = COLUMNS.min(columns - first);
            let at = |row: usize, column: usize| {
                // SAFETY: the row and the column lie within the matrix, whose constructor checked its extent.
                unsafe {
                    *b.pointer()
                        .add(row * row_stride + (first + column) * column_stride)
                }
            };
            if column_stride == 1 && count == COLUMNS {
                for (pair, packed) in packed.chunks_exact_mut(COLUMNS).enumerate() {
                    for half in [0, 16] {
                        // SAFETY: 16 columns from there on lie within the row, and within `packed`.
                        unsafe {
                            let row = |row: usize| b.pointer().add(row * row_stride + first + half);
                            let mut both = round_16(_mm512_loadu_ps(row(2 * pair)));
                            if 2 * pair + 1 < depth {
                                let second = round_16(_mm512_loadu_ps(row(2 * pair + 1)));
                                both = _mm512_or_si512(both, _mm512_slli_epi32(second, 16));
                            }
                            _mm512_storeu_si512(packed.as_mut_ptr().add(half).cast(), both);
                        }
                    }
                }
            } else {
                for column in 0..count {
                    for pair in 0..pairs {
                        let second = if 2 * pair + 1 < depth {
                            round(at(2 * pair + 1, column))
                        } else {
                            0
                        };
                        packed[pair * COLUMNS + column] = round(at(2 * pair, column)) | second << 16;
                    }
                }
            }
        }
        packed
    }
}
