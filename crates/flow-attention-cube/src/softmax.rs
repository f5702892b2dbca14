//! Softmax of a tile of scores in registers, and its gradient: 64 rows for each 128 threads, two rows a thread, as `wgmma`
//! and four stacked `mma.sync` hold them.

use cubecl::prelude::*;
use flow_cube::register::{
    exp2_approximate, load_shared, log2_approximate, maximum, multiply_add, pack as pack_pair, store_shared,
    vector_of,
};
use flow_cube::wgmma::OperandType;

/// The first `used` lanes, and those of `before` behind them: accumulators are a power of two of registers, of which some may not be used.
#[cube]
fn with_rest<N: Size>(
    mut first: Sequence<f32>,
    before: Vector<f32, N>,
    #[comptime] used: usize,
) -> Vector<f32, N> {
    #[unroll]
    for i in used..N::value() {
        first.push(before.extract(i));
    }
    vector_of(first)
}

/// Largest value of each of the two rows, over the four threads that share them and `before`.
#[cube]
pub(crate) fn row_maximum<N: Size>(
    scores: Vector<f32, N>,
    before: f32,
    #[comptime] row: usize,
    #[comptime] keys: usize,
) -> f32 {
    let mut largest = before;
    #[unroll]
    for i in 0..comptime!(keys / 4) {
        let at = comptime!((i / 2) * 4 + row * 2 + i % 2);
        largest = maximum(largest, scores.extract(at));
    }
    largest = maximum(largest, plane_shuffle_xor(largest, 1));
    maximum(largest, plane_shuffle_xor(largest, 2))
}

/// `max` times the scale, 0 for a row without a key.
#[cube]
pub(crate) fn scaled_row_max(max: f32, scale_log2: f32) -> f32 {
    let offset = max * scale_log2;
    select(max == -f32::INFINITY, 0.0f32, offset)
}

/// `2^(score · scale_log2 - offset)` in place.
#[cube]
pub(crate) fn exponentiate<N: Size>(
    scores: Vector<f32, N>,
    scale_log2: f32,
    offset_0: f32,
    offset_1: f32,
    #[comptime] keys: usize,
) -> Vector<f32, N> {
    let mut out = Sequence::<f32>::new();
    #[unroll]
    for i in 0..comptime!(keys / 2) {
        let offset = if comptime!((i / 2) % 2 == 0) {
            offset_0
        } else {
            offset_1
        };
        out.push(exp2_approximate(multiply_add(
            scores.extract(i),
            scale_log2,
            -offset,
        )));
    }
    with_rest::<N>(out, scores, comptime!(keys / 2))
}

/// Sum of this thread's part of a row.
#[cube]
pub(crate) fn row_sum<N: Size>(
    probabilities: Vector<f32, N>,
    #[comptime] row: usize,
    #[comptime] keys: usize,
) -> f32 {
    let mut sum = probabilities.extract(comptime!(row * 2));
    #[unroll]
    for i in 1..comptime!(keys / 4) {
        sum += probabilities.extract(comptime!((i / 2) * 4 + row * 2 + i % 2));
    }
    sum
}

/// Both rows of `values` each scaled.
#[cube]
pub(crate) fn scale_rows<N: Size>(
    values: Vector<f32, N>,
    scale_0: f32,
    scale_1: f32,
    #[comptime] columns: usize,
) -> Vector<f32, N> {
    let mut out = Sequence::<f32>::new();
    #[unroll]
    for i in 0..comptime!(columns / 2) {
        let by = if comptime!((i / 2) % 2 == 0) {
            scale_0
        } else {
            scale_1
        };
        out.push(values.extract(i) * by);
    }
    with_rest::<N>(out, values, comptime!(columns / 2))
}

/// The probabilities as the A operand of a product.
#[cube]
pub(crate) fn pack<N: Size, P: Size>(
    probabilities: Vector<f32, N>,
    #[comptime] keys: usize,
    #[comptime] operand_type: OperandType,
) -> Vector<u32, P> {
    let mut out = Sequence::<u32>::new();
    #[unroll]
    for i in 0..comptime!(keys / 4) {
        out.push(pack_pair(
            probabilities.extract(comptime!(2 * i)),
            probabilities.extract(comptime!(2 * i + 1)),
            operand_type,
        ));
    }
    #[unroll]
    for _ in comptime!(keys / 4)..P::value() {
        out.push(0u32.runtime());
    }
    vector_of(out)
}

/// Scores of the columns from `columns` on become minus infinity; `first` is this thread's first column.
#[cube]
pub(crate) fn mask_out_of_bounds<N: Size>(
    scores: Vector<f32, N>,
    first: u32,
    columns: u32,
    #[comptime] keys: usize,
) -> Vector<f32, N> {
    let mut out = Sequence::<f32>::new();
    #[unroll]
    for i in 0..comptime!(keys / 2) {
        let column = first + comptime!(((i / 4) * 8 + i % 2) as u32);
        out.push(select(column < columns, scores.extract(i), -f32::INFINITY));
    }
    with_rest::<N>(out, scores, comptime!(keys / 2))
}

