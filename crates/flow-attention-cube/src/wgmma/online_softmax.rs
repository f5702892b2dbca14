//! Online softmax whose tiles are scaled by the row maximum of the tiles *before*, so that no tile waits for its own maximum.
//!
//! Online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867) subtracts the largest score of a row so far. So the weights of a
//! tile wait for its maximum, which four threads reduce together, and each tile rescales the sums. But any offset gives the same
//! quotients as long as nothing leaves the range of f32. Here a row keeps the maximum of its first tile, and each tile checks the
//! sum of its weights afterwards. If that sum exceeds the sum of all tiles before, or [`LIMIT`], the row is rescaled so that its
//! largest weight is 1. The first condition is for precision: weights are rounded to 16 bits for the product with V, and their sum is
//! not. So a weight that dominates its row must be exact in 16 bits; else the whole row is off by the rounding, and gradients,
//! which are differences between terms of a row and its sum, by more.
//!
//! A row overflows if its weights leave the range within one tile ([`OVERFLOW`]). The block then computes its tiles again, with the
//! maximum of each tile for that row. Each row decides for itself: the other rows change none of its bits.

use super::ForwardTiles;
use crate::softmax::{exponentiate, pack, row_maximum, row_sum, scale_rows};
use cubecl::prelude::*;
use flow_cube::register::{
    exp2_approximate, load_shared, log2_approximate, maximum, minimum, read, reciprocal_approximate,
    store_shared,
};

/// The row maximum before the first visible key: below every score, and above minus infinity of masked ones.
const NO_MAX: f32 = f32::MIN;

/// Largest sum of a tile's weights in a thread: `2^13`, so that a weight fits into f16.
const LIMIT: f32 = 8192.0;

/// Weights above this overflow, or the product of weights and values may: `2^100`.
const OVERFLOW: f32 = 1.267_650_6e30;

/// Flag in a thread's word: its first row overflowed.
const OVERFLOWED_0: u32 = 1;

/// Flag in a thread's word: its second row overflowed.
const OVERFLOWED_1: u32 = 2;

/// A thread's two rows. Weights are `2^(score · scale_log2 - row_max)`; sums are of this thread's part of them, a fourth.
#[derive(CubeType)]
pub(super) struct OnlineSoftmax {
    pub row_max_0: f32,
    pub row_max_1: f32,
    pub sum_0: f32,
    pub sum_1: f32,
    limit_0: f32,
    limit_1: f32,
    /// Whether a row of this warp needs the maximum of the next tile: it has seen no key so far, or it overflowed before.
    pub needs_max: bool,
    /// Whether a row of this thread overflowed since the first tile.
    pub overflowed: bool,
    /// Byte address of this thread's word in shared memory: which of its rows overflowed, [`OVERFLOWED_0`] and [`OVERFLOWED_1`]. Not in registers,
    /// since it is seldom asked for.
    overflow_address: u32,
}

#[cube]
impl OnlineSoftmax {
    /// With this thread's word at the byte address `overflow_address` of shared memory.
    pub fn new(overflow_address: u32) -> Self {
        store_shared(overflow_address, 0u32.runtime());
        OnlineSoftmax {
            row_max_0: NO_MAX.runtime(),
            row_max_1: NO_MAX.runtime(),
            sum_0: 0.0f32.runtime(),
            sum_1: 0.0f32.runtime(),
            limit_0: LIMIT.runtime(),
            limit_1: LIMIT.runtime(),
            needs_max: true.runtime(),
            overflowed: false.runtime(),
            overflow_address,
        }
    }

    /// Before other rows: none of them overflowed so far.
    pub fn clear_overflow(&self) {
        store_shared(self.overflow_address, 0u32.runtime());
    }

    /// Before the first tile of other rows, if that is handled as others are ([`softmax_tile`]): no row has seen a key.
    pub fn reset(&mut self) {
        self.row_max_0 = NO_MAX.runtime();
        self.row_max_1 = NO_MAX.runtime();
        self.sum_0 = 0.0f32.runtime();
        self.sum_1 = 0.0f32.runtime();
        self.limit_0 = LIMIT.runtime();
        self.limit_1 = LIMIT.runtime();
        self.needs_max = true.runtime();
        self.overflowed = false.runtime();
    }

    /// After that tile: the limits of the next one, which others ask for a tile ahead.
    pub fn update_limits(&mut self) {
        self.limit_0 = limit(self.sum_0);
        self.limit_1 = limit(self.sum_1);
    }

    /// For the first tile, or the first tile once more: the row maxima are those of its scores.
    pub fn begin<N: Size>(&mut self, scores: Vector<f32, N>, scale_log2: f32, #[comptime] keys: usize) {
        self.row_max_0 = NO_MAX.runtime();
        self.row_max_1 = NO_MAX.runtime();
        self.overflowed = false.runtime();
        self.raise_max::<N>(scores, scale_log2, keys);
    }

