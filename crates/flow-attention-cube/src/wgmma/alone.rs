//! Softmax over tiles that pass, alone: one warp, scores from memory. For tests, which execute it without a GPU.

use super::ForwardTiles;
use super::online_softmax::{OnlineSoftmax, Totals, weigh, weigh_first};
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::generic_to_shared;
use flow_cube::register::{unpack_high, unpack_low};

/// Values that a thread leaves: for each of its two rows the shift, the sum of weights, and two sums over values, which are its
/// fourth of the row's.
pub const RESULTS: usize = 8;

/// Weights times values, added up as a product would: the first values are all 1, the second 1 for even keys and -1/2 for odd ones.
#[cube]
fn add_values<P: Size, O: Size>(
    sums: Vector<f32, O>,
    weights: Vector<u32, P>,
    #[comptime] tiles: ForwardTiles,
) -> Vector<f32, O> {
    let mut out = sums;
    #[unroll]
    for i in 0..comptime!(tiles.keys / 4) {
        let even = unpack_low(weights.extract(i), comptime!(tiles.factor));
        let odd = unpack_high(weights.extract(i), comptime!(tiles.factor));
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
fn leave<O: Size>(results: &mut [f32], lane: u32, totals: &Totals, sums: Vector<f32, O>) {
    let to = lane as usize * RESULTS;
    results[to] = totals.shift_0;
    results[to + 1] = totals.sum_0;
    results[to + 2] = sums.extract(0usize);
    results[to + 3] = sums.extract(1usize);
    results[to + 4] = totals.shift_1;
    results[to + 5] = totals.sum_1;
    results[to + 6] = sums.extract(2usize);
    results[to + 7] = sums.extract(3usize);
}

/// Goes through `tile_count` tiles as the forward kernels do. `scores` has for each tile and thread what the thread holds of it,
/// `results` gets [`RESULTS`] values for each thread.
///
/// If `before` is not 0, so many tiles of other rows come before, whose results stand behind the others, and the rows begin as in blocks that stay
/// ([`staying`](super::staying)): rows before must not be lost.
#[cube(launch_unchecked)]
pub fn softmax_alone<S: Size, P: Size, O: Size>(
    scores: &[f32],
    results: &mut [f32],
    tile_count: u32,
    before: u32,
    factor: f32,
    #[comptime] tiles: ForwardTiles,
    #[define(S, P, O)] _vectors: [usize; 3],
) {
    let lost: Shared<[u32]> = Shared::new_slice(32usize);
    // SAFETY: the address of the block's own shared memory; by the sizes of the tiles, what is read and
    // written there stays within it.
    let lost_base = generic_to_shared::<u32>(unsafe { lost.as_ptr_unchecked() });
    let mut softmax = OnlineSoftmax::new(lost_base + UNIT_POS * 4);
    let mut sums = Vector::<f32, O>::new(0.0f32);
    let mut again = true.runtime();
    let mut start = 0u32.runtime();
    if before > 0 {
        for at in 0..before {
            let own = scores_of::<S>(scores, at, tiles);
            if at == 0 {
                let weights = weigh_first::<S, P>(&mut softmax, own, factor, tiles);
                sums = add_values::<P, O>(sums, weights, tiles);
            } else {
                let (weights, scaled) = weigh::<S, P, O>(&mut softmax, own, sums, false, factor, tiles);
                sums = add_values::<P, O>(scaled, weights, tiles);
            }
        }
        let totals = Totals::of(&softmax);
        softmax.forget();
        softmax.renew();
        let own = scores_of::<S>(scores, before, tiles);
        let (weights, same) = weigh::<S, P, O>(&mut softmax, own, sums, true.runtime(), factor, tiles);
        softmax.settle();
        leave::<O>(results, 32 + UNIT_POS, &totals, same);
        sums = add_values::<P, O>(Vector::<f32, O>::new(0.0f32), weights, tiles);
        start = 1u32.runtime();
    }
    while again {
        for at in start..tile_count {
            let own = scores_of::<S>(scores, before + at, tiles);
            if at == 0 {
                let weights = weigh_first::<S, P>(&mut softmax, own, factor, tiles);
                sums = add_values::<P, O>(Vector::<f32, O>::new(0.0f32), weights, tiles);
            } else {
                let (weights, scaled) = weigh::<S, P, O>(&mut softmax, own, sums, false, factor, tiles);
                sums = add_values::<P, O>(scaled, weights, tiles);
            }
        }
        again = plane_any(softmax.lost);
        start = 0u32.runtime();
    }
    let totals = Totals::of(&softmax);
    leave::<O>(results, UNIT_POS, &totals, sums);
}
