//! Softmax and its gradient where rows are keys and columns are queries: statistics come by column.

use cubecl::prelude::*;
use flow_cube::register::{exp2_approximate, multiply_add, store_shared};

/// Two neighbouring columns.
pub(crate) type Pair = Vector<f32, Const<2>>;

/// `2^(score · factor - lse)`, column by column; `lse` in units of log2.
#[cube]
pub(crate) fn probabilities<N: Size>(
    scores: Vector<f32, N>,
    lse: &[Pair],
    start: usize,
    factor: f32,
    #[comptime] columns: usize,
) -> Vector<f32, N> {
    let mut out = scores;
    #[unroll]
    for c in 0..comptime!(columns / 8) {
        let pair = lse[start + comptime!(4 * c)] * Pair::new(std::f32::consts::LOG2_E);
        #[unroll]
        for j in 0..4usize {
            let at = comptime!(4 * c + j);
            let shift = pair.extract(comptime!(j % 2));
            out.insert(
                at,
                exp2_approximate(multiply_add(scores.extract(at), factor, -shift)),
            );
        }
    }
    out
}

/// `probability · (gradient - delta)`, column by column.
#[cube]
pub(crate) fn score_gradients<N: Size>(
    probabilities: Vector<f32, N>,
    gradients: Vector<f32, N>,
    delta: &[Pair],
    start: usize,
    #[comptime] columns: usize,
) -> Vector<f32, N> {
    let mut out = gradients;
    #[unroll]
    for c in 0..comptime!(columns / 8) {
        let pair = delta[start + comptime!(4 * c)];
        #[unroll]
        for j in 0..4usize {
            let at = comptime!(4 * c + j);
            out.insert(
                at,
                probabilities.extract(at) * (gradients.extract(at) - pair.extract(comptime!(j % 2))),
            );
        }
    }
    out
}

/// Probabilities of the rows from `rows` on become zero; `row` is this thread's first row, the second comes 8 later.
#[cube]
pub(crate) fn cut_rows<N: Size>(
    probabilities: Vector<f32, N>,
    row: u32,
    rows: u32,
    #[comptime] columns: usize,
) -> Vector<f32, N> {
    let mut out = probabilities;
    #[unroll]
    for i in 0..comptime!(columns / 2) {
        let exists = row + comptime!((i / 2 % 2 * 8) as u32) < rows;
        out.insert(i, select(exists, probabilities.extract(i), 0.0f32));
    }
    out
}

/// Where a thread's first values of row `row` lie within the 128 bytes of the row: the first chunk of 16 bytes, swizzled.
#[cube]
pub(crate) fn swizzled(row: u32, lane: u32) -> u32 {
    (row % 8) * 16 + (lane % 4) * 4
}

/// Writes both rows, packed as the A operand of a product, to a tile of one panel of `columns` <= 64 columns; `at` is the byte
/// address of this thread's first row and [`swizzled`], which makes that of each chunk a matter of one `xor`.
#[cube]
pub(crate) fn stage_packed<P: Size>(at: u32, packed: Vector<u32, P>, #[comptime] columns: usize) {
    #[unroll]
    for j in 0..comptime!(columns / 8) {
        let to = at ^ comptime!((j * 16) as u32);
        store_shared(to, packed.extract(comptime!(2 * j)));
        store_shared(to + 1024, packed.extract(comptime!(2 * j + 1)));
    }
}
