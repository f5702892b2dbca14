//! Gradients of queries, keys and values.

use super::heads::{Heads, Sizes, head};
use super::softmax::{probabilities, score_gradients};
use super::tiles::{QUERIES, Tiles, copy_rows, padded, work};
use flow_core::cpu::from_vec;
use flow_core::{AttentionShape, Plain};
use flow_kernels::host::matrix::{Matrix, MatrixMut, Write, multiply};
use flow_kernels::host::threads;

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
        keys,
        head_dim,
        scale,
        ..
    } = *shape;
    let [want_q, want_k, want_v] = outputs;
    let (k, v) = (
        head(shape, saved.k, keys, task, 0, keys),
        head(shape, saved.v, keys, task, 0, keys),
    );
    let [dk, dv] = &mut tiles.sums;
    let mut write = Write::Replace;
    for start in (0..queries).step_by(QUERIES) {
        let count = QUERIES.min(queries - start);
        let width = padded(count);
        let scaled = &mut tiles.queries[..width * head_dim];
        copy_rows(
            scaled,
            head(shape, saved.q, queries, task, start, count),
            count,
            head_dim,
            scale,
        );
        let upstream = &mut tiles.upstream[..width * head_dim];
        copy_rows(
            upstream,
            head(shape, gradient, queries, task, start, count),
            count,
            head_dim,
            1.0,
        );
        let scaled = Matrix::new(scaled, width, head_dim, head_dim);
        let upstream = Matrix::new(upstream, width, head_dim, head_dim);
        let scores = &mut tiles.scores[..keys * width];
        multiply(
            &mut MatrixMut::new(scores, keys, width, width),
            k,
            scaled.transposed(),
            Write::Replace,
        );
        let mut lse = [0.0; QUERIES];
        lse[..count].copy_from_slice(&saved.lse[task * queries + start..][..count]);
        probabilities(width, scores, &lse);
        let p = Matrix::new(scores, keys, width, width);
        if want_v.is_some() {
            multiply(
                &mut MatrixMut::new(dv, keys, head_dim, head_dim),
                p,
                upstream,
                write,
            );
        }
        if want_q.is_some() || want_k.is_some() {
            let dscores = &mut tiles.dscores[..keys * width];
            multiply(
                &mut MatrixMut::new(dscores, keys, width, width),
                v,
                upstream.transposed(),
                Write::Replace,
            );
            score_gradients(width, dscores, scores);
            let ds = Matrix::new(dscores, keys, width, width);
            if want_k.is_some() {
                multiply(
                    &mut MatrixMut::new(dk, keys, head_dim, head_dim),
                    ds,
                    scaled,
                    write,
                );
            }
            if let Some(dq) = want_q {
                let result = &mut tiles.result[..head_dim * width];
                multiply(
                    &mut MatrixMut::new(result, head_dim, width, width),
                    k.transposed(),
                    ds,
                    Write::Replace,
                );
                for query in 0..count {
                    // SAFETY: one task per head of a sample; `backward` keeps the outputs alive and unused meanwhile.
                    let row = unsafe { dq.row(task, start + query) };
                    let column = result[query..].iter().step_by(width);
                    row.iter_mut()
                        .zip(column)
                        .for_each(|(to, from)| *to = from * scale);
                }
            }
        }
        write = Write::Add;
    }
    for (output, values) in [(want_k, dk), (want_v, dv)] {
        for (token, from) in values.chunks_exact(head_dim).enumerate() {
            if let Some(output) = output.as_ref().filter(|_| write == Write::Add) {
                // SAFETY: as above.
                unsafe { output.row(task, token) }.copy_from_slice(from);
            }
        }
    }
}
