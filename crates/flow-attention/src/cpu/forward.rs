//! Output and log-sum-exp.

use super::heads::{Heads, Sizes, head};
use super::softmax::softmax;
use super::tiles::{QUERIES, Tiles, copy_rows, padded, work};
use flow_core::AttentionShape;
use flow_kernels::host::matrix::{Matrix, MatrixMut, Write, multiply};
use flow_kernels::host::threads;

/// Output `[B, S_query, H, D]` and log-sum-exp `[B, H, S_query]`.
pub(super) fn forward(shape: &AttentionShape, q: &[f32], k: &[f32], v: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let AttentionShape {
        queries,
        keys,
        head_dim,
        scale,
        ..
    } = *shape;
    let tasks = shape.batch * shape.heads;
    let mut o = vec![0.0; shape.query_shape().iter().product()];
    let mut lse = vec![0.0; tasks * queries];
    let heads = Heads::new(&mut o, queries, shape);
    // One head of one channel per query and sample.
    let sums = AttentionShape {
        head_dim: queries,
        queries: 1,
        ..*shape
    };
    let sums = Heads::new(&mut lse, 1, &sums);
    threads::for_each_with(
        tasks,
        work(shape),
        || Tiles::new(shape, false),
        |task, tiles| {
            let (k, v) = (
                head(shape, k, keys, task, 0, keys),
                head(shape, v, keys, task, 0, keys),
            );
            // SAFETY: one task per head of a sample; `lse` is alive and not used until all tasks have ended.
            let lse = unsafe { sums.row(task, 0) };
            for (tile, lse) in lse.chunks_mut(QUERIES).enumerate() {
                let (start, count) = (tile * QUERIES, lse.len());
                let width = padded(count);
                let scaled = &mut tiles.queries[..width * head_dim];
                copy_rows(
                    scaled,
                    head(shape, q, queries, task, start, count),
                    count,
                    head_dim,
                    scale,
                );
                let scores = &mut tiles.scores[..keys * width];
                let scaled = Matrix::new(scaled, width, head_dim, head_dim);
                multiply(
                    &mut MatrixMut::new(scores, keys, width, width),
                    k,
                    scaled.transposed(),
                    Write::Replace,
                );
                let (mut sums, mut reciprocals) = ([0.0; QUERIES], [0.0; QUERIES]);
                softmax(width, scores, &mut sums, &mut reciprocals);
                lse.copy_from_slice(&sums[..count]);
                let result = &mut tiles.result[..head_dim * width];
                let scores = Matrix::new(scores, keys, width, width);
                multiply(
                    &mut MatrixMut::new(result, head_dim, width, width),
                    v.transposed(),
                    scores,
                    Write::Replace,
                );
                for query in 0..count {
                    // SAFETY: as above, for `o`.
                    let row = unsafe { heads.row(task, start + query) };
                    let column = result[query..].iter().step_by(width);
                    row.iter_mut()
                        .zip(column)
                        .for_each(|(to, from)| *to = from * reciprocals[query]);
                }
            }
        },
    );
    (o, lse)
}
