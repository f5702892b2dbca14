//! Exact attention on the host, one task per batch row and head.
//!
//! Forward keeps, per query, the logarithm of the sum of exponentials; backward computes the probabilities again from
//! it, so no `S×S` tensor outlives a tile (Dao 2023, arXiv:2307.08691, section 3.1). A task
//! sees one head of one sample only, so its bits do not depend on the batch or on the number of threads.

use burn::backend::DispatchTensor;
use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::exec::Stash;
use flow_core::{AttentionBackend, AttentionShape, Plain, op};
use flow_kernels::host::math::{exp, ln, vectorised};
use flow_kernels::host::matrix::{Matrix, MatrixMut, Write, multiply};
use flow_kernels::host::threads;
use std::sync::Arc;

/// Queries whose scores are held at a time.
const QUERIES: usize = 64;
/// The number of queries in a tile is a multiple of this.
const LANES: usize = 16;
/// Keys that are summed up before the sum joins the total.
const KEYS: usize = 64;

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
            let lse = CpuTensor::read(&lse);
            let backward: op::Backward = Arc::new(move |incoming| {
                let gradient = CpuTensor::read(incoming.gradient());
                let saved = Saved {
                    q: q.values(),
                    k: k.values(),
                    v: v.values(),
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

// SAFETY: `row` is told by its callers that tasks write disjoint heads.
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

    /// A token's channels in `task`'s head.
    ///
    /// # Safety
    /// No two tasks may ask for the same head of the same sample, a task may hold one row at a time, and the slice given
    /// to `new` must be alive and not otherwise used.
    #[allow(clippy::mut_from_ref)]
    unsafe fn row(&self, task: usize, token: usize) -> &mut [f32] {
        let (batch, head) = (task / self.heads, task % self.heads);
        let offset = ((batch * self.tokens + token) * self.heads + head) * self.head_dim;
        assert!(
            token < self.tokens && offset + self.head_dim <= self.length,
            "a row lies within its tensor"
        );
        // SAFETY: in bounds by the assertion, exclusive by the contract of this function.
        unsafe { std::slice::from_raw_parts_mut(self.values.add(offset), self.head_dim) }
    }
}

/// Multiplications worth of work, in the unit of [`threads::worth_threads`].
fn work(shape: &AttentionShape) -> usize {
    shape.batch * shape.heads * shape.queries * shape.keys * (shape.head_dim / 8 + 1)
}

/// Tiles of one task. Queries are the last axis of all but the first, so that sums over keys run along the lanes'
/// outside, and are padded with zeros to `LANES`.
struct Tiles {
    /// Queries times the scale, `[Q, D]`.
    queries: Vec<f32>,
    /// Gradients of the output, `[Q, D]`.
    upstream: Vec<f32>,
    /// Scores, then exponentials or probabilities, `[keys, Q]`.
    scores: Vec<f32>,
    /// Gradients of the scores, `[keys, Q]`.
    dscores: Vec<f32>,
    /// A result for the queries, `[D, Q]`.
    result: Vec<f32>,
    /// Gradients of keys and of values, `[keys, D]`.
    sums: [Vec<f32>; 2],
}

impl Tiles {
    fn new(shape: &AttentionShape, backward: bool) -> Self {
        let queries = padded(shape.queries.min(QUERIES));
        let only = |count: usize| vec![0.0; if backward { count } else { 0 }];
        let keys = shape.keys * shape.head_dim;
        Self {
            queries: vec![0.0; queries * shape.head_dim],
            upstream: only(queries * shape.head_dim),
            scores: vec![0.0; queries * shape.keys],
            dscores: only(queries * shape.keys),
            result: vec![0.0; queries * shape.head_dim],
            sums: [only(keys), only(keys)],
        }
    }
}

fn padded(queries: usize) -> usize {
    queries.next_multiple_of(LANES)
}

/// Copies rows, times `factor`, and fills what is left of `tile` with zeros.
fn copy_rows(tile: &mut [f32], rows: Matrix<'_>, count: usize, width: usize, factor: f32) {
    for (index, to) in tile.chunks_exact_mut(width).enumerate() {
        if index < count {
            to.iter_mut()
                .zip(rows.row(index))
                .for_each(|(to, from)| *to = from * factor);
        } else {
            to.fill(0.0);
        }
    }
}

/// Calls `$function::<N>` with the number of padded queries as `N`.
macro_rules! with_queries {
    ($count:expr, $function:ident($($argument:expr),*)) => {
        vectorised(
            #[inline(always)]
            || match $count {
                16 => $function::<16>($($argument),*),
                32 => $function::<32>($($argument),*),
                48 => $function::<48>($($argument),*),
                _ => $function::<64>($($argument),*),
            },
        )
    };
}

/// Turns scores `[keys, N]` into exponentials below each query's maximum; gives each query's log-sum-exp and the
/// reciprocal of its sum.
#[inline(always)]
fn softmax<const N: usize>(scores: &mut [f32], lse: &mut [f32; QUERIES], reciprocals: &mut [f32; QUERIES]) {
    let (rows, _) = scores.as_chunks_mut::<N>();
    let mut top = [f32::NEG_INFINITY; N];
    for (block, top) in top.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        *top = largest(rows, block * LANES);
    }
    // Two levels, so that the rounding error grows slowly with the number of keys.
    let mut total = [0.0; N];
    for block in rows.chunks_mut(KEYS) {
        let mut sum = [0.0; N];
        for row in block {
            for lane in 0..N {
                row[lane] = exp(row[lane] - top[lane]);
                sum[lane] += row[lane];
            }
        }
        for lane in 0..N {
            total[lane] += sum[lane];
        }
    }
    for lane in 0..N {
        reciprocals[lane] = 1.0 / total[lane];
        lse[lane] = top[lane] + ln(total[lane]);
    }
}

/// The largest of every column of `LANES` columns from `start` on.
#[inline(always)]
fn largest<const N: usize>(rows: &[[f32; N]], start: usize) -> [f32; LANES] {
    let mut top = [f32::NEG_INFINITY; LANES];
    for row in rows {
        let row: &[f32; LANES] = row[start..]
            .first_chunk()
            .expect("a row is whole blocks of lanes");
        for (top, score) in top.iter_mut().zip(row) {
            *top = if *score > *top { *score } else { *top };
        }
    }
    top
}

/// Turns scores `[keys, N]` into probabilities.
#[inline(always)]
fn probabilities<const N: usize>(scores: &mut [f32], lse: &[f32; QUERIES]) {
    for row in scores.as_chunks_mut::<N>().0 {
        for lane in 0..N {
            row[lane] = exp(row[lane] - lse[lane]);
        }
    }
}

/// Turns gradients of the probabilities `[keys, N]` into gradients of the scores: `p · (dp - sum over keys of p · dp)`.
#[inline(always)]
fn score_gradients<const N: usize>(dscores: &mut [f32], probabilities: &[f32]) {
    let (dscores, _) = dscores.as_chunks_mut::<N>();
    let (probabilities, _) = probabilities.as_chunks::<N>();
    let mut delta = [0.0; N];
    for (ds, p) in dscores.chunks(KEYS).zip(probabilities.chunks(KEYS)) {
        let mut sum = [0.0; N];
        for (ds, p) in ds.iter().zip(p) {
            for lane in 0..N {
                sum[lane] += ds[lane] * p[lane];
            }
        }
        for lane in 0..N {
            delta[lane] += sum[lane];
        }
    }
    for (ds, p) in dscores.iter_mut().zip(probabilities) {
        for lane in 0..N {
            ds[lane] = p[lane] * (ds[lane] - delta[lane]);
        }
    }
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
                with_queries!(width, softmax(scores, &mut sums, &mut reciprocals));
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

/// What backward needs of a forward.
struct Saved<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
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
        with_queries!(width, probabilities(scores, &lse));
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
            with_queries!(width, score_gradients(dscores, scores));
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