    /// Raises the row maxima of rows that need it to the tile's largest scores; by what sums over values are to be scaled. For all
    /// threads of a warp.
    pub fn raise_max<N: Size>(
        &mut self,
        scores: Vector<f32, N>,
        scale_log2: f32,
        #[comptime] keys: usize,
    ) -> (f32, f32) {
        let overflowed = load_shared(self.overflow_address);
        let overflowed_before_0 = overflowed & OVERFLOWED_0 != 0;
        let overflowed_before_1 = overflowed & OVERFLOWED_1 != 0;
        let (row_max_0, scale_0) = raised_max::<N>(
            scores,
            self.row_max_0,
            overflowed_before_0,
            scale_log2,
            0usize,
            keys,
        );
        let (row_max_1, scale_1) = raised_max::<N>(
            scores,
            self.row_max_1,
            overflowed_before_1,
            scale_log2,
            1usize,
            keys,
        );
        self.row_max_0 = row_max_0;
        self.row_max_1 = row_max_1;
        self.sum_0 *= scale_0;
        self.sum_1 *= scale_1;
        self.needs_max = plane_any(
            row_needs_max(row_max_0, overflowed_before_0) || row_needs_max(row_max_1, overflowed_before_1),
        );
        (scale_0, scale_1)
    }

    /// What the weights of a tile may come to in this thread, for both rows: as much as a row had before the last tile. The next limits
    /// are asked of the row's four threads meanwhile, among the exponentials of this tile, so that nothing waits for them.
    pub fn limits(&mut self) -> (f32, f32) {
        let now_0 = read::<f32>(self.limit_0);
        let now_1 = read::<f32>(self.limit_1);
        self.limit_0 = limit(self.sum_0);
        self.limit_1 = limit(self.sum_1);
        (now_0, now_1)
    }

    /// Scales the rows whose weights are too large in one of their four threads, as `large_0` and `large_1` say, so that the largest
    /// weight is 1: by what its weights, their parts and the sums over values are to be scaled. For all threads of a warp.
    pub fn rescale<N: Size>(
        &mut self,
        weights: Vector<f32, N>,
        large_0: bool,
        large_1: bool,
        #[comptime] keys: usize,
    ) -> (f32, f32) {
        let (powers_0, scale_0, overflowed_0) = rescaling::<N>(weights, large_0, 0usize, keys);
        let (powers_1, scale_1, overflowed_1) = rescaling::<N>(weights, large_1, 1usize, keys);
        self.row_max_0 += powers_0;
        self.row_max_1 += powers_1;
        self.sum_0 *= scale_0;
        self.sum_1 *= scale_1;
        self.limit_0 *= scale_0;
        self.limit_1 *= scale_1;
        if overflowed_0 || overflowed_1 {
            self.overflowed = true.runtime();
            let now = select(overflowed_0, OVERFLOWED_0, 0u32) | select(overflowed_1, OVERFLOWED_1, 0u32);
            store_shared(self.overflow_address, load_shared(self.overflow_address) | now);
        }
        (scale_0, scale_1)
    }

    /// Adds a tile's parts.
    pub fn add(&mut self, part_0: f32, part_1: f32) {
        self.sum_0 += part_0;
        self.sum_1 += part_1;
    }

    /// The first tile's parts. The limit is that of the next.
    pub fn add_first(&mut self, part_0: f32, part_1: f32) {
        self.sum_0 = part_0;
        self.sum_1 = part_1;
        self.limit_0 = limit(part_0);
        self.limit_1 = limit(part_1);
    }
}

/// Whether a row needs the maximum of a tile before its exponentials.
#[cube]
fn row_needs_max(row_max: f32, overflowed_before: bool) -> bool {
    overflowed_before || row_max == NO_MAX
}

/// The row maximum of a row, raised to the tile's largest score if the row needs it; and by what its sums are to be scaled.
#[cube]
fn raised_max<N: Size>(
    scores: Vector<f32, N>,
    row_max: f32,
    overflowed_before: bool,
    scale_log2: f32,
    #[comptime] row: usize,
    #[comptime] keys: usize,
) -> (f32, f32) {
    let largest = row_maximum::<N>(scores, -f32::INFINITY, row, keys) * scale_log2;
    let new = select(
        row_needs_max(row_max, overflowed_before),
        maximum(row_max, largest),
        row_max,
    );
    (new, exp2_approximate(row_max - new))
}

/// What the weights of a tile may come to in a thread, for a row of which the four threads have `sum` and the like.
#[cube]
fn limit(sum: f32) -> f32 {
    let both = sum + plane_shuffle_xor(sum, 1);
    minimum(both + plane_shuffle_xor(both, 2), LIMIT.runtime())
}

