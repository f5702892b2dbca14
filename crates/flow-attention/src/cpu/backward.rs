//! Gradients of queries, keys and values.

use super::forward::{Operands, kv_head, scores};
use super::heads::{Heads, Layout};
use super::softmax::{probabilities, score_gradients};
use super::tiles::{QUERIES, Tiles, copy_rows, copy_to_columns, padded, work};
use super::visible::Visible;
use flow_core::cpu::from_vec;
use flow_core::{AttentionCall, RawTensor};
use flow_kernels::host::matrix::{Matrix, Write};
use flow_kernels::host::narrow::multiply_narrow;
use flow_kernels::host::threads;
use std::ops::Range;

/// What backward needs of a forward.
pub(super) struct Saved<'a> {
    pub(super) operands: Operands<'a>,
    /// `[B, H, S]`.
    pub(super) lse: &'a [f32],
    pub(super) visible: &'a Visible,
}

/// Which gradients are wanted: of queries, of any keys, of any values.
#[derive(Clone, Copy)]
struct Wanted {
    q: bool,
    k: bool,
    v: bool,
}

/// Where gradients go: of queries, and of keys and values of each part.
struct Outputs {
    dq: Option<Heads>,
    parts: Vec<[Option<Heads>; 2]>,
}

/// Gradients of `q`, and of `k` and `v` of each part, those that are wanted.
pub(super) fn backward(
    call: &AttentionCall,
    saved: &Saved<'_>,
    gradient: &[f32],
    wanted: &[bool],
) -> Vec<Option<RawTensor>> {
    let layouts = |index: usize| match index {
        0 => (Layout::of_queries(call), call.query_shape()),
        _ => (
            Layout::of_keys(call, (index - 1) / 2),
            call.key_shape((index - 1) / 2),
        ),
    };
    let mut memory: Vec<Vec<f32>> = (0..wanted.len())
        .map(|index| {
            let length = layouts(index).1.iter().product();
            vec![0.0; if wanted[index] { length } else { 0 }]
        })
        .collect();
    let mut heads = memory
        .iter_mut()
        .enumerate()
        .map(|(index, values)| wanted[index].then(|| Heads::new(values, layouts(index).0)));
    let mut next = || heads.next().expect("one output for each operand");
    let dq = next();
    let outputs = Outputs {
        dq,
        parts: (0..wanted.len() / 2).map(|_| [next(), next()]).collect(),
    };
    let any = |which: usize| wanted[1..].iter().skip(which).step_by(2).any(|wanted| *wanted);
    let want = Wanted {
        q: wanted[0],
        k: any(0),
        v: any(1),
    };
    threads::for_each_with(
        call.batch * call.kv_heads,
        2 * work(call),
        || Tiles::new(call, saved.visible, true),
        |task, tiles| {
            let kv_head = [task / call.kv_heads, task % call.kv_heads];
            backward_group(call, saved, gradient, kv_head, tiles, want, &outputs);
        },
    );
    let gradients = memory.into_iter().enumerate();
    gradients
        .map(|(index, values)| wanted[index].then(|| from_vec(values, &layouts(index).1)))
        .collect()
}

/// The heads of one sample that read the head `kv_head` of keys. They follow each other in order, and their query tiles,
/// too, so the sums over queries have one order.
fn backward_group(
    call: &AttentionCall,
    saved: &Saved<'_>,
    gradient: &[f32],
    kv_head: [usize; 2],
    tiles: &mut Tiles,
    want: Wanted,
    outputs: &Outputs,
) {
    tiles.sums.iter_mut().for_each(|sums| sums.fill(0.0));
    let group = call.heads / call.kv_heads;
    for number in kv_head[1] * group..(kv_head[1] + 1) * group {
        let head = [kv_head[0], number];
        for start in (0..call.queries).step_by(QUERIES) {
            let count = QUERIES.min(call.queries - start);
            backward_tile(call, saved, gradient, head, start..start + count, tiles, want);
            let Some(dq) = &outputs.dq else {
                continue;
            };
            for query in 0..count {
                // SAFETY: one task per group of heads; `backward` keeps the outputs alive and unused meanwhile.
                let row = unsafe { dq.row(head, start + query) };
                let column = tiles.result[query..].iter().step_by(padded(count));
                row.iter_mut()
                    .zip(column)
                    .for_each(|(to, from)| *to = from * call.scale);
            }
        }
    }
    for (which, sums) in tiles.sums.iter().enumerate() {
        let mut rows = sums.chunks_exact(padded(call.head_dim));
        for (part, keys) in call.keys.into_iter().enumerate() {
            for (token, from) in rows.by_ref().take(keys).enumerate() {
                if let Some(output) = outputs.parts.get(part).and_then(|part| part[which].as_ref()) {
                    // SAFETY: as above.
                    unsafe { output.row(kv_head, token) }.copy_from_slice(&from[..call.head_dim]);
                }
            }
        }
    }
}

