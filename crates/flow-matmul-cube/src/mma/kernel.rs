//! The kernel: a block for a tile of 128 x 128, steps of 64 summands by `cp.async` through two or three stages.

use super::product::multiply_add;
use super::tiles::{SIDE, THREADS, Tiles, WARP};
use crate::epilogue::{CompiledEpilogue, apply_epilogue, apply_epilogue_pair, pair_of};
use crate::problem::Layout;
use crate::schedule::STEP;
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::generic_to_shared;
use flow_cube::cp_async::{commit, copy_16, wait};
use flow_cube::mma::{lane_by_columns, lane_by_rows};
use flow_cube::register::pack;

/// Eight values of 16 bits.
pub type Eight = Vector<u32, Const<4>>;

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

/// `D = epilogue(op(A) op(B) + op(A₂) op(B₂) + bias)`, or partial tiles of splits of the summands. A block for a tile, and
/// for split `CUBE_POS_Y` of its `steps` steps. `d` and `other` are words: of two values, or of one if it is f32; their
/// strides are in words. `bias` and `gate` are pairs. Sums of codes have scales, of A's rows and of B's (`column_scales`). `offsets` says where the rows of `groups` groups begin; in weight
/// gradients a group is `CUBE_POS_Y`.
#[cube(launch_unchecked)]
pub fn mma_matmul<N: Size>(
    a: &[Eight],
    b: &[Eight],
    low_rank_a: &[Eight],
    low_rank_b: &[Eight],
    bias: &[u32],
    gate: &[u32],
    row_scales: &[f32],
    column_scales: &[f32],
    other: &mut [u32],
    d: &mut [u32],
    offsets: &[u32],
    m: u32,
    n: u32,
    k: u32,
    rank: u32,
    a_stride: u32,
    b_stride: u32,
    a_2_stride: u32,
    b_2_stride: u32,
    other_stride: u32,
    d_stride: u32,
    tokens: u32,
    gate_start: u32,
    gate_stride: u32,
    row_scale_start: u32,
    column_scale_start: u32,
    group: u32,
    groups: u32,
    #[comptime] tiles: Tiles,
    #[comptime] epilogue: CompiledEpilogue,
    #[define(N)] _vector: usize,
) {
    let stages = comptime!(tiles.stages);
    let tile_bytes = comptime!(Tiles::TILE_BYTES as u32);
    let side = comptime!(SIDE as u32);
    let operand_type = comptime!(tiles.operand_type);
    let a_transposed = comptime!(tiles.layout == Layout::Tn);
    let b_transposed = comptime!(tiles.layout != Layout::Nt);
    let stage_memory: Shared<[u32]> =
        Shared::new_aligned_slice(comptime!(tiles.shared_bytes() / 4), 1024usize);
    // SAFETY: the address of the block's own shared memory; by the sizes of the tiles, what is read and
    // written there stays within it.
    let base = generic_to_shared::<u32>(unsafe { stage_memory.as_ptr_unchecked() });

    // Neighbouring blocks share rows and columns in the L2 cache: `group` rows of tiles at a time.
    let mut down = m.div_ceil(side);
    if comptime!(tiles.grouped && !a_transposed) {
        // A group's last tile may be in part another's rows: that many more at most.
        down += groups;
    }
    let across = n.div_ceil(side);
    let per_group = group * across;
    let first_tile = CUBE_POS_X / per_group * group;
    let height = min(group, down - first_tile);
    let within = CUBE_POS_X % per_group;
    let tile_row = first_tile + within % height;
    let tile_column = within / height;
    let mut row_0 = tile_row * side;
    let column_0 = tile_column * side;

    // Rows of the result, columns (rows of B by columns), and summands in A and in B end here.
    let mut row_end = m;
    let mut b_first = column_0;
    let mut b_end = n;
    let mut a_summand = 0u32;
    let mut a_summands = k;
    let mut b_summand = 0u32;
    let mut b_summands = k;
    let mut d_first = 0u32;
    let mut bias_first = 0u32;
    let mut first_steps = k.div_ceil(comptime!(STEP as u32));
    if comptime!(tiles.grouped) {
        if comptime!(a_transposed) {
            // A group's rows are its summands.
            a_summand = offsets[CUBE_POS_Y as usize];
            a_summands = offsets[CUBE_POS_Y as usize + 1];
            b_summand = a_summand;
            b_summands = a_summands;
            first_steps = (a_summands - a_summand).div_ceil(comptime!(STEP as u32));
            d_first = CUBE_POS_Y * m;
        } else {
            let mut tiles_before = 0u32;
            row_end = 0u32;
            let mut mine = 0u32;
            for g in 0..groups {
                let begin = offsets[g as usize];
                let end = offsets[g as usize + 1];
                let count = (end - begin).div_ceil(side);
                if tile_row >= tiles_before && tile_row < tiles_before + count {
                    mine = g;
                    row_0 = begin + (tile_row - tiles_before) * side;
                    row_end = end;
                }
                tiles_before += count;
            }
            if row_end == 0 {
                // More tiles were launched than there are.
                first_steps = 0u32;
            }
            if comptime!(b_transposed) {
                b_summand = mine * k;
                b_summands = b_summand + k;
            } else {
                b_first += mine * n;
                b_end = mine * n + n;
            }
            bias_first = mine * n;
        }
    }
    let steps = first_steps + rank.div_ceil(comptime!(STEP as u32));
    let mut begin = 0u32;
    let mut end = steps;
    if comptime!(tiles.splits_k) {
        begin = CUBE_POS_Y * steps / CUBE_COUNT_Y;
        end = (CUBE_POS_Y + 1) * steps / CUBE_COUNT_Y;
    }

    let warp = UNIT_POS / 32;
    let lane = UNIT_POS % 32;
    let warp_row = warp / 4;
    let warp_column = warp % 4;
    // A warp's rows are a panel's height or a panel; its columns are rows of a panel, or four chunks of its eight.
    let a_lane = if comptime!(a_transposed) {
        warp_row * 8192 + lane_by_columns(lane)
    } else {
        warp_row * 8192 + lane_by_rows(lane)
    };
    let b_lane = if comptime!(b_transposed) {
        warp_column / 2 * 8192 + (lane_by_rows(lane) ^ (warp_column % 2 * 64))
    } else {
        warp_column * 4096 + lane_by_columns(lane)
    };

    let mut sums = Vector::<f32, N>::new(0.0f32);
    for at in begin..end + comptime!(stages as u32 - 1) {
        // The copy that this iteration starts is of step `at`, the product of the step before the copies under way.
        if at >= begin + comptime!(stages as u32 - 1) {
            wait(comptime!(stages - 2));
            sync_cube();
        }
        if at < end {
            let to = base + (at - begin) % comptime!(stages as u32) * (2 * tile_bytes);
            if at < first_steps {
                let summand = at * comptime!(STEP as u32);
                copy_tile(
                    a,
                    a_stride,
                    row_0,
                    row_end,
                    a_summand + summand,
                    a_summands,
                    to,
                    a_transposed,
                );
                copy_tile(
                    b,
                    b_stride,
                    b_first,
                    b_end,
                    b_summand + summand,
                    b_summands,
                    to + tile_bytes,
                    b_transposed,
                );
            } else {
                if comptime!(tiles.low_rank) {
                    let summand = (at - first_steps) * comptime!(STEP as u32);
                    copy_tile(low_rank_a, a_2_stride, row_0, m, summand, rank, to, a_transposed);
                    copy_tile(
                        low_rank_b,
                        b_2_stride,
                        column_0,
                        n,
                        summand,
                        rank,
                        to + tile_bytes,
                        b_transposed,
                    );
                }
            }
        }
        commit();
        if at >= begin + comptime!(stages as u32 - 1) {
            let step = at - begin - comptime!(stages as u32 - 1);
            let from = base + step % comptime!(stages as u32) * (2 * tile_bytes);
            sums = multiply_add::<N>(
                sums,
                from + a_lane,
                from + tile_bytes + b_lane,
                comptime!(tiles.product()),
            );
        }
    }

    let subtiles_per_row_group = comptime!(WARP[1] / 2);
    #[unroll]
    for row_group in 0..comptime!(WARP[0] / 16) {
        #[unroll]
        for half in 0..2usize {
            let row_in = warp_row * comptime!(WARP[0] as u32)
                + comptime!((row_group * 16 + half * 8) as u32)
                + lane / 4;
            let row = row_0 + row_in;
            let mut gate_at = 0u32;
            if comptime!(epilogue.gated()) {
                gate_at = min(row, m - 1) / tokens * gate_stride + gate_start;
            }
            #[unroll]
            for j in 0..comptime!(WARP[1] / 8) {
                let i = comptime!(row_group * subtiles_per_row_group + 4 * j + 2 * half);
                let mut low = sums.extract(comptime!(i));
                let mut high = sums.extract(comptime!(i + 1));
                let column_in =
                    warp_column * comptime!(WARP[1] as u32) + comptime!(8 * j as u32) + lane % 4 * 2;
                let column = column_0 + column_in;
                if comptime!(tiles.splits_k) {
                    let workspace_tile = (tile_row * across + tile_column) * CUBE_COUNT_Y + CUBE_POS_Y;
                    let to = workspace_tile as usize * comptime!(SIDE * SIDE)
                        + (row_in * side + column_in) as usize;
                    d[to] = u32::reinterpret(low);
                    d[to + 1] = u32::reinterpret(high);
                } else if row < row_end && column < n {
                    if comptime!(tiles.scaled) {
                        let row_scale = row_scales[(row_scale_start + row) as usize];
                        let place = (column_scale_start + column) as usize;
                        low = low * row_scale * column_scales[place];
                        high = high * row_scale * column_scales[place + 1];
                    }
                    if comptime!(epilogue.bias) {
                        let (x, y) = pair_of(bias, (bias_first + column) / 2, true, operand_type);
                        low += x;
                        high += y;
                    }
                    let mut gate_low = 0.0f32;
                    let mut gate_high = 0.0f32;
                    if comptime!(epilogue.gated()) {
                        let (x, y) = pair_of(gate, gate_at + column / 2, true, operand_type);
                        gate_low = x;
                        gate_high = y;
                    }
                    if comptime!(epilogue.wide()) {
                        let to = (d_first + row) as usize * d_stride as usize + column as usize;
                        let mut before_low = 0.0f32;
                        let mut before_high = 0.0f32;
                        if comptime!(epilogue.reads()) {
                            before_low = f32::reinterpret(d[to]);
                            before_high = f32::reinterpret(d[to + 1]);
                        }
                        d[to] = u32::reinterpret(apply_epilogue(low, before_low, gate_low, epilogue));
                        d[to + 1] = u32::reinterpret(apply_epilogue(high, before_high, gate_high, epilogue));
                    } else {
                        let pair = column as usize / 2;
                        let place = (d_first + row) as usize * other_stride as usize + pair;
                        let mut read = 0u32;
                        if comptime!(epilogue.reads()) {
                            read = other[place];
                        }
                        if comptime!(epilogue.keeps_sum()) {
                            other[place] = pack(low, high, operand_type);
                        }
                        d[(d_first + row) as usize * d_stride as usize + pair] =
                            apply_epilogue_pair(low, high, read, gate_low, gate_high, epilogue);
                    }
                }
            }
        }
    }
}
