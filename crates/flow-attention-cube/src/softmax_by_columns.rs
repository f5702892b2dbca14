//! Softmax and its gradient for transposed scores (rows are keys, columns are queries): statistics are by column.

use cubecl::prelude::*;
use flow_cube::register::{exp2_approximate, multiply_add};

/// Two neighbouring columns.
pub(crate) type Pair = Vector<f32, Const<2>>;

/// `2^(score · scale_log2 - lse)`, column by column; `lse` in units of log2.
#[cube]
pub(crate) fn probabilities<N: Size>(
    scores: Vector<f32, N>,
    lse: &[Pair],
    start: usize,
    scale_log2: f32,
    #[comptime] columns: usize,
) -> Vector<f32, N> {
    let mut out = scores;
    #[unroll]
    for c in 0..comptime!(columns / 8) {
        let pair = lse[start + comptime!(4 * c)] * Pair::new(std::f32::consts::LOG2_E);
        #[unroll]
        for j in 0..4usize {
            let at = comptime!(4 * c + j);
            let offset = pair.extract(comptime!(j % 2));
            out.insert(
                at,
                exp2_approximate(multiply_add(scores.extract(at), scale_log2, -offset)),
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
