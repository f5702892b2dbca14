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
    use std::ops::Range;

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

    /// 16 values as bf16, each in the lower half of a lane.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn round_16(values: __m512) -> __m512i {
        // SAFETY: both types are 256 bits without invalid values.
        let rounded: __m256i = unsafe { std::mem::transmute(_mm512_cvtneps_pbh(values)) };
        _mm512_cvtepu16_epi32(rounded)
    }

    /// The first `count` of 16 values, the others zero.
    ///
    /// # Safety
    /// `count` values from `values` on are readable.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn load(values: *const f32, count: usize) -> __m512 {
        // SAFETY: masked lanes are not read.
        unsafe { _mm512_maskz_loadu_ps(first(count), values) }
    }

    /// A mask of the first `count` of 16 lanes.
    fn first(count: usize) -> __mmask16 {
        (u32::MAX >> (32 - count.min(16) as u32).min(31)) as u16 * u16::from(count > 0)
    }

    /// Up to 32 values from `values` on as up to 16 bf16 pairs of neighbours; missing values are zero.
    ///
    /// # Safety
    /// `count` values from `values` on are readable.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn pairs_along(values: *const f32, count: usize) -> __m512i {
        // SAFETY: as promised; both types are 512 bits without invalid values.
        unsafe {
            let low = load(values, count);
            let high = load(values.wrapping_add(16), count.saturating_sub(16));
            std::mem::transmute(_mm512_cvtne2ps_pbh(high, low))
        }
    }

    /// 16 bf16 pairs of a value of one row and the value below it; `below` may be missing.
    ///
    /// # Safety
    /// `count` values from each pointer on are readable.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn pairs_across(row: *const f32, below: Option<*const f32>, count: usize) -> __m512i {
        // SAFETY: as promised.
        unsafe {
            let both = round_16(load(row, count));
            match below {
                Some(below) => _mm512_or_si512(both, _mm512_slli_epi32(round_16(load(below, count)), 16)),
                None => both,
            }
        }
    }

    /// The first `count` lanes to every `stride`-th place of `to`.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn scatter(pairs: __m512i, count: usize, to: &mut [u32], stride: usize) {
        assert!(
            count <= 16 && (count == 0 || to.len() > (count - 1) * stride && to.len() <= i32::MAX as usize)
        );
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let places = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(stride as i32));
        // SAFETY: the places of the lanes that are written lie within `to`.
        unsafe { _mm512_mask_i32scatter_epi32::<4>(to.as_mut_ptr().cast(), first(count), places, pairs) };
    }

    /// Rows of `a` as rows of bf16 pairs of neighbouring columns; an odd last column is paired with zero.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn pack_left(a: Matrix<'_>, rows: Range<usize>, pairs: usize, packed: &mut [u32]) {
        let (row_stride, column_stride) = a.strides();
        let depth = a.columns();
        let at = |row: usize, column: usize| {
            a.pointer()
                .wrapping_add(row * row_stride + column * column_stride)
        };
        if column_stride == 1 {
            for (row, packed) in rows.zip(packed.chunks_exact_mut(pairs.max(1))) {
                for (index, packed) in packed.chunks_mut(16).enumerate() {
                    // SAFETY: what is read lies within the matrix, whose constructor checked its extent.
                    let values = unsafe { pairs_along(at(row, 32 * index), depth - 32 * index) };
                    // SAFETY: masked lanes are not written.
                    unsafe {
                        _mm512_mask_storeu_epi32(packed.as_mut_ptr().cast(), first(packed.len()), values)
                    };
                }
            }
        } else {
            // The rows of a transposed matrix lie side by side.
            for start in rows.clone().step_by(16) {
                let count = (rows.end - start).min(16);
                let packed = &mut packed[(start - rows.start) * pairs..][..count * pairs];
                for pair in 0..pairs {
                    let below = (2 * pair + 1 < depth).then(|| at(start, 2 * pair + 1));
                    // SAFETY: what is read lies within the matrix, whose constructor checked its extent.
                    let values = unsafe { pairs_across(at(start, 2 * pair), below, count) };
                    scatter(values, count, &mut packed[pair..], pairs);
                }
            }
        }
    }

    /// `b` in panels of 32 columns; in a panel, pair by pair of neighbouring rows, with zeros where there is none.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn pack_right(b: Matrix<'_>, pairs: usize) -> Vec<u32> {
        let (depth, columns) = (b.rows(), b.columns());
        let (row_stride, column_stride) = b.strides();
        let at = |row: usize, column: usize| {
            b.pointer()
                .wrapping_add(row * row_stride + column * column_stride)
        };
        let mut packed = vec![0u32; columns.div_ceil(COLUMNS) * pairs * COLUMNS];
        for (panel, packed) in packed.chunks_exact_mut((pairs * COLUMNS).max(1)).enumerate() {
            let start = panel * COLUMNS;
            let count = COLUMNS.min(columns - start);
            if column_stride == 1 {
                for (pair, packed) in packed.chunks_exact_mut(COLUMNS).enumerate() {
                    for (half, packed) in packed.chunks_exact_mut(16).enumerate() {
                        let (column, count) = (start + 16 * half, count.saturating_sub(16 * half).min(16));
                        let below = (2 * pair + 1 < depth).then(|| at(2 * pair + 1, column));
                        // SAFETY: what is read lies within the matrix, whose constructor checked its extent.
                        let values = unsafe { pairs_across(at(2 * pair, column), below, count) };
                        // SAFETY: there are 16 values.
                        unsafe { _mm512_storeu_si512(packed.as_mut_ptr().cast(), values) };
                    }
                }
            } else {
                // The columns of a transposed matrix are contiguous.
                for column in 0..count {
                    for first in (0..pairs).step_by(16) {
                        // SAFETY: what is read lies within the matrix, whose constructor checked its extent.
                        let values = unsafe { pairs_along(at(2 * first, start + column), depth - 2 * first) };
                        scatter(
                            values,
                            (pairs - first).min(16),
                            &mut packed[first * COLUMNS + column..],
                            COLUMNS,
                        );
                    }
                }
            }
        }
        packed
    }
}
