//! What comes before and after the [joint kernel](super::joint): sums over channels of `dO ∘ O` and counters at zero, then
//! the gradient of queries from its sums.
//!
//! The sums of a tile of 64 queries are `[warpgroups][chunks of 8 channels][128 threads][4]` in f32, as accumulators of
//! `wgmma` hold them, so that a warpgroup's share is one piece.

use super::joint::Four;
use crate::delta::{Eight, row_product};
use cubecl::prelude::*;
use flow_cube::register::pack;
use flow_cube::wgmma::Factor;

/// Queries of a tile.
const TILE: usize = 64;

/// Rows of a block of [`begin`], two threads each.
pub(super) const BEGIN_ROWS: usize = 128;

/// Threads of a block of either kernel.
pub(super) const THREADS: u32 = 256;

/// `delta [B, H, lse_rows]`, and zeros in the `count` counters. For a grid of (`lse_rows / BEGIN_ROWS`, heads, samples). `o_rows` and `do_rows` are in units of eight values, as their strides are.
#[cube(launch_unchecked)]
pub fn begin(
    o_rows: &[Vector<u32, Const<4>>],
    do_rows: &[Vector<u32, Const<4>>],
    delta: &mut [f32],
    counters: &mut [u32],
    o_batch: u32,
    o_head: u32,
    o_row: u32,
    do_batch: u32,
    do_head: u32,
    do_row: u32,
    queries: u32,
    count: u32,
    #[comptime] head_dim: usize,
    #[comptime] element: Factor,
) {
    let (head, batch) = (CUBE_POS_Y, CUBE_POS_Z);
    let block = (batch * CUBE_COUNT_Y + head) * CUBE_COUNT_X + CUBE_POS_X;
    let query = CUBE_POS_X * comptime!(BEGIN_ROWS as u32) + UNIT_POS / 2;
    let sum = row_product(
        o_rows,
        do_rows,
        batch * o_batch + head * o_head + query * o_row,
        batch * do_batch + head * do_head + query * do_row,
        query < queries,
        head_dim,
        element,
    );
    if UNIT_POS.is_multiple_of(2) {
        delta[(block * comptime!(BEGIN_ROWS as u32) + UNIT_POS / 2) as usize] = sum;
    }
    let all = CUBE_COUNT_X * CUBE_COUNT_Y * CUBE_COUNT_Z * comptime!(THREADS);
    let mut at = block * comptime!(THREADS) + UNIT_POS;
    while at < count {
        counters[at as usize] = 0u32;
        at += all;
    }
}

/// `dq`, `scale` times its sums. A thread makes eight channels of two rows. For a grid of (`blocks_of_finish`, heads,
/// samples). `dq_rows` is in units of eight values, as its strides are.
#[cube(launch_unchecked)]
pub fn finish(
    sums: &[Vector<f32, Const<4>>],
    dq_rows: &mut [Vector<u32, Const<4>>],
    dq_batch: u32,
    dq_head: u32,
    dq_row: u32,
    queries: u32,
    lse_rows: u32,
    scale: f32,
    #[comptime] head_dim: usize,
    #[comptime] element: Factor,
) {
    let (head, batch) = (CUBE_POS_Y, CUBE_POS_Z);
    let chunks = comptime!((head_dim / 8) as u32);
    let unit = CUBE_POS_X * comptime!(THREADS) + UNIT_POS;
    let chunk = unit % chunks;
    let pair = unit / chunks;
    let tile = pair / 32;
    let pair = pair % 32;
    let query = tile * comptime!(TILE as u32) + pair / 8 * 16 + pair % 8;
    let slots = lse_rows / comptime!(TILE as u32);
    let from = ((((batch * CUBE_COUNT_Y + head) * slots + tile) * chunks + chunk) * 128 + pair * 4) as usize;
    if query < queries {
        let to = batch * dq_batch + head * dq_head + query * dq_row + chunk;
        let mut first = Eight::new(0u32);
        let mut second = Eight::new(0u32);
        #[unroll]
        for i in 0..4usize {
            let four: Four = sums[from + i];
            first.insert(
                i,
                pack(
                    four.extract(0usize) * scale,
                    four.extract(1usize) * scale,
                    element,
                ),
            );
            second.insert(
                i,
                pack(
                    four.extract(2usize) * scale,
                    four.extract(3usize) * scale,
                    element,
                ),
            );
        }
        dq_rows[to as usize] = first;
        if query + 8 < queries {
            dq_rows[(to + 8 * dq_row) as usize] = second;
        }
    }
}

/// Blocks of [`finish`] for a head of `lse_rows` rows of `head_dim` channels.
pub(super) fn blocks_of_finish(lse_rows: usize, head_dim: usize) -> usize {
    lse_rows / 2 * (head_dim / 8) / THREADS as usize
}
