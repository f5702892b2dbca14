//! Exact attention on the host, one task per batch row and head.
//!
//! Forward keeps the output and, per query, the logarithm of the sum of exponentials; backward computes the
//! probabilities again from them, so no `S×S` tensor outlives a tile (Dao 2023, arXiv:2307.08691, section 3.1). A task
//! sees one head of one sample only, so its bits do not depend on the batch or on the number of threads.

use burn::backend::DispatchTensor;
use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::exec::Stash;
use flow_core::{AttentionBackend, AttentionShape, Plain, op};
use flow_kernels::host::math::{exp, vectorised};
use flow_kernels::host::matrix::{Matrix, MatrixMut, Write, multiply};
use flow_kernels::host::sum::{maximum, sum, sum_pairs};
use flow_kernels::host::threads;
use std::sync::Arc;

/// Queries whose scores are held at a time.
const QUERIES: usize = 64;

/// f32 attention on the host, forward and backward.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuAttention;

impl AttentionBackend for CpuAttention {
    fn name(&self) -> &str {
        "cpu"
    }

    fn supports(&self, shape: &AttentionShape) -> Result<(), String> {
        if shape.keys == 0 {
            return Err("attention over no keys has no value".into());
        }
        if shape.head_dim == 0 {
            return Err("a head needs at least one channel".into());
        }
        Ok(())
    }

    fn attention(
        &self,
        stash: &dyn Stash,
        q: &DispatchTensor,
        k: &DispatchTensor,
        v: &DispatchTensor,
        shape: &AttentionShape,
    ) -> DispatchTensor {
        let shape = *shape;
        op::apply("attention", &[q, k, v], |inputs, _| {
            let [q, k, v] = [0, 1, 2].map(|index| CpuTensor::read(&inputs[index]));
            let kept = stash.through("attention", &mut || {
                let (o, lse) = forward(&shape, q.values(), k.values(), v.values());
                vec![
                    from_vec(o, &shape.query_shape()),
                    from_vec(lse, &[shape.batch, shape.heads, shape.queries]),
                ]
            });
            let [output, lse] = kept
                .try_into()
                .expect("attention keeps its output and the log-sum-exp");
            let (o, lse) = (CpuTensor::read(&output), CpuTensor::read(&lse));
            let backward: op::Backward = Arc::new(move |incoming| {
                let gradient = CpuTensor::read(incoming.gradient());
                let saved = Saved {
                    q: q.values(),
                    k: k.values(),
                    v: v.values(),
                    o: o.values(),
                    lse: lse.values(),
                };
                backward(&shape, &saved, gradient.values(), incoming.wanted)
            });
            (output, backward)
        })
    }
}

/// Sizes of the operands, beside [`AttentionShape`]'s fields.
trait Sizes {
    fn query_shape(&self) -> [usize; 4];
    fn key_shape(&self) -> [usize; 4];
    /// Values from one token to the next.
    fn stride(&self) -> usize;
}

impl Sizes for AttentionShape {
    fn query_shape(&self) -> [usize; 4] {
        [self.batch, self.queries, self.heads, self.head_dim]
    }
    fn key_shape(&self) -> [usize; 4] {
        [self.batch, self.keys, self.heads, self.head_dim]
    }
    fn stride(&self) -> usize {
        self.heads * self.head_dim
    }
}

/// `count` tokens of one head from `start` on, as a `[count, head_dim]` matrix within `[B, tokens, H, D]`.
fn head<'a>(
    shape: &AttentionShape,
    values: &'a [f32],
    tokens: usize,
    task: usize,
    start: usize,
    count: usize,
) -> Matrix<'a> {
    let (batch, head) = (task / shape.heads, task % shape.heads);
    let offset = (batch * tokens + start) * shape.stride() + head * shape.head_dim;
    Matrix::new(&values[offset..], count, shape.head_dim, shape.stride())
}

