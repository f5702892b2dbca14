//! The epilogue of the `mma` kernel: from a warp's sums to the result.

use super::arguments::{Inputs, Outputs, Sizes};
use super::block_tile::{BlockTile, Warp};
use super::tiles::{SIDE, Tiles, WARP};
use crate::epilogue::{CompiledEpilogue, apply_epilogue, apply_epilogue_pair, pair_of, scaled};
use cubecl::prelude::*;
use flow_cube::register::pack;

/// Two neighbouring sums of a row, and their gates.
#[derive(CubeType)]
struct Pair {
    row: u32,
    column: u32,
    low: f32,
    high: f32,
    gate_low: f32,
    gate_high: f32,
}

/// Writes the results of two sums, whose row is in the group of results that begins at `d_first`.
#[cube]
fn write_pair(
    pair: &Pair,
    outputs: &mut Outputs,
    sizes: &Sizes,
    d_first: u32,
    #[comptime] epilogue: CompiledEpilogue,
) {
    if comptime!(epilogue.wide()) {
        let to = (d_first + pair.row) as usize * sizes.d_stride as usize + pair.column as usize;
        let mut before_low = 0.0f32;
        let mut before_high = 0.0f32;
        if comptime!(epilogue.reads()) {
            before_low = f32::reinterpret(outputs.d[to]);
            before_high = f32::reinterpret(outputs.d[to + 1]);
        }
        outputs.d[to] = u32::reinterpret(apply_epilogue(pair.low, before_low, pair.gate_low, epilogue));
        outputs.d[to + 1] =
            u32::reinterpret(apply_epilogue(pair.high, before_high, pair.gate_high, epilogue));
    } else {
        let column = pair.column as usize / 2;
        let place = (d_first + pair.row) as usize * sizes.other_stride as usize + column;
        let mut read = 0u32;
        if comptime!(epilogue.reads()) {
            read = outputs.other[place];
        }
        if comptime!(epilogue.keeps_sum()) {
            outputs.other[place] = pack(pair.low, pair.high, comptime!(epilogue.operand_type));
        }
        outputs.d[(d_first + pair.row) as usize * sizes.d_stride as usize + column] =
            apply_epilogue_pair(pair.low, pair.high, read, pair.gate_low, pair.gate_high, epilogue);
    }
}

/// Writes a warp's part of a tile, or of a partial tile.
#[cube]
pub(super) fn store_tile<N: Size>(
    sums: Vector<f32, N>,
    inputs: &Inputs,
    outputs: &mut Outputs,
    sizes: &Sizes,
    tile: &BlockTile,
    warp: &Warp,
    #[comptime] tiles: Tiles,
    #[comptime] epilogue: CompiledEpilogue,
) {
    let side = comptime!(SIDE as u32);
    let operand_type = comptime!(tiles.operand_type);
    let subtiles_per_row_group = comptime!(WARP[1] / 2);
    #[unroll]
    for row_group in 0..comptime!(WARP[0] / 16) {
        #[unroll]
        for half in 0..2usize {
            let row_in = warp.row * comptime!(WARP[0] as u32)
                + comptime!((row_group * 16 + half * 8) as u32)
                + warp.lane / 4;
            let row = tile.row + row_in;
            let mut gate_at = 0u32;
            if comptime!(epilogue.gated()) {
                gate_at = min(row, sizes.m - 1) / sizes.tokens * sizes.gate_stride + sizes.gate_start;
            }
            #[unroll]
            for j in 0..comptime!(WARP[1] / 8) {
                let i = comptime!(row_group * subtiles_per_row_group + 4 * j + 2 * half);
                let mut low = sums.extract(comptime!(i));
                let mut high = sums.extract(comptime!(i + 1));
                let column_in =
                    warp.column * comptime!(WARP[1] as u32) + comptime!(8 * j as u32) + warp.lane % 4 * 2;
                let column = tile.column + column_in;
                if comptime!(tiles.splits_k) {
                    let workspace_tile =
                        (tile.tile_row * tile.across + tile.tile_column) * CUBE_COUNT_Y + CUBE_POS_Y;
                    let to = workspace_tile as usize * comptime!(SIDE * SIDE)
                        + (row_in * side + column_in) as usize;
                    outputs.d[to] = u32::reinterpret(low);
                    outputs.d[to + 1] = u32::reinterpret(high);
                } else if row < tile.row_end && column < sizes.n {
                    if comptime!(tiles.scaled) {
                        let row_scale = inputs.row_scales[(sizes.row_scale_start + row) as usize];
                        let place = (sizes.column_scale_start + column) as usize;
                        low = scaled(low, row_scale, inputs.column_scales[place]);
                        high = scaled(high, row_scale, inputs.column_scales[place + 1]);
                    }
                    if comptime!(epilogue.bias) {
                        let (x, y) =
                            pair_of(&inputs.bias, (tile.bias_first + column) / 2, true, operand_type);
                        low += x;
                        high += y;
                    }
                    let mut gate_low = 0.0f32;
                    let mut gate_high = 0.0f32;
                    if comptime!(epilogue.gated()) {
                        let (x, y) = pair_of(&inputs.gate, gate_at + column / 2, true, operand_type);
                        gate_low = x;
                        gate_high = y;
                    }
                    let pair = Pair {
                        row,
                        column,
                        low,
                        high,
                        gate_low,
                        gate_high,
                    };
                    write_pair(&pair, outputs, sizes, tile.d_first, epilogue);
                }
            }
        }
    }
}
