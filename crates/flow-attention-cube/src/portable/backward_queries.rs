//! The portable backward kernel for queries.

use super::arguments::{PortableProblem, PortableQueriesInputs};
use super::block::*;
use super::stream::{QueryBlock, kv_head, load_streamed_channels, load_streamed_rows, query_block};
use super::tiles::{CHUNK, ChannelTile, ROWS, Tiles};
use cubecl::prelude::*;

/// Puts this thread's part of the sums of `o · do` of its four rows where all can read them.
#[cube]
fn share_deltas<F: Float>(
    inputs: &PortableQueriesInputs<F>,
    o_rows: &HeadRows,
    d_o_base: usize,
    partial: &mut Shared<[f32]>,
    block: &QueryBlock,
    #[comptime] tiles: Tiles,
) {
    let owned_channels = comptime!(tiles.owned_channels());
    let head_dim = comptime!(tiles.head_dim);
    #[unroll]
    for r in 0..4usize {
        let row = o_rows.first + block.y + comptime!(16 * r);
        let mut sum = 0.0f32;
        #[unroll]
        for j in 0..owned_channels {
            let channel = block.x + comptime!(16 * j);
            let a = read_or_zero(inputs.o, o_rows.base, row, o_rows.end, channel, head_dim);
            sum += a * read_or_zero(inputs.d_o, d_o_base, row, o_rows.end, channel, head_dim);
        }
        partial[(block.y + comptime!(16 * r)) * comptime!(CHUNK + 1) + block.x] = sum;
    }
}

/// The log-sum-exp and `delta` of this thread's four rows, of the head whose statistics begin at `statistics`; and writes `delta`.
#[cube]
fn row_statistics(
    row_lse: &mut Array<f32>,
    row_delta: &mut Array<f32>,
    lse: &[f32],
    delta: &mut [f32],
    partial: &Shared<[f32]>,
    statistics: usize,
    block: &QueryBlock,
    problem: &PortableProblem,
) {
    #[unroll]
    for r in 0..4usize {
        let row = block.first + block.y + comptime!(16 * r);
        row_delta[r] = combine(partial, block.y + comptime!(16 * r), problem.chunk, false);
        row_lse[r] = lse[statistics + select(row < problem.queries, row, 0usize)];
        if block.x == 0 && row < problem.queries {
            delta[statistics + row] = row_delta[r];
        }
    }
}

/// Turns this thread's scores into their gradients, from the `products` of values and gradients of the output.
#[cube]
fn score_gradients(
    scores: &mut Array<f32>,
    products: &Array<f32>,
    row_lse: &Array<f32>,
    row_delta: &Array<f32>,
    words: &Array<u32>,
    scale: f32,
    #[comptime] tiles: Tiles,
) {
    let owned = comptime!(tiles.owned_columns());
    #[unroll]
    for r in 0..4usize {
        #[unroll]
        for j in 0..owned {
            let at = comptime!(r * owned + j);
            let weight = (scores[at] * scale - row_lse[r]).exp();
            let gradient = weight * (products[at] - row_delta[r]);
            scores[at] = select(allowed(words[r], j), gradient, 0.0f32);
        }
    }
}

