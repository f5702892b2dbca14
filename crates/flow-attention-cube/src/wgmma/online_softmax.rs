//! Softmax over tiles that pass, with the weights of a tile scaled by what the tiles *before* showed.
//!
//! Online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867) divides the weights of a row by its largest score so far, so a
//! tile's weights wait for its maximum, which four threads make together, and sums are scaled anew in each tile. But any divisor
//! gives the same quotients as long as nothing leaves the range of f32. So a row keeps the one that its first tile gave, and a
//! tile looks at the sum of its weights afterwards. Where they came to more than all before, or to more than [`LIMIT`], the row is
//! scaled so that its largest weight is 1. The first is for precision: weights are rounded to 16 bits for the product with values and
//! their sum is not, so a weight that has most of a row to itself has to be one that 16 bits hold exactly, or the whole row is off by
//! as much, and by more what gradients are made of, differences between a row's parts and its sum.
//!
//! A row whose weights leave the range in one tile ([`FAR`]) is lost; the block does its tiles again, with the maximum of each tile
//! for that row. Each row decides for itself: what is in the others changes none of its bits.

use super::ForwardTiles;
use crate::softmax::{exponentiate, pack, row_maximum, row_sum, scale_rows};
use cubecl::prelude::*;
use flow_cube::register::{
    exp2_approximate, load_shared, log2_approximate, maximum, minimum, read, reciprocal_approximate,
    store_shared,
};

/// The shift of a row that has seen no key: what it sees next is far above it, and what it does not see is below.
const UNSEEN: f32 = f32::MIN;

/// What the weights of a tile may come to in a thread: `2^13`, so that a weight fits into f16.
const LIMIT: f32 = 8192.0;

/// From where on weights have lost their proportion, or the product of weights and values may: `2^100`.
const FAR: f32 = 1.267_650_6e30;

/// In a thread's word: its first row was lost.
const LOST_0: u32 = 1;

/// Its second.
const LOST_1: u32 = 2;

/// A thread's two rows. Weights are `2^(score · factor - shift)`; sums are of this thread's part of them, a fourth.
#[derive(CubeType)]
pub(super) struct OnlineSoftmax {
    pub shift_0: f32,
    pub shift_1: f32,
    pub sum_0: f32,
    pub sum_1: f32,
    limit_0: f32,
    limit_1: f32,
    /// Whether a row of this warp looks at the next tile before it is weighed: one that saw no key so far, or one that was lost.
    pub look: bool,
    /// Whether a row of this thread was lost since the first tile.
    pub lost: bool,
    /// Byte address of this thread's word in shared memory: which of its rows were lost, [`LOST_0`] and [`LOST_1`]. Not in registers,
    /// since it is seldom asked for.
    lost_at: u32,
}

#[cube]
impl OnlineSoftmax {
    /// With this thread's word at the byte address `lost_at` of shared memory.
    pub fn new(lost_at: u32) -> Self {
        store_shared(lost_at, 0u32.runtime());
        OnlineSoftmax {
            shift_0: UNSEEN.runtime(),
            shift_1: UNSEEN.runtime(),
            sum_0: 0.0f32.runtime(),
            sum_1: 0.0f32.runtime(),
            limit_0: LIMIT.runtime(),
            limit_1: LIMIT.runtime(),
            look: true.runtime(),
            lost: false.runtime(),
            lost_at,
        }
    }

    /// Before other rows: none of them was lost so far.
    pub fn forget(&self) {
        store_shared(self.lost_at, 0u32.runtime());
    }

    /// Before the first tile of other rows, if that is weighed as others are ([`weigh`]): no row has seen a key.
    pub fn renew(&mut self) {
        self.shift_0 = UNSEEN.runtime();
        self.shift_1 = UNSEEN.runtime();
        self.sum_0 = 0.0f32.runtime();
        self.sum_1 = 0.0f32.runtime();
        self.limit_0 = LIMIT.runtime();
        self.limit_1 = LIMIT.runtime();
        self.look = true.runtime();
        self.lost = false.runtime();
    }