/// What becomes of a row whose weights are to be scaled if they are too large for one of its four threads: by what as a power of
/// two, the scale that does it, and whether the row overflows. The four get the same.
#[cube]
fn rescaling<N: Size>(
    weights: Vector<f32, N>,
    too_large: bool,
    #[comptime] row: usize,
    #[comptime] keys: usize,
) -> (f32, f32, bool) {
    let largest = row_maximum::<N>(weights, 0.0f32, row, keys);
    let mut agreed = select(too_large, 1.0f32, 0.0f32);
    agreed = maximum(agreed, plane_shuffle_xor(agreed, 1));
    agreed = maximum(agreed, plane_shuffle_xor(agreed, 2));
    let overflowed = agreed > 0.0 && largest > OVERFLOW;
    let scaled = agreed > 0.0 && largest > 1.0 && !overflowed;
    (
        select(scaled, log2_approximate(largest), 0.0f32),
        select(scaled, reciprocal_approximate(largest), 1.0f32),
        overflowed,
    )
}

/// The probabilities of a block's first tile, as the A operand of a product.
#[cube]
pub(super) fn softmax_first_tile<S: Size, P: Size>(
    softmax: &mut OnlineSoftmax,
    scores: Vector<f32, S>,
    scale_log2: f32,
    #[comptime] tiles: ForwardTiles,
) -> Vector<u32, P> {
    let keys = comptime!(tiles.keys);
    softmax.begin::<S>(scores, scale_log2, keys);
    let weights = exponentiate::<S>(scores, scale_log2, softmax.row_max_0, softmax.row_max_1, keys);
    let part_0 = row_sum::<S>(weights, 0usize, keys);
    let part_1 = row_sum::<S>(weights, 1usize, keys);
    softmax.add_first(part_0, part_1);
    pack::<S, P>(weights, keys, comptime!(tiles.operand_type))
}

/// The probabilities of another tile, as the A operand of a product, and the sums over values, to the same scale. If the rows `began` with this
/// tile ([`OnlineSoftmax::reset`]), the sums are those of the rows before, and stay as they are.
#[cube]
pub(super) fn softmax_tile<S: Size, P: Size, O: Size>(
    softmax: &mut OnlineSoftmax,
    scores: Vector<f32, S>,
    sums: Vector<f32, O>,
    began: bool,
    scale_log2: f32,
    #[comptime] tiles: ForwardTiles,
) -> (Vector<u32, P>, Vector<f32, O>) {
    let keys = comptime!(tiles.keys);
    let mut sums = sums;
    if softmax.needs_max {
        let (scale_0, scale_1) = softmax.raise_max::<S>(scores, scale_log2, keys);
        let scale_0 = select(began, 1.0f32, scale_0);
        let scale_1 = select(began, 1.0f32, scale_1);
        sums = scale_rows::<O>(sums, scale_0, scale_1, comptime!(tiles.head_dim));
    }
    let (limit_0, limit_1) = softmax.limits();
    let weights = exponentiate::<S>(scores, scale_log2, softmax.row_max_0, softmax.row_max_1, keys);
    let mut part_0 = row_sum::<S>(weights, 0usize, keys);
    let mut part_1 = row_sum::<S>(weights, 1usize, keys);
    let mut packed = pack::<S, P>(weights, keys, comptime!(tiles.operand_type));
    let large_0 = part_0 > limit_0;
    let large_1 = part_1 > limit_1;
    if plane_any(large_0 || large_1) {
        let (scale_0, scale_1) = softmax.rescale::<S>(weights, large_0, large_1, keys);
        part_0 *= scale_0;
        part_1 *= scale_1;
        let weights = scale_rows::<S>(weights, scale_0, scale_1, keys);
        packed = pack::<S, P>(weights, keys, comptime!(tiles.operand_type));
        sums = scale_rows::<O>(sums, scale_0, scale_1, comptime!(tiles.head_dim));
    }
    softmax.add(part_0, part_1);
    (packed, sums)
}

/// What both rows of a thread came to.
#[derive(CubeType)]
pub(super) struct RowStatistics {
    pub row_max_0: f32,
    pub row_max_1: f32,
    pub sum_0: f32,
    pub sum_1: f32,
}

#[cube]
impl RowStatistics {
    /// For all threads of a warp; the four of a row get the same.
    pub fn of(softmax: &OnlineSoftmax) -> Self {
        let mut sum_0 = softmax.sum_0;
        let mut sum_1 = softmax.sum_1;
        sum_0 += plane_shuffle_xor(sum_0, 1);
        sum_0 += plane_shuffle_xor(sum_0, 2);
        sum_1 += plane_shuffle_xor(sum_1, 1);
        sum_1 += plane_shuffle_xor(sum_1, 2);
        // Copies: the rows' places may be other rows' before these are written.
        RowStatistics {
            row_max_0: read::<f32>(softmax.row_max_0),
            row_max_1: read::<f32>(softmax.row_max_1),
            sum_0,
            sum_1,
        }
    }
}