/// Scores with a bias by distance, `factor` times: this thread's two rows take `bias` from `start_0` and `start_1` on, one value for
/// each key. `first_key` is this thread's first key; those behind `last_key` are not there, and take its value.
#[cube]
pub(crate) fn add_bias<N: Size>(
    scores: Vector<f32, N>,
    bias: &[f32],
    start_0: u32,
    start_1: u32,
    first_key: u32,
    last_key: u32,
    factor: f32,
    #[comptime] keys: usize,
) -> Vector<f32, N> {
    let mut out = Sequence::<f32>::new();
    #[unroll]
    for i in 0..comptime!(keys / 2) {
        let key = first_key + comptime!(((i / 4) * 8 + i % 2) as u32);
        let start = if comptime!((i / 2) % 2 == 0) {
            start_0
        } else {
            start_1
        };
        let at = start + select(key < last_key, key, last_key);
        out.push(multiply_add(bias[at as usize], factor, scores.extract(i)));
    }
    with_rest::<N>(out, scores, comptime!(keys / 2))
}

/// A tile of shared memory that takes results before they are written, known at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StagingTile {
    /// Rows of a panel.
    pub rows: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Element type.
    pub operand_type: OperandType,
}

/// Writes both rows, each scaled, to a tile; `at` is the byte address of this thread's
/// first row in the first panel, `row` that row within its 64.
#[cube]
pub(crate) fn stage_rows<N: Size>(
    at: u32,
    row: u32,
    lane: u32,
    values: Vector<f32, N>,
    scale_0: f32,
    scale_1: f32,
    #[comptime] staging: StagingTile,
) {
    let columns = comptime!(staging.head_dim);
    let rows = comptime!(staging.rows);
    let operand_type = comptime!(staging.operand_type);
    let base = at + (lane % 4) * 4;
    let swizzle = (row % 8) * 16;
    #[unroll]
    for j in 0..comptime!(columns / 8) {
        let to = base + comptime!((j / 8 * rows * 128) as u32) + (swizzle ^ comptime!((j % 8 * 16) as u32));
        store_shared(
            to,
            pack_pair(
                values.extract(comptime!(4 * j)) * scale_0,
                values.extract(comptime!(4 * j + 1)) * scale_0,
                operand_type,
            ),
        );
        store_shared(
            to + 1024,
            pack_pair(
                values.extract(comptime!(4 * j + 2)) * scale_1,
                values.extract(comptime!(4 * j + 3)) * scale_1,
                operand_type,
            ),
        );
    }
}

/// This thread's share of a tile's first `steps` times 16 channels, as the A operand of a product; `at` and `row` as in
/// [`stage_rows`], of a tile of panels of `rows` rows.
#[cube]
pub(crate) fn take_rows<A: Size>(
    at: u32,
    row: u32,
    lane: u32,
    #[comptime] steps: usize,
    #[comptime] rows: usize,
) -> Vector<u32, A> {
    let base = at + (lane % 4) * 4;
    let swizzle = (row % 8) * 16;
    let mut out = Sequence::<u32>::new();
    #[unroll]
    for j in 0..comptime!(2 * steps) {
        let from = base + comptime!((j / 8 * rows * 128) as u32) + (swizzle ^ comptime!((j % 8 * 16) as u32));
        out.push(load_shared(from));
        out.push(load_shared(from + 1024));
    }
    // The vector's size is a power of two.
    #[unroll]
    for _ in comptime!(4 * steps)..A::value() {
        out.push(0u32.runtime());
    }
    vector_of(out)
}

/// `probability · (gradient - delta)`, row by row.
#[cube]
pub(crate) fn score_gradients<N: Size>(
    probabilities: Vector<f32, N>,
    gradients: Vector<f32, N>,
    delta_0: f32,
    delta_1: f32,
    #[comptime] columns: usize,
) -> Vector<f32, N> {
    let mut out = Sequence::<f32>::new();
    #[unroll]
    for i in 0..comptime!(columns / 2) {
        let delta = if comptime!((i / 2) % 2 == 0) {
            delta_0
        } else {
            delta_1
        };
        out.push(probabilities.extract(i) * (gradients.extract(i) - delta));
    }
    with_rest::<N>(out, gradients, comptime!(columns / 2))
}

/// Log-sum-exp of a row whose weights were divided by `2^offset`; plus infinity where there is no row or no key, so that its
/// probabilities read zero.
#[cube]
pub(crate) fn log_sum(offset: f32, sum: f32, exists: bool) -> f32 {
    let value = (offset + log2_approximate(sum)) * std::f32::consts::LN_2;
    select(exists && sum > 0.0f32, value, f32::INFINITY)
}
