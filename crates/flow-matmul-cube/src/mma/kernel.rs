//! The kernel: a block for a tile of 128 x 128, steps of 64 summands by `cp.async` through two or three stages.

use super::arguments::{Eight, Inputs, Outputs, Sizes};
use super::block_tile::{BlockTile, Warp, this_tile, this_warp};
use super::epilogue::store_tile;
use super::product::multiply_add;
use super::tiles::{SIDE, THREADS, Tiles};
use crate::epilogue::CompiledEpilogue;
use crate::schedule::STEP;
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::generic_to_shared;
use flow_cube::cp_async::{commit, copy_16, wait};

/// Starts copying a tile of 128 rows (or columns of the result) from `first` on and 64 summands from `summand` on to byte
/// address `to`. Zeros where there is nothing. `stride` is in units of eight values.
#[cube]
fn copy_tile(
    source: &[Eight],
    stride: u32,
    first: u32,
    rows: u32,
    summand: u32,
    summands: u32,
    to: u32,
    #[comptime] transposed: bool,
) {
    let chunk = UNIT_POS % 8;
    #[unroll]
    for i in 0..comptime!(SIDE * STEP / 8 / THREADS) {
        // Rows of 64 values: those of one panel of 128, or of two panels of 64 summands.
        let below = UNIT_POS / 8 + comptime!((i * THREADS / 8) as u32);
        let lane_to = to + below * 128 + (chunk ^ (below % 8)) * 16;
        let (line, lines, column, columns) = if comptime!(transposed) {
            (
                summand + below % 64,
                summands,
                first + comptime!((i * THREADS / 8 / 64 * 64) as u32) + chunk * 8,
                rows,
            )
        } else {
            (first + below, rows, summand + chunk * 8, summands)
        };
        let inside = line < lines && column < columns;
        let count = select(inside, min(columns - select(inside, column, 0u32), 8u32), 0u32);
        let at = select(
            inside,
            line as usize * stride as usize + (column / 8) as usize,
            0usize,
        );
        copy_16::<Eight>(
            lane_to,
            // SAFETY: what is outside of the matrix is read at 0, no byte of it; the rest is within its rows.
            unsafe { source[at..at + 1].as_ptr_unchecked() },
            count * 2,
        );
    }
}

/// Starts copying the factors of step `at` to the stage at byte address `to`.
#[cube]
fn copy_step(inputs: &Inputs, sizes: &Sizes, tile: &BlockTile, at: u32, to: u32, #[comptime] tiles: Tiles) {
    let tile_bytes = comptime!(Tiles::TILE_BYTES as u32);
    let (a_transposed, b_transposed) = comptime!((tiles.a_transposed(), tiles.b_transposed()));
    if at < tile.first_steps {
        let summand = at * comptime!(STEP as u32);
        copy_tile(
            &inputs.a,
            sizes.a_stride,
            tile.row,
            tile.row_end,
            tile.a_summand + summand,
            tile.a_summands,
            to,
            a_transposed,
        );
        copy_tile(
            &inputs.b,
            sizes.b_stride,
            tile.b_first,
            tile.b_end,
            tile.b_summand + summand,
            tile.b_summands,
            to + tile_bytes,
            b_transposed,
        );
    } else {
        if comptime!(tiles.low_rank) {
            let summand = (at - tile.first_steps) * comptime!(STEP as u32);
            copy_tile(
                &inputs.low_rank_a,
                sizes.low_rank_a_stride,
                tile.row,
                sizes.m,
                summand,
                sizes.rank,
                to,
                a_transposed,
            );
            copy_tile(
                &inputs.low_rank_b,
                sizes.low_rank_b_stride,
                tile.column,
                sizes.n,
                summand,
                sizes.rank,
                to + tile_bytes,
                b_transposed,
            );
        }
    }
}

/// The sums of this warp over the block's steps. `base` is the byte address of the first stage.
#[cube]
fn sum_up<N: Size>(
    inputs: &Inputs,
    sizes: &Sizes,
    tile: &BlockTile,
    warp: &Warp,
    base: u32,
    #[comptime] tiles: Tiles,
) -> Vector<f32, N> {
    let stages = comptime!(tiles.stages);
    let tile_bytes = comptime!(Tiles::TILE_BYTES as u32);
    let mut sums = Vector::<f32, N>::new(0.0f32);
    for at in tile.begin..tile.end + comptime!(stages as u32 - 1) {
        // The copy that this iteration starts is of step `at`, the product of the step before the copies under way.
        if at >= tile.begin + comptime!(stages as u32 - 1) {
            wait(comptime!(stages - 2));
            sync_cube();
        }
        if at < tile.end {
            let to = base + (at - tile.begin) % comptime!(stages as u32) * (2 * tile_bytes);
            copy_step(inputs, sizes, tile, at, to, tiles);
        }
        commit();
        if at >= tile.begin + comptime!(stages as u32 - 1) {
            let step = at - tile.begin - comptime!(stages as u32 - 1);
            let from = base + step % comptime!(stages as u32) * (2 * tile_bytes);
            sums = multiply_add::<N>(
                sums,
                from + warp.a_lane,
                from + tile_bytes + warp.b_lane,
                comptime!(tiles.product()),
            );
        }
    }
    sums
}

/// `D = epilogue(op(A) op(B) + op(A₂) op(B₂) + bias)`, or partial tiles of splits of the summands. A block for a tile, and
/// for split `CUBE_POS_Y` of its steps. `offsets` says where the rows of groups begin; in weight gradients a group is
/// `CUBE_POS_Y`.
#[cube(launch_unchecked)]
pub fn mma_matmul<N: Size>(
    inputs: &Inputs,
    outputs: &mut Outputs,
    offsets: &[u32],
    sizes: &Sizes,
    #[comptime] tiles: Tiles,
    #[comptime] epilogue: CompiledEpilogue,
    #[define(N)] _vector: usize,
) {
    let stage_memory: Shared<[u32]> =
        Shared::new_aligned_slice(comptime!(tiles.shared_bytes() / 4), 1024usize);
    // SAFETY: the address of the block's own shared memory; by the sizes of the tiles, what is read and
    // written there stays within it.
    let base = generic_to_shared::<u32>(unsafe { stage_memory.as_ptr_unchecked() });
    let tile = this_tile(sizes, offsets, tiles);
    let warp = this_warp(tiles);
    let sums = sum_up::<N>(inputs, sizes, &tile, &warp, base, tiles);
    store_tile::<N>(sums, inputs, outputs, sizes, &tile, &warp, tiles, epilogue);
}