    /// After that tile: the limits of the next one, which others ask for a tile ahead.
    pub fn settle(&mut self) {
        self.limit_0 = limit(self.sum_0);
        self.limit_1 = limit(self.sum_1);
    }

    /// For the first tile, or the first once more: its scores say what weights are divided by.
    pub fn begin<N: Size>(&mut self, scores: Vector<f32, N>, factor: f32, #[comptime] keys: usize) {
        self.shift_0 = UNSEEN.runtime();
        self.shift_1 = UNSEEN.runtime();
        self.lost = false.runtime();
        self.raise::<N>(scores, factor, keys);
    }

    /// Raises the shifts of rows that look to the tile's largest scores; by what sums over values are to be scaled. For all
    /// threads of a warp.
    pub fn raise<N: Size>(
        &mut self,
        scores: Vector<f32, N>,
        factor: f32,
        #[comptime] keys: usize,
    ) -> (f32, f32) {
        let lost = load_shared(self.lost_at);
        let careful_0 = lost & LOST_0 != 0;
        let careful_1 = lost & LOST_1 != 0;
        let (shift_0, by_0) = raised::<N>(scores, self.shift_0, careful_0, factor, 0usize, keys);
        let (shift_1, by_1) = raised::<N>(scores, self.shift_1, careful_1, factor, 1usize, keys);
        self.shift_0 = shift_0;
        self.shift_1 = shift_1;
        self.sum_0 *= by_0;
        self.sum_1 *= by_1;
        self.look = plane_any(looks(shift_0, careful_0) || looks(shift_1, careful_1));
        (by_0, by_1)
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
    pub fn reduce<N: Size>(
        &mut self,
        weights: Vector<f32, N>,
        large_0: bool,
        large_1: bool,
        #[comptime] keys: usize,
    ) -> (f32, f32) {
        let (powers_0, by_0, lost_0) = reduction::<N>(weights, large_0, 0usize, keys);
        let (powers_1, by_1, lost_1) = reduction::<N>(weights, large_1, 1usize, keys);
        self.shift_0 += powers_0;
        self.shift_1 += powers_1;
        self.sum_0 *= by_0;
        self.sum_1 *= by_1;
        self.limit_0 *= by_0;
        self.limit_1 *= by_1;
        if lost_0 || lost_1 {
            self.lost = true.runtime();
            let now = select(lost_0, LOST_0, 0u32) | select(lost_1, LOST_1, 0u32);
            store_shared(self.lost_at, load_shared(self.lost_at) | now);
        }
        (by_0, by_1)
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

/// Whether a row looks at a tile before it is weighed.
#[cube]
fn looks(shift: f32, careful: bool) -> bool {
    careful || shift == UNSEEN
}

/// The shift of a row, raised to the tile's largest score if the row looks; and by what its sums are to be scaled.
#[cube]
fn raised<N: Size>(
    scores: Vector<f32, N>,
    shift: f32,
    careful: bool,
    factor: f32,
    #[comptime] row: usize,
    #[comptime] keys: usize,
) -> (f32, f32) {
    let largest = row_maximum::<N>(scores, -f32::INFINITY, row, keys) * factor;
    let new = select(looks(shift, careful), maximum(shift, largest), shift);
    (new, exp2_approximate(shift - new))
}

/// What the weights of a tile may come to in a thread, for a row of which the four threads have `sum` and the like.
#[cube]
fn limit(sum: f32) -> f32 {
    let both = sum + plane_shuffle_xor(sum, 1);
    minimum(both + plane_shuffle_xor(both, 2), LIMIT.runtime())
}

/// What becomes of a row whose weights are to be scaled if they are too large for one of its four threads: by what as a power of
/// two, the factor that does it, and whether the row is lost. The four get the same.
#[cube]
fn reduction<N: Size>(
    weights: Vector<f32, N>,
    too_large: bool,
    #[comptime] row: usize,
    #[comptime] keys: usize,
) -> (f32, f32, bool) {
    let largest = row_maximum::<N>(weights, 0.0f32, row, keys);
    let mut agreed = select(too_large, 1.0f32, 0.0f32);
    agreed = maximum(agreed, plane_shuffle_xor(agreed, 1));
    agreed = maximum(agreed, plane_shuffle_xor(agreed, 2));
    let lost = agreed > 0.0 && largest > FAR;
    let scaled = agreed > 0.0 && largest > 1.0 && !lost;
    (
        select(scaled, log2_approximate(largest), 0.0f32),
        select(scaled, reciprocal_approximate(largest), 1.0f32),
        lost,
    )
}

/// The probabilities of a block's first tile, as the A operand of a product.
#[cube]
pub(super) fn weigh_first<S: Size, P: Size>(
    softmax: &mut OnlineSoftmax,
    scores: Vector<f32, S>,
    factor: f32,
    #[comptime] tiles: ForwardTiles,
) -> Vector<u32, P> {
    let keys = comptime!(tiles.keys);
    softmax.begin::<S>(scores, factor, keys);
    let weights = exponentiate::<S>(scores, factor, softmax.shift_0, softmax.shift_1, keys);
    let part_0 = row_sum::<S>(weights, 0usize, keys);
    let part_1 = row_sum::<S>(weights, 1usize, keys);
    softmax.add_first(part_0, part_1);
    pack::<S, P>(weights, keys, comptime!(tiles.factor))
}

/// The probabilities of another tile, as the A operand of a product, and the sums over values, to the same scale. If the rows `began` with this
/// tile ([`OnlineSoftmax::renew`]), the sums are those of the rows before, and stay as they are.
#[cube]
pub(super) fn weigh<S: Size, P: Size, O: Size>(
    softmax: &mut OnlineSoftmax,
    scores: Vector<f32, S>,
    sums: Vector<f32, O>,
    began: bool,
    factor: f32,
    #[comptime] tiles: ForwardTiles,
) -> (Vector<u32, P>, Vector<f32, O>) {
    let keys = comptime!(tiles.keys);
    let mut sums = sums;
    if softmax.look {
        let (by_0, by_1) = softmax.raise::<S>(scores, factor, keys);
        let by_0 = select(began, 1.0f32, by_0);
        let by_1 = select(began, 1.0f32, by_1);
        sums = scale_rows::<O>(sums, by_0, by_1, comptime!(tiles.head_dim));
    }
    let (limit_0, limit_1) = softmax.limits();
    let weights = exponentiate::<S>(scores, factor, softmax.shift_0, softmax.shift_1, keys);
    let mut part_0 = row_sum::<S>(weights, 0usize, keys);
    let mut part_1 = row_sum::<S>(weights, 1usize, keys);
    let mut packed = pack::<S, P>(weights, keys, comptime!(tiles.factor));
    let large_0 = part_0 > limit_0;
    let large_1 = part_1 > limit_1;
    if plane_any(large_0 || large_1) {
        let (by_0, by_1) = softmax.reduce::<S>(weights, large_0, large_1, keys);
        part_0 *= by_0;
        part_1 *= by_1;
        let weights = scale_rows::<S>(weights, by_0, by_1, keys);
        packed = pack::<S, P>(weights, keys, comptime!(tiles.factor));
        sums = scale_rows::<O>(sums, by_0, by_1, comptime!(tiles.head_dim));
    }
    softmax.add(part_0, part_1);
    (packed, sums)
}

/// What both rows of a thread came to.
#[derive(CubeType)]
pub(super) struct Totals {
    pub shift_0: f32,
    pub shift_1: f32,
    pub sum_0: f32,
    pub sum_1: f32,
}

#[cube]
impl Totals {
    /// For all threads of a warp; the four of a row get the same.
    pub fn of(softmax: &OnlineSoftmax) -> Self {
        let mut sum_0 = softmax.sum_0;
        let mut sum_1 = softmax.sum_1;
        sum_0 += plane_shuffle_xor(sum_0, 1);
        sum_0 += plane_shuffle_xor(sum_0, 2);
        sum_1 += plane_shuffle_xor(sum_1, 1);
        sum_1 += plane_shuffle_xor(sum_1, 2);
        // Copies: the rows' places may be other rows' before these are written.
        Totals {
            shift_0: read::<f32>(softmax.shift_0),
            shift_1: read::<f32>(softmax.shift_1),
            sum_0,
            sum_1,
        }
    }
}
