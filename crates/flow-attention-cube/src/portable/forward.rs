//! The portable forward kernel.

use super::arguments::{PortableInputs, PortableProblem};
use super::block::*;
use super::stream::{QueryBlock, kv_head, load_streamed_channels, load_streamed_rows, query_block};
use super::tiles::{CHUNK, ChannelTile, ROWS, Tiles};
use cubecl::prelude::*;

/// Below every score, yet finite: shader languages promise nothing about infinities.
pub(super) const LOWEST: f32 = -3.0e38;

/// Scales the scores of this thread, and puts the largest of each row, so far and of these, where all can read them.
#[cube]
fn scale_scores(
    scores: &mut Array<f32>,
    largest: &Array<f32>,
    words: &Array<u32>,
    partial: &mut Shared<[f32]>,
    block: &QueryBlock,
    scale: f32,
    #[comptime] tiles: Tiles,
) {
    let owned = comptime!(tiles.owned_columns());
    #[unroll]
    for r in 0..4usize {
        let mut best = largest[r];
        #[unroll]
        for j in 0..owned {
            let score = scores[comptime!(r * owned + j)] * scale;
            scores[comptime!(r * owned + j)] = score;
            best = max(best, select(allowed(words[r], j), score, LOWEST));
        }
        partial[(block.y + comptime!(16 * r)) * comptime!(CHUNK + 1) + block.x] = best;
    }
}

/// Rescales the sum and the output of row `r` to its largest score `now`.
#[cube]
fn rescale_row(
    largest: &mut Array<f32>,
    sum: &mut Array<f32>,
    output: &mut Array<f32>,
    now: f32,
    #[comptime] r: usize,
    #[comptime] tiles: Tiles,
) {
    let owned_channels = comptime!(tiles.owned_channels());
    let keep = (largest[r] - now).exp();
    largest[r] = now;
    sum[r] *= keep;
    #[unroll]
    for j in 0..owned_channels {
        output[comptime!(r * owned_channels + j)] *= keep;
    }
}

/// Makes weights of the scores of row `r`, whose largest is `now`, and sums them up.
#[cube]
fn weight_row(
    scores: &mut Array<f32>,
    sum: &mut Array<f32>,
    words: &Array<u32>,
    now: f32,
    #[comptime] r: usize,
    #[comptime] tiles: Tiles,
) {
    let owned = comptime!(tiles.owned_columns());
    #[unroll]
    for j in 0..owned {
        let weight = (scores[comptime!(r * owned + j)] - now).exp();
        let weight = select(allowed(words[r], j), weight, 0.0f32);
        scores[comptime!(r * owned + j)] = weight;
        sum[r] += weight;
    }
}

/// The scales of the output of this thread's rows, from the sums that all have put into `partial`; and writes the log-sum-exp.
#[cube]
fn finish_rows(
    row_scales: &mut Array<f32>,
    lse: &mut [f32],
    largest: &Array<f32>,
    partial: &Shared<[f32]>,
    block: &QueryBlock,
    problem: &PortableProblem,
) {
    #[unroll]
    for r in 0..4usize {
        let total = combine(partial, block.y + comptime!(16 * r), problem.chunk, false);
        let row = block.first + block.y + comptime!(16 * r);
        row_scales[r] = select(total > 0.0f32, 1.0f32 / total, 0.0f32);
        if block.x == 0 && row < problem.queries {
            // Shader languages have no literal for infinity: it is chosen among bits.
            let bits = u32::reinterpret(largest[r] + total.ln());
            let bits = select(total > 0.0f32, bits, comptime!(f32::INFINITY.to_bits()));
            lse[(block.batch * CUBE_COUNT_Y as usize + block.head) * problem.lse_rows + row] =
                f32::reinterpret(bits);
        }
    }
}

