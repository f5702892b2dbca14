//! The epilogue of the `wgmma` kernel: from accumulators to the result, through shared memory.
//!
//! Sums go in epilogue subtiles of 64 rows by 128 bytes through shared memory, swizzled, and out by the tensor memory accelerator,
//! which leaves out what the result does not have. What an epilogue reads beside the sums comes in the same way, into the
//! place where the result of the same elements is put.

use super::arguments::{Inputs, Results};
use super::block::{Block, Sums, Thread, Tile};
use super::tiles::Tiles;
use crate::epilogue::{CompiledEpilogue, apply_epilogue, apply_epilogue_pair, pair_of, scaled};
use cubecl::prelude::*;
use flow_cube::Issue;
use flow_cube::barrier::{self, arrive_and_expect, named_sync, wait};
use flow_cube::register::{load_shared, pack, store_shared, vector_of};
use flow_cube::tma;

/// Where the gates of a thread's two rows begin, in pairs.
#[derive(CubeType)]
struct Gates {
    first: u32,
    second: u32,
}

/// What is put to a place.
#[derive(Clone, Copy, Debug)]
struct Staged {
    /// The subtile of 64 rows.
    subtile: usize,
    /// Whether the sums themselves are wanted.
    sum_only: bool,
}

/// Finishes two neighbouring sums of a row and puts them to their place `to`, a byte address of shared memory.
/// `sum_only`: the sums themselves are wanted.
#[cube]
fn stage_pair(
    to: u32,
    low: f32,
    high: f32,
    gate_low: f32,
    gate_high: f32,
    #[comptime] epilogue: CompiledEpilogue,
    #[comptime] sum_only: bool,
) {
    let operand_type = comptime!(epilogue.operand_type);
    if comptime!(epilogue.wide()) {
        let mut other_low = 0.0f32;
        let mut other_high = 0.0f32;
        if comptime!(epilogue.reads()) {
            other_low = f32::reinterpret(load_shared(to));
            other_high = f32::reinterpret(load_shared(to + 4));
        }
        store_shared(
            to,
            u32::reinterpret(apply_epilogue(low, other_low, gate_low, epilogue)),
        );
        store_shared(
            to + 4,
            u32::reinterpret(apply_epilogue(high, other_high, gate_high, epilogue)),
        );
    } else if comptime!(sum_only) {
        store_shared(to, pack(low, high, operand_type));
    } else {
        let mut other = 0u32;
        if comptime!(epilogue.reads()) {
            other = load_shared(to);
        }
        store_shared(
            to,
            apply_epilogue_pair(low, high, other, gate_low, gate_high, epilogue),
        );
    }
}

/// The sums of 64 rows of codes, scaled. `row`: this thread's first row of the tile; the 64 rows are those of `row_group`.
#[cube]
pub(super) fn scale_sums<E: Numeric, O: Numeric, N: Size>(
    sums: Vector<f32, N>,
    block: &Block<E, O>,
    inputs: &Inputs,
    tile: &Tile,
    row: u32,
    #[comptime] row_group: usize,
    #[comptime] tile_columns: usize,
) -> Vector<f32, N> {
    let rows = block.sizes.rows;
    let first_row = if comptime!(row_group == 0) {
        row
    } else {
        row + comptime!((row_group * 64) as u32)
    };
    let row_scale_0 = inputs.row_scales[(block.sizes.row_scale_start + min(first_row, rows - 1)) as usize];
    let row_scale_1 = inputs.row_scales[(block.sizes.row_scale_start
        + min(row + comptime!((row_group * 64 + 8) as u32), rows - 1))
        as usize];
    let mut finished = Sequence::<f32>::new();
    #[unroll]
    for j in 0..comptime!(tile_columns / 8) {
        let i = comptime!(4 * j);
        // Columns are an even number, so that both of a pair exist or neither.
        let at = tile.column + comptime!((8 * j) as u32) + (block.thread.lane % 4) * 2;
        let place = (block.sizes.column_scale_start + select(at < tile.columns, at, 0u32)) as usize;
        let low = inputs.column_scales[place];
        let high = inputs.column_scales[place + 1];
        finished.push(scaled(sums.extract(comptime!(i)), row_scale_0, low));
        finished.push(scaled(sums.extract(comptime!(i + 1)), row_scale_0, high));
        finished.push(scaled(sums.extract(comptime!(i + 2)), row_scale_1, low));
        finished.push(scaled(sums.extract(comptime!(i + 3)), row_scale_1, high));
    }
    #[unroll]
    for _ in comptime!(tile_columns / 2)..N::value() {
        finished.push(0.0f32.runtime());
    }
    vector_of(finished)
}

