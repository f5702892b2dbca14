//! The epilogue of the `wgmma` kernel: from accumulators to the result, through shared memory.
//!
//! Sums go in epilogue subtiles of 64 rows by 128 bytes through shared memory, swizzled, and out by the tensor memory accelerator,
//! which leaves out what the result does not have. What an epilogue reads beside the sums comes in the same way, into the
//! place where the result of the same elements is put.

use crate::epilogue::{CompiledEpilogue, apply_epilogue, apply_epilogue_pair, pair_of};
use cubecl::prelude::*;
use flow_cube::register::{load_shared, pack, store_shared, vector_of};

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

/// The sums of 64 rows of codes, scaled: `row_scale_0` is that of this thread's first row, `row_scale_1` that of its second one, and
/// `start` where the scales of columns begin. `column`: the first column of the tile.
#[cube]
pub(super) fn scale_sums<N: Size>(
    sums: Vector<f32, N>,
    column_scales: &[f32],
    start: u32,
    row_scale_0: f32,
    row_scale_1: f32,
    column: u32,
    columns: u32,
    lane: u32,
    #[comptime] tile_columns: usize,
) -> Vector<f32, N> {
    let mut scaled = Sequence::<f32>::new();
    #[unroll]
    for j in 0..comptime!(tile_columns / 8) {
        let i = comptime!(4 * j);
        // Columns are an even number, so that both of a pair exist or neither.
        let at = column + comptime!((8 * j) as u32) + (lane % 4) * 2;
        let place = (start + select(at < columns, at, 0u32)) as usize;
        let low = column_scales[place];
        let high = column_scales[place + 1];
        scaled.push(sums.extract(comptime!(i)) * row_scale_0 * low);
        scaled.push(sums.extract(comptime!(i + 1)) * row_scale_0 * high);
        scaled.push(sums.extract(comptime!(i + 2)) * row_scale_1 * low);
        scaled.push(sums.extract(comptime!(i + 3)) * row_scale_1 * high);
    }
    #[unroll]
    for _ in comptime!(tile_columns / 2)..N::value() {
        scaled.push(0.0f32.runtime());
    }
    vector_of(scaled)
}

/// Puts subtile `subtile` of 64 rows of sums to the place at byte address `to`. `row`: this thread's first row within the 64,
/// whose second one is 8 further on; `column`: the first column of the 64 rows' tile; `gates`: where the two rows' gates
/// begin, in pairs.
#[cube]
pub(super) fn stage_subtile<N: Size>(
    to: u32,
    sums: Vector<f32, N>,
    bias: &[u32],
    gate: &[u32],
    row: u32,
    lane: u32,
    column: u32,
    columns: u32,
    gate_0: u32,
    gate_1: u32,
    #[comptime] subtile: usize,
    #[comptime] epilogue: CompiledEpilogue,
    #[comptime] sum_only: bool,
) {
    let width = comptime!(epilogue.subtile_columns());
    let operand_type = comptime!(epilogue.operand_type);
    let swizzle = (row % 8) * 16;
    let row_at = to + row * 128;
    #[unroll]
    for j in 0..comptime!(width / 8) {
        let i = comptime!(4 * (subtile * width / 8 + j));
        let mut x_0 = sums.extract(comptime!(i));
        let mut y_0 = sums.extract(comptime!(i + 1));
        let mut x_1 = sums.extract(comptime!(i + 2));
        let mut y_1 = sums.extract(comptime!(i + 3));
        let at = column + comptime!((subtile * width + 8 * j) as u32) + (lane % 4) * 2;
        let exists = at < columns;
        if comptime!(epilogue.bias) {
            let (x, y) = pair_of(bias, at / 2, exists, operand_type);
            x_0 += x;
            y_0 += y;
            x_1 += x;
            y_1 += y;
        }
        // 16-bit results: four bytes of a chunk of 16. f32: eight bytes of one of two chunks.
        let place = if comptime!(epilogue.wide()) {
            (swizzle ^ (comptime!((32 * j) as u32) + (lane % 4) / 2 * 16)) + (lane % 2) * 8
        } else {
            (swizzle ^ comptime!((16 * j) as u32)) + (lane % 4) * 4
        };
        if comptime!(epilogue.gated()) {
            let (g_0, h_0) = pair_of(gate, gate_0 + at / 2, exists, operand_type);
            let (g_1, h_1) = pair_of(gate, gate_1 + at / 2, exists, operand_type);
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