/// `dq`, and `delta`, the sum of `o · do` over the channels of each row, which the kernel for keys needs. One block for
/// 64 queries of a head; see [`portable_forward`](super::forward::portable_forward) for the operands.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn portable_backward_queries<F: Float>(
    inputs: &PortableQueriesInputs<F>,
    dq: &mut Tensor<F>,
    lse: &[f32],
    delta: &mut [f32],
    mask: &[u32],
    problem: &PortableProblem,
    #[comptime] tiles: Tiles,
) {
    let owned = comptime!(tiles.owned_columns());
    let owned_channels = comptime!(tiles.owned_channels());
    let to_rows = comptime!(ChannelTile::rows(tiles));
    let mut stage: Shared<[f32]> = Shared::new_slice(comptime!(tiles.stage_elements()));
    let mut gradients: Shared<[f32]> = Shared::new_slice(comptime!(tiles.scores_elements()));
    let mut partial: Shared<[f32]> = Shared::new_slice(comptime!(ROWS * (CHUNK + 1)));

    let qkv = &inputs.attention;
    let block = query_block();
    let (x, y, chunk) = (block.x, block.y, problem.chunk);
    let q_base = block.batch * qkv.q.stride(0) + block.head * qkv.q.stride(1);
    let o_base = block.batch * inputs.o.stride(0) + block.head * inputs.o.stride(1);
    let d_o_base = block.batch * inputs.d_o.stride(0) + block.head * inputs.d_o.stride(1);
    let kv = kv_head::<F>(qkv, problem, &block, tiles);
    let statistics = (block.batch * CUBE_COUNT_Y as usize + block.head) * problem.lse_rows;
    let q_rows = HeadRows {
        base: q_base,
        first: block.first,
        end: problem.queries,
    };
    let o_rows = HeadRows {
        base: o_base,
        first: block.first,
        end: problem.queries,
    };
    let d_o_rows = HeadRows {
        base: d_o_base,
        first: block.first,
        end: problem.queries,
    };

    share_deltas::<F>(inputs, &o_rows, d_o_base, &mut partial, &block, tiles);
    sync_cube();
    let mut row_lse = Array::<f32>::new(4usize);
    let mut row_delta = Array::<f32>::new(4usize);
    row_statistics(
        &mut row_lse,
        &mut row_delta,
        lse,
        delta,
        &partial,
        statistics,
        &block,
        problem,
    );

    let mut sums = Array::<f32>::new(comptime!(4 * owned_channels));
    clear(&mut sums, comptime!(4 * owned_channels));
    let mut scores = Array::<f32>::new(comptime!(4 * owned));
    let mut products = Array::<f32>::new(comptime!(4 * owned));
    let mut words = Array::<u32>::new(4usize);

    let (begin, end) = list_range(mask, block.batch, problem.list.batch_stride);
    for entry in begin..end {
        let tile = mask[problem.list.entries_at + 2 * entry] as usize;
        let number = mask[problem.list.entries_at + 2 * entry + 1];
        if number != 1 {
            clear(&mut scores, comptime!(4 * owned));
            clear(&mut products, comptime!(4 * owned));
            for part in 0..comptime!(tiles.channels()) / chunk {
                let channel = part * chunk;
                load_channels(qkv.q, &q_rows, channel, &mut stage, chunk, to_rows);
                load_streamed_channels(qkv.k, qkv.k2, &kv.k, tile, channel, &mut stage, chunk, tiles);
                sync_cube();
                add_products(&stage, &mut scores, x, y, chunk, tiles);
                sync_cube();
                load_channels(inputs.d_o, &d_o_rows, channel, &mut stage, chunk, to_rows);
                load_streamed_channels(qkv.v, qkv.v2, &kv.v, tile, channel, &mut stage, chunk, tiles);
                sync_cube();
                add_products(&stage, &mut products, x, y, chunk, tiles);
                sync_cube();
            }
            partial_mask(mask, problem.list.patterns_at, number, &mut words, x, y);
            score_gradients(
                &mut scores,
                &products,
                &row_lse,
                &row_delta,
                &words,
                problem.scale,
                tiles,
            );
            share(&scores, &mut gradients, x, y, tiles);
            for part in 0..comptime!(tiles.columns) / chunk {
                let column = part * chunk;
                load_streamed_rows(qkv.k, qkv.k2, &kv.k, tile, column, &mut stage, chunk, tiles);
                sync_cube();
                add_weighted(&gradients, &stage, &mut sums, column, x, y, chunk, tiles);
                sync_cube();
            }
        }
    }

    let mut row_scales = Array::<f32>::new(4usize);
    set_all(&mut row_scales, problem.scale);
    let dq_base = block.batch * dq.stride(0) + block.head * dq.stride(1);
    let dq_rows = HeadRows {
        base: dq_base,
        first: block.first,
        end: problem.queries,
    };
    store(dq, &dq_rows, &sums, &row_scales, x, y, tiles);
}