/// Puts a subtile of 64 rows of sums to the place at byte address `to`.
#[cube]
fn stage_subtile<N: Size>(
    to: u32,
    sums: Vector<f32, N>,
    inputs: &Inputs,
    thread: &Thread,
    tile: &Tile,
    gates: &Gates,
    #[comptime] staged: Staged,
    #[comptime] epilogue: CompiledEpilogue,
) {
    let width = comptime!(epilogue.subtile_columns());
    let operand_type = comptime!(epilogue.operand_type);
    let (subtile, sum_only) = comptime!((staged.subtile, staged.sum_only));
    let swizzle = (thread.row % 8) * 16;
    let row_at = to + thread.row * 128;
    #[unroll]
    for j in 0..comptime!(width / 8) {
        let i = comptime!(4 * (subtile * width / 8 + j));
        let mut x_0 = sums.extract(comptime!(i));
        let mut y_0 = sums.extract(comptime!(i + 1));
        let mut x_1 = sums.extract(comptime!(i + 2));
        let mut y_1 = sums.extract(comptime!(i + 3));
        let at = tile.column + comptime!((subtile * width + 8 * j) as u32) + (thread.lane % 4) * 2;
        let exists = at < tile.columns;
        if comptime!(epilogue.bias) {
            let (x, y) = pair_of(&inputs.bias, at / 2, exists, operand_type);
            x_0 += x;
            y_0 += y;
            x_1 += x;
            y_1 += y;
        }
        // 16-bit results: four bytes of a chunk of 16. f32: eight bytes of one of two chunks.
        let place = if comptime!(epilogue.wide()) {
            (swizzle ^ (comptime!((32 * j) as u32) + (thread.lane % 4) / 2 * 16)) + (thread.lane % 2) * 8
        } else {
            (swizzle ^ comptime!((16 * j) as u32)) + (thread.lane % 4) * 4
        };
        if comptime!(epilogue.gated()) {
            let (g_0, h_0) = pair_of(&inputs.gate, gates.first + at / 2, exists, operand_type);
            let (g_1, h_1) = pair_of(&inputs.gate, gates.second + at / 2, exists, operand_type);
            stage_pair(row_at + place, x_0, y_0, g_0, h_0, epilogue, sum_only);
            stage_pair(row_at + 1024 + place, x_1, y_1, g_1, h_1, epilogue, sum_only);
        } else {
            stage_pair(row_at + place, x_0, y_0, 0.0f32, 0.0f32, epilogue, sum_only);
            stage_pair(
                row_at + 1024 + place,
                x_1,
                y_1,
                0.0f32,
                0.0f32,
                epilogue,
                sum_only,
            );
        }
    }
}

/// Starts bringing subtile `number` of what the epilogue reads to its place, which begins at `start`. For one thread.
#[cube]
fn load_subtile<O: Numeric>(
    loaded: u32,
    read: &TensorMap<O, Tiled>,
    places: &[O],
    start: usize,
    tile: &Tile,
    #[comptime] number: usize,
    #[comptime] tiles: Tiles,
    #[comptime] epilogue: CompiledEpilogue,
) {
    let width = comptime!(epilogue.subtile_columns());
    let subtiles_per_row_group = comptime!(tiles.columns / epilogue.subtile_columns());
    arrive_and_expect(loaded, 8192u32.runtime(), Issue::SingleThread);
    tma::load_2d::<O>(
        read,
        &places[start..start + comptime!(64 * width)],
        loaded,
        (tile.row + comptime!((number / subtiles_per_row_group * 64) as u32)) as i32,
        (tile.column + comptime!((number % subtiles_per_row_group * width) as u32)) as i32,
        Issue::SingleThread,
    );
}

/// Starts bringing the first subtiles of what the epilogue of `tile` reads, as many as a warpgroup has places.
#[cube]
pub(super) fn load_first_subtiles<E: Numeric, O: Numeric>(
    block: &Block<E, O>,
    read: &TensorMap<O, Tiled>,
    tile: &Tile,
    #[comptime] tiles: Tiles,
    #[comptime] epilogue: CompiledEpilogue,
) {
    let width = comptime!(epilogue.subtile_columns());
    if block.thread.index == 0 {
        tma::wait_read(0usize);
        #[unroll]
        for p in 0..comptime!(tiles.subtile_buffers) {
            let place = block.thread.first_place + comptime!(p as u32);
            load_subtile::<O>(
                barrier::at(block.memory.loaded, place as usize),
                read,
                &block.memory.places,
                place as usize * comptime!(64 * width),
                tile,
                p,
                tiles,
                epilogue,
            );
        }
    }
}

