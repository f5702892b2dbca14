//! A test kernel: online softmax over streamed tiles, for one warp with scores from memory. Tests execute it without a GPU.

use super::ForwardTiles;
use super::online_softmax::{OnlineSoftmax, RowStatistics, softmax_first_tile, softmax_tile};
use cubecl::prelude::*;
use flow_cube::register::{shared_address, unpack_high, unpack_low};

/// Values that a thread leaves: for each of its two rows the row maximum, the sum of weights, and two sums over values, which are its
/// fourth of the row's.
pub const RESULTS: usize = 8;

/// Weights times values, summed as a product would: the first values are all 1, the second 1 for even keys and -1/2 for odd ones.
#[cube]
fn add_values<P: Size, O: Size>(
    sums: Vector<f32, O>,
    weights: Vector<u32, P>,
    #[comptime] tiles: ForwardTiles,
) -> Vector<f32, O> {
    let mut out = sums;
    #[unroll]
    for i in 0..comptime!(tiles.keys / 4) {
        let even = unpack_low(weights.extract(i), comptime!(tiles.operand_type));
        let odd = unpack_high(weights.extract(i), comptime!(tiles.operand_type));
        let first = comptime!(i % 2 * 2);
        let second = comptime!(i % 2 * 2 + 1);
        out.insert(first, out.extract(first) + (even + odd));
        out.insert(second, out.extract(second) + (even - odd * 0.5f32));
    }
    out
}

/// What a thread holds of tile `at`.
#[cube]
fn scores_of<S: Size>(scores: &[f32], at: u32, #[comptime] tiles: ForwardTiles) -> Vector<f32, S> {
    let held = comptime!((tiles.keys / 2) as u32);
    let mut own = Vector::<f32, S>::new(0.0f32);
    #[unroll]
    for i in 0..comptime!(tiles.keys / 2) {
        let from = (at * 32 + UNIT_POS) * held + comptime!(i as u32);
        own.insert(i, scores[from as usize]);
    }
    own
}

/// Writes what this thread's rows came to as the results of lane `lane`.
#[cube]
fn store_output<O: Size>(results: &mut [f32], lane: u32, statistics: &RowStatistics, sums: Vector<f32, O>) {
    let to = lane as usize * RESULTS;
    results[to] = statistics.row_max_0;
    results[to + 1] = statistics.sum_0;
    results[to + 2] = sums.extract(0usize);
    results[to + 3] = sums.extract(1usize);
    results[to + 4] = statistics.row_max_1;
    results[to + 5] = statistics.sum_1;
    results[to + 6] = sums.extract(2usize);
    results[to + 7] = sums.extract(3usize);
}

/// Goes through `tile_count` tiles as the forward kernels do. `scores` has for each tile and thread what the thread holds of it,
/// `results` gets [`RESULTS`] values for each thread.
///
/// If `before` is not 0, so many tiles of other rows come before, whose results stand behind the others, and the rows begin as in persistent blocks
/// ([`forward_persistent`](super::forward_persistent)): rows before must not overflow.
#[cube(launch_unchecked)]
pub fn softmax_test_kernel<S: Size, P: Size, O: Size>(
    scores: &[f32],
    results: &mut [f32],
    tile_count: u32,
    before: u32,
    scale_log2: f32,
    #[comptime] tiles: ForwardTiles,
    #[define(S, P, O)] _vectors: [usize; 3],
) {
    let overflowed: Shared<[u32]> = Shared::new_slice(32usize);
    let overflow_base = shared_address::<u32>(&overflowed);
    let mut softmax = OnlineSoftmax::new(overflow_base + UNIT_POS * 4);
    let mut sums = Vector::<f32, O>::new(0.0f32);
    let mut again = true.runtime();
    let mut start = 0u32.runtime();
    if before > 0 {
        for at in 0..before {
            let own = scores_of::<S>(scores, at, tiles);
            if at == 0 {
                let weights = softmax_first_tile::<S, P>(&mut softmax, own, scale_log2, tiles);
                sums = add_values::<P, O>(sums, weights, tiles);
            } else {
                let (weights, scaled) =
                    softmax_tile::<S, P, O>(&mut softmax, own, sums, false, scale_log2, tiles);
                sums = add_values::<P, O>(scaled, weights, tiles);
            }
        }
        let statistics = RowStatistics::of(&softmax);
        softmax.clear_overflow();
        softmax.reset();
        let own = scores_of::<S>(scores, before, tiles);
        let (weights, same) =
            softmax_tile::<S, P, O>(&mut softmax, own, sums, true.runtime(), scale_log2, tiles);
        softmax.update_limits();
        store_output::<O>(results, 32 + UNIT_POS, &statistics, same);
        sums = add_values::<P, O>(Vector::<f32, O>::new(0.0f32), weights, tiles);
        start = 1u32.runtime();
    }
    while again {
        for at in start..tile_count {
            let own = scores_of::<S>(scores, before + at, tiles);
            if at == 0 {
                let weights = softmax_first_tile::<S, P>(&mut softmax, own, scale_log2, tiles);
                sums = add_values::<P, O>(Vector::<f32, O>::new(0.0f32), weights, tiles);
            } else {
                let (weights, scaled) =
                    softmax_tile::<S, P, O>(&mut softmax, own, sums, false, scale_log2, tiles);
                sums = add_values::<P, O>(scaled, weights, tiles);
            }
        }
        again = plane_any(softmax.overflowed);
        start = 0u32.runtime();
    }
    let statistics = RowStatistics::of(&softmax);
    store_output::<O>(results, UNIT_POS, &statistics, sums);
}
