//! Output and log-sum-exp.

use super::heads::{Heads, Sizes, head};
use super::softmax::softmax;
use super::tiles::{QUERIES, Tiles, copy_to_columns, padded, work};
use flow_core::AttentionShape;
use flow_kernels::host::matrix::Write;
use flow_kernels::host::narrow::multiply_narrow;
use flow_kernels::host::threads;

/// Output `[B, S_query, H, D]` and log-sum-exp `[B, H, S_query]`.
pub(super) fn forward(shape: &AttentionShape, q: &[f32], k: &[f32], v: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let (tasks, queries) = (shape.batch * shape.heads, shape.queries);
    let mut o = vec![0.0; shape.query_shape().iter().product()];
    let mut lse = vec![0.0; tasks * queries];
    let heads = Heads::new(&mut o, queries, shape);
    // One token whose channels are the queries.
    let sums = AttentionShape {
        head_dim: queries,
        queries: 1,
        ..*shape
    };
    let sums = Heads::new(&mut lse, 1, &sums);
    let prepare = || Tiles::new(shape, false);
    threads::for_each_with(tasks, work(shape), prepare, |task, tiles| {
        // SAFETY: one task per head of a sample; `lse` is alive and not used until all tasks have ended.
        let lse = unsafe { sums.row(task, 0) };
        for (tile, lse) in lse.chunks_mut(QUERIES).enumerate() {
            let reciprocals = forward_tile(shape, [q, k, v], task, tile * QUERIES, tiles, lse);
            for (query, reciprocal) in reciprocals.into_iter().enumerate().take(lse.len()) {
                // SAFETY: as above, for `o`.
                let row = unsafe { heads.row(task, tile * QUERIES + query) };
                let column = tiles.result[query..].iter().step_by(padded(lse.len()));
                row.iter_mut()
                    .zip(column)
                    .for_each(|(to, from)| *to = from * reciprocal);
            }
        }
    });
    (o, lse)
}

/// Queries from `start` on, as many as `lse` has places: leaves the output times each query's sum in `tiles.result` and
/// gives the reciprocal sums.
fn forward_tile(
    shape: &AttentionShape,
    [q, k, v]: [&[f32]; 3],
    task: usize,
    start: usize,
    tiles: &mut Tiles,
    lse: &mut [f32],
) -> [f32; QUERIES] {
    let (keys, count, width) = (shape.keys, lse.len(), padded(lse.len()));
    let (k, v) = (
        head(shape, k, keys, task, 0, keys),
        head(shape, v, keys, task, 0, keys),
    );
    let scaled = &mut tiles.queries[..shape.head_dim * width];
    copy_to_columns(
        scaled,
        head(shape, q, shape.queries, task, start, count),
        width,
        shape.scale,
    );
    let scores = &mut tiles.scores[..keys * width];
    multiply_narrow(scores, k, scaled, width, Write::Replace);
    let (mut sums, mut reciprocals) = ([0.0; QUERIES], [0.0; QUERIES]);
    softmax(width, scores, &mut sums, &mut reciprocals);
    lse.copy_from_slice(&sums[..count]);
    multiply_narrow(
        &mut tiles.result[..shape.head_dim * width],
        v.transposed(),
        scores,
        width,
        Write::Replace,
    );
    reciprocals
}
