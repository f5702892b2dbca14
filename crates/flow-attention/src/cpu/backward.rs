//! Gradients of queries, keys and values.

use super::heads::{Heads, Sizes, head};
use super::softmax::{probabilities, score_gradients};
use super::tiles::{QUERIES, Tiles, copy_rows, copy_to_columns, padded, work};
use flow_core::cpu::from_vec;
use flow_core::{AttentionShape, Plain};
use flow_kernels::host::matrix::{Matrix, Write};
use flow_kernels::host::narrow::multiply_narrow;
use flow_kernels::host::threads;
use std::ops::Range;

/// What backward needs of a forward.
pub(super) struct Saved<'a> {
    pub(super) q: &'a [f32],
    pub(super) k: &'a [f32],
    pub(super) v: &'a [f32],
    pub(super) lse: &'a [f32],
}

/// Gradients of `q`, `k` and `v`, those that are wanted.
pub(super) fn backward(
    shape: &AttentionShape,
    saved: &Saved<'_>,
    gradient: &[f32],
    wanted: &[bool],
) -> Vec<Option<Plain>> {
    let (query_shape, key_shape) = (shape.query_shape(), shape.key_shape());
    let allocate = |wanted: bool, shape: &[usize]| vec![0.0; if wanted { shape.iter().product() } else { 0 }];
    let mut dq = allocate(wanted[0], &query_shape);
    let mut dk = allocate(wanted[1], &key_shape);
    let mut dv = allocate(wanted[2], &key_shape);
    let heads = [
        wanted[0].then(|| Heads::new(&mut dq, shape.queries, shape)),
        wanted[1].then(|| Heads::new(&mut dk, shape.keys, shape)),
        wanted[2].then(|| Heads::new(&mut dv, shape.keys, shape)),
    ];
    threads::for_each_with(
        shape.batch * shape.heads,
        2 * work(shape),
        || Tiles::new(shape, true),
        |task, tiles| backward_head(shape, saved, gradient, task, tiles, &heads),
    );
    let give = |wanted: bool, values: Vec<f32>, shape: &[usize]| wanted.then(|| from_vec(values, shape));
    vec![
        give(wanted[0], dq, &query_shape),
        give(wanted[1], dk, &key_shape),
        give(wanted[2], dv, &key_shape),
    ]
}

/// One head of one sample. Query tiles follow each other in order, so the sums over queries have one order.
fn backward_head(
    shape: &AttentionShape,
    saved: &Saved<'_>,
    gradient: &[f32],
    task: usize,
    tiles: &mut Tiles,
    outputs: &[Option<Heads>; 3],
) {
    let AttentionShape {
        queries,
        head_dim,
        scale,
        ..
    } = *shape;
    let [dq, dk, dv] = outputs;
    tiles.sums.iter_mut().for_each(|sums| sums.fill(0.0));
    for start in (0..queries).step_by(QUERIES) {
        let count = QUERIES.min(queries - start);
        backward_tile(shape, saved, gradient, task, start..start + count, tiles, outputs);
        if let Some(dq) = dq {
            for query in 0..count {
                // SAFETY: one task per head of a sample; `backward` keeps the outputs alive and unused meanwhile.
                let row = unsafe { dq.row(task, start + query) };
                let column = tiles.result[query..].iter().step_by(padded(count));
                row.iter_mut()
                    .zip(column)
                    .for_each(|(to, from)| *to = from * scale);
            }
        }
    }
    for (output, sums) in [dk, dv].into_iter().zip(&tiles.sums) {
        for (token, from) in sums.chunks_exact(padded(head_dim)).enumerate() {
            if let Some(output) = output {
                // SAFETY: as above.
                unsafe { output.row(task, token) }.copy_from_slice(&from[..head_dim]);
            }
        }
    }
}

/// Adds what the queries in `range` give to the gradients of keys and values, and leaves the gradient of the scaled
/// queries in `tiles.result`.
fn backward_tile(
    shape: &AttentionShape,
    saved: &Saved<'_>,
    gradient: &[f32],
    task: usize,
    range: Range<usize>,
    tiles: &mut Tiles,
    [want_q, want_k, want_v]: &[Option<Heads>; 3],
) {
    let AttentionShape {
        queries,
        keys,
        head_dim,
        scale,
        ..
    } = *shape;
    let (count, width, channels) = (range.len(), padded(range.len()), padded(head_dim));
    let (k, v) = (
        head(shape, saved.k, keys, task, 0, keys),
        head(shape, saved.v, keys, task, 0, keys),
    );
    let [dk, dv] = &mut tiles.sums;
    let q = head(shape, saved.q, queries, task, range.start, count);
    let scaled = &mut tiles.queries[..head_dim * width];
    copy_to_columns(scaled, q, width, scale);
    let scores = &mut tiles.scores[..keys * width];
    multiply_narrow(scores, k, scaled, width, Write::Replace);
    let mut lse = [0.0; QUERIES];
    lse[..count].copy_from_slice(&saved.lse[task * queries + range.start..][..count]);
    probabilities(width, scores, &lse);
    let upstream = head(shape, gradient, queries, task, range.start, count);
    if want_v.is_some() {
        // Only the real queries: what lies beside them in the tile is no probability.
        let p = Matrix::new(scores, keys, count, width);
        copy_rows(&mut tiles.upstream_rows, upstream, channels, 1.0);
        multiply_narrow(
            dv,
            p,
            &tiles.upstream_rows[..count * channels],
            channels,
            Write::Add,
        );
    }
    if want_q.is_none() && want_k.is_none() {
        return;
    }
    let columns = &mut tiles.upstream[..head_dim * width];
    copy_to_columns(columns, upstream, width, 1.0);
    let dscores = &mut tiles.dscores[..keys * width];
    multiply_narrow(dscores, v, columns, width, Write::Replace);
    score_gradients(width, dscores, scores);
    if want_k.is_some() {
        copy_rows(&mut tiles.query_rows, q, channels, scale);
        let ds = Matrix::new(dscores, keys, count, width);
        multiply_narrow(
            dk,
            ds,
            &tiles.query_rows[..count * channels],
            channels,
            Write::Add,
        );
    }
    if want_q.is_some() {
        multiply_narrow(
            &mut tiles.result[..head_dim * width],
            k.transposed(),
            dscores,
            width,
            Write::Replace,
        );
    }
}