/// An output `[B, tokens, H, D]` whose heads are written by different tasks.
struct Heads {
    values: *mut f32,
    length: usize,
    tokens: usize,
    heads: usize,
    head_dim: usize,
}

// SAFETY: `write` is told by its callers that tasks write disjoint heads.
unsafe impl Sync for Heads {}
// SAFETY: as above; the pointer's memory outlives the tasks, which end before the borrow in `new` does.
unsafe impl Send for Heads {}

impl Heads {
    fn new(values: &mut [f32], tokens: usize, shape: &AttentionShape) -> Self {
        Self {
            values: values.as_mut_ptr(),
            length: values.len(),
            tokens,
            heads: shape.heads,
            head_dim: shape.head_dim,
        }
    }

    /// Copies rows `[count, head_dim]` to the tokens of `task`'s head from `start` on.
    ///
    /// # Safety
    /// No two tasks may write the same head of the same sample at once, and the slice given to `new` must be alive and
    /// not otherwise used.
    unsafe fn write(&self, task: usize, start: usize, rows: &[f32]) {
        let (batch, head) = (task / self.heads, task % self.heads);
        for (index, row) in rows.chunks_exact(self.head_dim).enumerate() {
            let offset = ((batch * self.tokens + start + index) * self.heads + head) * self.head_dim;
            assert!(
                offset + self.head_dim <= self.length,
                "a head's row lies within its tensor"
            );
            // SAFETY: in bounds by the assertion, exclusive by the contract of this function.
            unsafe { std::ptr::copy_nonoverlapping(row.as_ptr(), self.values.add(offset), self.head_dim) };
        }
    }
}

/// Multiplications worth of work, in the unit of [`threads::worth_threads`].
fn work(shape: &AttentionShape) -> usize {
    shape.batch * shape.heads * shape.queries * shape.keys * (shape.head_dim / 8 + 1)
}

/// Output `[B, S_query, H, D]` and log-sum-exp `[B, H, S_query]`.
fn forward(shape: &AttentionShape, q: &[f32], k: &[f32], v: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let AttentionShape {
        queries,
        keys,
        head_dim,
        scale,
        ..
    } = *shape;
    let mut o = vec![0.0; shape.query_shape().iter().product()];
    let mut lse = vec![0.0; shape.batch * shape.heads * queries];
    let heads = Heads::new(&mut o, queries, shape);
    threads::for_each_piece_of(&mut lse, queries, work(shape), |task, lse| {
        let mut scores = vec![0.0; queries.min(QUERIES) * keys];
        let mut rows = vec![0.0; queries.min(QUERIES) * head_dim];
        let (k, v) = (
            head(shape, k, keys, task, 0, keys),
            head(shape, v, keys, task, 0, keys),
        );
        for (tile, lse) in lse.chunks_mut(QUERIES).enumerate() {
            let (start, count) = (tile * QUERIES, lse.len());
            let (scores, rows) = (&mut scores[..count * keys], &mut rows[..count * head_dim]);
            let q = head(shape, q, queries, task, start, count);
            multiply(
                &mut MatrixMut::new(scores, count, keys, keys),
                q,
                k.transposed(),
                Write::Replace,
            );
            let mut reciprocals = [0.0; QUERIES];
            vectorised(
                #[inline(always)]
                || softmax_rows(scores, keys, scale, lse, &mut reciprocals),
            );
            multiply(
                &mut MatrixMut::new(rows, count, head_dim, head_dim),
                Matrix::new(scores, count, keys, keys),
                v,
                Write::Replace,
            );
            for (row, reciprocal) in rows.chunks_exact_mut(head_dim).zip(reciprocals) {
                row.iter_mut().for_each(|value| *value *= reciprocal);
            }
            // SAFETY: one task per head of a sample; `o` is alive and not used until all tasks have ended.
            unsafe { heads.write(task, start, rows) };
        }
    });
    (o, lse)
}