/// Waits until place `place` is free for its use `use_of` in a tile, or what the epilogue reads has come there.
#[cube]
fn wait_for_place<E: Numeric, O: Numeric>(
    block: &Block<E, O>,
    place: u32,
    round: u32,
    #[comptime] use_of: usize,
    #[comptime] tiles: Tiles,
    #[comptime] epilogue: CompiledEpilogue,
) {
    let subtile_buffers = comptime!(tiles.subtile_buffers);
    if comptime!(epilogue.reads()) {
        let subtiles = comptime!(tiles.row_groups * (tiles.columns / epilogue.subtile_columns()));
        let uses = comptime!((subtiles / subtile_buffers) as u32);
        let turn = round * uses + comptime!((use_of / subtile_buffers) as u32);
        wait(barrier::at(block.memory.loaded, place as usize), turn % 2);
    } else {
        if block.thread.index == 0 {
            tma::wait_read(comptime!(subtile_buffers - 1));
        }
        named_sync(block.thread.warpgroup + 1, 128u32);
    }
}

/// Writes a tile, subtile by subtile.
#[cube]
pub(super) fn store_tile<E: Numeric, O: Numeric, N: Size>(
    sums: &Sums<N>,
    block: &Block<E, O>,
    inputs: &Inputs,
    results: &mut Results<O>,
    tile: &Tile,
    #[comptime] tiles: Tiles,
    #[comptime] epilogue: CompiledEpilogue,
) {
    let subtile_buffers = comptime!(tiles.subtile_buffers);
    let width = comptime!(epilogue.subtile_columns());
    let subtiles_per_row_group = comptime!(tiles.columns / epilogue.subtile_columns());
    let subtiles = comptime!(tiles.row_groups * subtiles_per_row_group);
    let kinds = comptime!(1 + epilogue.keeps_sum() as usize);
    #[unroll]
    for number in 0..subtiles {
        let row_group = comptime!(number / subtiles_per_row_group);
        let subtile = comptime!(number % subtiles_per_row_group);
        let first_row = tile.row + comptime!((row_group * 64) as u32);
        let mut gates = Gates {
            first: 0u32,
            second: 0u32,
        };
        if comptime!(epilogue.gated()) {
            let (rows, tokens) = (block.sizes.rows, block.sizes.tokens);
            let (stride, start) = (block.sizes.gate_stride, block.sizes.gate_start);
            // Rows beyond the result take the last row's gate; they are not written.
            gates.first = min(first_row + block.thread.row, rows - 1) / tokens * stride + start;
            gates.second = min(first_row + block.thread.row + 8, rows - 1) / tokens * stride + start;
        }
        #[unroll]
        for kind in 0..kinds {
            // Sums first, then the result.
            let sum_only = comptime!(epilogue.keeps_sum() && kind == 0);
            let use_of = comptime!(number * kinds + kind);
            let place = block.thread.first_place + comptime!((use_of % subtile_buffers) as u32);
            wait_for_place::<E, O>(block, place, tile.round, use_of, tiles, epilogue);
            let to = block.thread.places + place * 8192;
            let staged = comptime!(Staged { subtile, sum_only });
            if comptime!(row_group == 0) {
                stage_subtile::<N>(
                    to,
                    sums.first,
                    inputs,
                    &block.thread,
                    tile,
                    &gates,
                    staged,
                    epilogue,
                );
            } else {
                stage_subtile::<N>(
                    to,
                    sums.last,
                    inputs,
                    &block.thread,
                    tile,
                    &gates,
                    staged,
                    epilogue,
                );
            }
            tma::fence();
            named_sync(block.thread.warpgroup + 1, 128u32);
            if block.thread.index == 0 {
                let start = place as usize * comptime!(64 * width);
                let column = tile.column + comptime!((subtile * width) as u32);
                let from = &block.memory.places[start..start + comptime!(64 * width)];
                if comptime!(sum_only) {
                    tma::store_2d::<O>(from, &mut results.kept, first_row as i32, column as i32);
                } else {
                    tma::store_2d::<O>(from, &mut results.d, first_row as i32, column as i32);
                }
                tma::commit();
                if comptime!(epilogue.reads() && use_of + subtile_buffers < subtiles) {
                    tma::wait_read(0usize);
                    load_subtile::<O>(
                        barrier::at(block.memory.loaded, place as usize),
                        &results.read,
                        &block.memory.places,
                        start,
                        tile,
                        comptime!(use_of + subtile_buffers),
                        tiles,
                        epilogue,
                    );
                }
            }
        }
    }
}