/// `o = softmax(q kᵀ scale) v` and the log-sum-exp of each row, plus infinity (and `o = 0`) where no key is allowed.
/// One block for 64 queries of a head. `mask` holds offsets, entries and partial masks (`flow_attention_mask::MaskTiles`).
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn portable_forward<F: Float>(
    inputs: &PortableInputs<F>,
    o: &mut Tensor<F>,
    lse: &mut [f32],
    mask: &[u32],
    problem: &PortableProblem,
    #[comptime] tiles: Tiles,
) {
    let owned = comptime!(tiles.owned_columns());
    let owned_channels = comptime!(tiles.owned_channels());
    let to_rows = comptime!(ChannelTile::rows(tiles));
    let mut stage: Shared<[f32]> = Shared::new_slice(comptime!(tiles.stage_elements()));
    let mut probabilities: Shared<[f32]> = Shared::new_slice(comptime!(tiles.scores_elements()));
    let mut partial: Shared<[f32]> = Shared::new_slice(comptime!(ROWS * (CHUNK + 1)));

    let block = query_block();
    let (x, y, chunk) = (block.x, block.y, problem.chunk);
    let queries = HeadRows {
        base: block.batch * inputs.q.stride(0) + block.head * inputs.q.stride(1),
        first: block.first,
        end: problem.queries,
    };
    let kv = kv_head::<F>(inputs, problem, &block, tiles);

    let mut largest = Array::<f32>::new(4usize);
    let mut sum = Array::<f32>::new(4usize);
    #[unroll]
    for r in 0..4usize {
        largest[r] = LOWEST;
        sum[r] = 0.0f32;
    }
    let mut output = Array::<f32>::new(comptime!(4 * owned_channels));
    clear(&mut output, comptime!(4 * owned_channels));
    let mut scores = Array::<f32>::new(comptime!(4 * owned));
    let mut words = Array::<u32>::new(4usize);

    let (begin, end) = list_range(mask, block.batch, problem.list.batch_stride);
    for entry in begin..end {
        let tile = mask[problem.list.entries_at + 2 * entry] as usize;
        let number = mask[problem.list.entries_at + 2 * entry + 1];
        if number != 1 {
            clear(&mut scores, comptime!(4 * owned));
            for part in 0..comptime!(tiles.channels()) / chunk {
                let channel = part * chunk;
                load_channels(inputs.q, &queries, channel, &mut stage, chunk, to_rows);
                load_streamed_channels(
                    inputs.k, inputs.k2, &kv.k, tile, channel, &mut stage, chunk, tiles,
                );
                sync_cube();
                add_products(&stage, &mut scores, x, y, chunk, tiles);
                sync_cube();
            }
            partial_mask(mask, problem.list.patterns_at, number, &mut words, x, y);
            scale_scores(
                &mut scores,
                &largest,
                &words,
                &mut partial,
                &block,
                problem.scale,
                tiles,
            );
            sync_cube();
            #[unroll]
            for r in 0..4usize {
                let now = combine(&partial, y + comptime!(16 * r), chunk, true);
                rescale_row(&mut largest, &mut sum, &mut output, now, r, tiles);
                weight_row(&mut scores, &mut sum, &words, now, r, tiles);
            }
            share(&scores, &mut probabilities, x, y, tiles);
            for part in 0..comptime!(tiles.columns) / chunk {
                let column = part * chunk;
                load_streamed_rows(inputs.v, inputs.v2, &kv.v, tile, column, &mut stage, chunk, tiles);
                sync_cube();
                add_weighted(&probabilities, &stage, &mut output, column, x, y, chunk, tiles);
                sync_cube();
            }
        }
    }

    #[unroll]
    for r in 0..4usize {
        partial[(y + comptime!(16 * r)) * comptime!(CHUNK + 1) + x] = sum[r];
    }
    sync_cube();
    let mut row_scales = Array::<f32>::new(4usize);
    finish_rows(&mut row_scales, lse, &largest, &partial, &block, problem);
    let rows = HeadRows {
        base: block.batch * o.stride(0) + block.head * o.stride(1),
        first: block.first,
        end: problem.queries,
    };
    store(o, &rows, &output, &row_scales, x, y, tiles);
}