/// Adds what the queries in `range` give to the gradients of keys and values, and leaves the gradient of the scaled
/// queries in `tiles.result`.
fn backward_tile(
    call: &AttentionCall,
    saved: &Saved<'_>,
    gradient: &[f32],
    head: [usize; 2],
    range: Range<usize>,
    tiles: &mut Tiles,
    want: Wanted,
) {
    let (count, width, head_dim) = (range.len(), padded(range.len()), call.head_dim);
    let channels = padded(head_dim);
    let (of_queries, runs) = (Layout::of_queries(call), saved.visible.runs(head[0], range.start));
    let operands = |run: &super::visible::Run, which: usize| {
        let values = saved.operands.parts[run.part][which];
        Layout::of_keys(call, run.part).head(values, kv_head(call, head), run.start, run.count)
    };
    let [dk, dv] = &mut tiles.sums;
    let q = of_queries.head(saved.operands.q, head, range.start, count);
    let scaled = &mut tiles.queries[..head_dim * width];
    copy_to_columns(scaled, q, width, call.scale);
    let keys = scores(
        call,
        &saved.operands,
        saved.visible,
        head,
        range.clone(),
        scaled,
        &mut tiles.scores,
    );
    let scores = &mut tiles.scores[..keys * width];
    let mut lse = [0.0; QUERIES];
    let first = (head[0] * call.heads + head[1]) * call.queries + range.start;
    lse[..count].copy_from_slice(&saved.lse[first..][..count]);
    probabilities(width, scores, &lse);
    let upstream = of_queries.head(gradient, head, range.start, count);
    if want.v {
        copy_rows(&mut tiles.upstream_rows, upstream, channels, 1.0);
        let mut rest = &*scores;
        for run in runs {
            let (these, others) = rest.split_at(run.count * width);
            // Only the real queries: what lies beside them in the tile is no probability.
            let p = Matrix::new(these, run.count, count, width);
            multiply_narrow(
                &mut dv[run.first * channels..][..run.count * channels],
                p,
                &tiles.upstream_rows[..count * channels],
                channels,
                Write::Add,
            );
            rest = others;
        }
    }
    if !want.q && !want.k {
        return;
    }
    let columns = &mut tiles.upstream[..head_dim * width];
    copy_to_columns(columns, upstream, width, 1.0);
    let dscores = &mut tiles.dscores[..keys * width];
    let mut rest = &mut *dscores;
    for run in runs {
        let (these, others) = rest.split_at_mut(run.count * width);
        multiply_narrow(these, operands(run, 1), columns, width, Write::Replace);
        rest = others;
    }
    score_gradients(width, dscores, scores);
    if want.k {
        copy_rows(&mut tiles.query_rows, q, channels, call.scale);
        let mut rest = &*dscores;
        for run in runs {
            let (these, others) = rest.split_at(run.count * width);
            let ds = Matrix::new(these, run.count, count, width);
            multiply_narrow(
                &mut dk[run.first * channels..][..run.count * channels],
                ds,
                &tiles.query_rows[..count * channels],
                channels,
                Write::Add,
            );
            rest = others;
        }
    }
    if want.q {
        let result = &mut tiles.result[..head_dim * width];
        let (mut rest, mut write) = (&*dscores, Write::Replace);
        for run in runs {
            let (these, others) = rest.split_at(run.count * width);
            multiply_narrow(result, operands(run, 0).transposed(), these, width, write);
            (rest, write) = (others, Write::Add);
        }
        if write == Write::Replace {
            result.fill(0.0);
        }
    }
}
