//! Output and log-sum-exp.

use super::heads::{Heads, Layout};
use super::softmax::softmax;
use super::tiles::{QUERIES, Tiles, copy_to_columns, padded, work};
use super::visible::{Run, Visible};
use flow_core::AttentionCall;
use flow_kernels::host::matrix::Write;
use flow_kernels::host::narrow::multiply_narrow;
use flow_kernels::host::threads;

/// Values of the operands: queries `[B, S, H, D]`, `[keys, values]` of each part, `[B, T, H_kv, D]`, and what is added to the
/// scores by distance, `[H, S + T - 1]`.
#[derive(Clone, Debug)]
pub(super) struct Operands<'a> {
    pub(super) q: &'a [f32],
    pub(super) parts: Vec<[&'a [f32]; 2]>,
    pub(super) bias: Option<&'a [f32]>,
}

/// Output `[B, S, H, D]` and log-sum-exp `[B, H, S]`.
pub(super) fn forward(
    call: &AttentionCall,
    operands: &Operands<'_>,
    visible: &Visible,
) -> (Vec<f32>, Vec<f32>) {
    let (tasks, queries) = (call.batch * call.heads, call.queries);
    let mut o = vec![0.0; call.query_shape().iter().product()];
    let mut lse = vec![0.0; tasks * queries];
    let heads = Heads::new(&mut o, Layout::of_queries(call));
    // One token of each sample and head, whose channels are the queries.
    let one_token = AttentionCall {
        head_dim: queries,
        queries: 1,
        ..call.clone()
    };
    let sums = Heads::new(&mut lse, Layout::of_queries(&one_token));
    let prepare = || Tiles::new(call, visible, false);
    threads::for_each_with(tasks, work(call), prepare, |task, tiles| {
        let head = [task / call.heads, task % call.heads];
        // SAFETY: one task per head of a sample; `lse` is alive and not used until all tasks have ended.
        let lse = unsafe { sums.row(head, 0) };
        for (tile, lse) in lse.chunks_mut(QUERIES).enumerate() {
            let reciprocals = forward_tile(call, operands, visible, head, tile * QUERIES, tiles, lse);
            for (query, reciprocal) in reciprocals.into_iter().enumerate().take(lse.len()) {
                // SAFETY: as above, for `o`.
                let row = unsafe { heads.row(head, tile * QUERIES + query) };
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
    call: &AttentionCall,
    operands: &Operands<'_>,
    visible: &Visible,
    head: [usize; 2],
    start: usize,
    tiles: &mut Tiles,
    lse: &mut [f32],
) -> [f32; QUERIES] {
    let (count, width) = (lse.len(), padded(lse.len()));
    let scaled = &mut tiles.queries[..call.head_dim * width];
    let q = Layout::of_queries(call).head(operands.q, head, start, count);
    copy_to_columns(scaled, q, width, call.scale);
    let keys = scores(
        call,
        operands,
        visible,
        head,
        start..start + count,
        scaled,
        &mut tiles.scores,
    );
    let scores = &mut tiles.scores[..keys * width];
    let (mut sums, mut reciprocals) = ([0.0; QUERIES], [0.0; QUERIES]);
    softmax(width, scores, &mut sums, &mut reciprocals);
    lse.copy_from_slice(&sums[..count]);
    let (result, kv_head) = (&mut tiles.result[..call.head_dim * width], kv_head(call, head));
    let (mut rest, mut write) = (&*scores, Write::Replace);
    for run in visible.runs(head[0], start) {
        let (these, others) = rest.split_at(run.count * width);
        let v =
            Layout::of_keys(call, run.part).head(operands.parts[run.part][1], kv_head, run.start, run.count);
        multiply_narrow(result, v.transposed(), these, width, write);
        (rest, write) = (others, Write::Add);
    }
    if write == Write::Replace {
        result.fill(0.0);
    }
    reciprocals
}

/// The head of keys and values that a head of queries reads, both with the sample.
pub(super) fn kv_head(call: &AttentionCall, [batch, head]: [usize; 2]) -> [usize; 2] {
    [batch, head / (call.heads / call.kv_heads)]
}

/// Scores `[keys that the tile sees, width]` of the queries `range`, given times the scale as `[D, width]`; minus infinity
/// where the mask forbids. Gives the number of keys.
pub(super) fn scores(
    call: &AttentionCall,
    operands: &Operands<'_>,
    visible: &Visible,
    head: [usize; 2],
    range: std::ops::Range<usize>,
    scaled: &[f32],
    into: &mut [f32],
) -> usize {
    let (width, kv_head) = (padded(range.len()), kv_head(call, head));
    let mut keys = 0;
    for run in visible.runs(head[0], range.start) {
        let k =
            Layout::of_keys(call, run.part).head(operands.parts[run.part][0], kv_head, run.start, run.count);
        let scores = &mut into[keys * width..][..run.count * width];
        multiply_narrow(scores, k, scaled, width, Write::Replace);
        if let Some(bias) = operands.bias {
            add_bias(call, bias, head[1], run, range.clone(), scores);
        }
        visible.hide(run, head[0], range.start, range.len(), scores);
        keys += run.count;
    }
    keys
}

/// Adds the bias of `head` to the scores `[keys of the run, width]` of the queries `range`.
fn add_bias(
    call: &AttentionCall,
    bias: &[f32],
    head: usize,
    run: &Run,
    range: std::ops::Range<usize>,
    scores: &mut [f32],
) {
    let distances = call.queries + call.key_count() - 1;
    let of_head = &bias[head * distances..][..distances];
    let (width, count) = (padded(range.len()), range.len());
    for (key, row) in scores.chunks_exact_mut(width).enumerate() {
        // Where the first query finds its value; each query after it, one place before.
        let first = run.first + key + call.queries - 1 - range.start;
        let values = of_head[first + 1 - count..=first].iter().rev();
        row.iter_mut()
            .zip(values)
            .for_each(|(score, bias)| *score += bias);
    }
}