/// Turns scores into exponentials below their row's maximum; gives the log-sum-exp and the reciprocal sum per row.
#[inline(always)]
fn softmax_rows(scores: &mut [f32], keys: usize, scale: f32, lse: &mut [f32], reciprocals: &mut [f32]) {
    for ((row, lse), reciprocal) in scores.chunks_exact_mut(keys).zip(lse).zip(reciprocals) {
        row.iter_mut().for_each(|score| *score *= scale);
        let top = maximum(row);
        row.iter_mut().for_each(|score| *score = exp(*score - top));
        let total = sum(row, |value| value);
        *reciprocal = 1.0 / total;
        *lse = top + total.ln();
    }
}

/// What backward needs of a forward.
struct Saved<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    o: &'a [f32],
    lse: &'a [f32],
}

/// Gradients of `q`, `k` and `v`, those that are wanted.
fn backward(
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
    let work = 2 * work(shape);
    threads::for_each(shape.batch * shape.heads, work, |task| {
        backward_head(shape, saved, gradient, task, &heads)
    });
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
    let rows = queries.min(QUERIES);
    let mut probabilities = vec![0.0; rows * keys];
    let mut dscores = vec![0.0; rows * keys];
    let mut tile_dq = vec![0.0; rows * head_dim];
    let (mut dk, mut dv) = (vec![0.0; keys * head_dim], vec![0.0; keys * head_dim]);
    for start in (0..queries).step_by(QUERIES) {
        let count = QUERIES.min(queries - start);
        let probabilities = &mut probabilities[..count * keys];
        let q = head(shape, saved.q, queries, task, start, count);
        let upstream = head(shape, gradient, queries, task, start, count);
        let o = head(shape, saved.o, queries, task, start, count);
        multiply(
            &mut MatrixMut::new(probabilities, count, keys, keys),
            q,
            k.transposed(),
            Write::Replace,
        );
        let lse = &saved.lse[task * queries + start..][..count];
        vectorised(
            #[inline(always)]
            || {
                for (row, lse) in probabilities.chunks_exact_mut(keys).zip(lse) {
                    row.iter_mut()
                        .for_each(|score| *score = exp(*score * scale - lse));
                }
            },
        );
        let p = Matrix::new(probabilities, count, keys, keys);
        if want_v.is_some() {
            multiply(
                &mut MatrixMut::new(&mut dv, keys, head_dim, head_dim),
                p.transposed(),
                upstream,
                Write::Add,
            );
        }
        if want_q.is_none() && want_k.is_none() {
            continue;
        }
        let dscores = &mut dscores[..count * keys];
        multiply(
            &mut MatrixMut::new(dscores, count, keys, keys),
            upstream,
            v.transposed(),
            Write::Replace,
        );
        vectorised(
            #[inline(always)]
            || {
                for (row, (ds, p)) in dscores
                    .chunks_exact_mut(keys)
                    .zip(probabilities.chunks_exact(keys))
                    .enumerate()
                {
                    let delta = sum_pairs(upstream.row(row), o.row(row), |a, b| a * b);
                    ds.iter_mut()
                        .zip(p)
                        .for_each(|(ds, p)| *ds = p * (*ds - delta) * scale);
                }
            },
        );
        let ds = Matrix::new(dscores, count, keys, keys);
        if want_k.is_some() {
            multiply(
                &mut MatrixMut::new(&mut dk, keys, head_dim, head_dim),
                ds.transposed(),
                q,
                Write::Add,
            );
        }
        if let Some(dq) = want_q {
            let tile = &mut tile_dq[..count * head_dim];
            multiply(
                &mut MatrixMut::new(tile, count, head_dim, head_dim),
                ds,
                k,
                Write::Replace,
            );
            // SAFETY: one task per head of a sample; `backward` keeps the outputs alive and unused meanwhile.
            unsafe { dq.write(task, start, tile) };
        }
    }
    for (output, values) in [(want_k, &dk), (want_v, &dv)] {
        if let Some(output) = output {
            // SAFETY: as above.
            unsafe { output.write(task, 0, values) };
        }
    }
}
