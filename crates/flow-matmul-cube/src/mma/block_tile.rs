//! The tile of a block, and what of the factors it is made of.

use super::arguments::Sizes;
use super::tiles::{SIDE, Tiles};
use crate::schedule::STEP;
use cubecl::prelude::*;
use flow_cube::mma::{lane_by_columns, lane_by_rows};

/// What a block computes.
#[derive(CubeType)]
pub(super) struct BlockTile {
    /// Its row of tiles.
    pub(super) tile_row: u32,
    /// Its column of tiles.
    pub(super) tile_column: u32,
    /// How many columns of tiles there are.
    pub(super) across: u32,
    /// Its first row.
    pub(super) row: u32,
    /// Its first column.
    pub(super) column: u32,
    /// Where the rows of the result end.
    pub(super) row_end: u32,
    /// Where its columns begin and end, as rows of B.
    pub(super) b_first: u32,
    pub(super) b_end: u32,
    /// The first pair's summands in A, and in B.
    pub(super) a_summand: u32,
    pub(super) a_summands: u32,
    pub(super) b_summand: u32,
    pub(super) b_summands: u32,
    /// Where the rows of its group of results begin.
    pub(super) d_first: u32,
    /// Where the bias of its group begins.
    pub(super) bias_first: u32,
    /// Steps of the first pair of factors.
    pub(super) first_steps: u32,
    /// Steps of a tile that the block goes through.
    pub(super) begin: u32,
    pub(super) end: u32,
}

/// A warp, and where its lanes find the factors in a stage.
#[derive(CubeType)]
pub(super) struct Warp {
    /// Its row among the warps of the block.
    pub(super) row: u32,
    /// Its column among the warps of the block.
    pub(super) column: u32,
    pub(super) lane: u32,
    /// From the beginning of a tile of A to what this lane reads first, in bytes.
    pub(super) a_lane: u32,
    /// As `a_lane`, of B.
    pub(super) b_lane: u32,
}

/// The tile of this block. `offsets` says where groups of rows begin; in weight gradients a group is `CUBE_POS_Y`, as is
/// elsewhere a split of the summands.
#[cube]
pub(super) fn this_tile(sizes: &Sizes, offsets: &[u32], #[comptime] tiles: Tiles) -> BlockTile {
    let side = comptime!(SIDE as u32);
    // Neighbouring blocks share rows and columns in the L2 cache: `group` rows of tiles at a time.
    let mut down = sizes.m.div_ceil(side);
    if comptime!(tiles.grouped && !tiles.a_transposed()) {
        // A group's last tile may be in part another's rows: that many more at most.
        down += sizes.groups;
    }
    let across = sizes.n.div_ceil(side);
    let per_group = sizes.group * across;
    let first_tile = CUBE_POS_X / per_group * sizes.group;
    let height = min(sizes.group, down - first_tile);
    let within = CUBE_POS_X % per_group;
    let tile_row = first_tile + within % height;
    let tile_column = within / height;
    let mut row = tile_row * side;
    let column = tile_column * side;

    // Rows of the result, columns (rows of B by columns), and summands in A and in B end here.
    let mut row_end = sizes.m;
    let mut b_first = column;
    let mut b_end = sizes.n;
    let mut a_summand = 0u32;
    let mut a_summands = sizes.k;
    let mut b_summand = 0u32;
    let mut b_summands = sizes.k;
    let mut d_first = 0u32;
    let mut bias_first = 0u32;
    let mut first_steps = sizes.k.div_ceil(comptime!(STEP as u32));
    if comptime!(tiles.grouped) {
        if comptime!(tiles.a_transposed()) {
            // A group's rows are its summands.
            a_summand = offsets[CUBE_POS_Y as usize];
            a_summands = offsets[CUBE_POS_Y as usize + 1];
            b_summand = a_summand;
            b_summands = a_summands;
            first_steps = (a_summands - a_summand).div_ceil(comptime!(STEP as u32));
            d_first = CUBE_POS_Y * sizes.m;
        } else {
            let mut tiles_before = 0u32;
            row_end = 0u32;
            let mut mine = 0u32;
            for g in 0..sizes.groups {
                let begin = offsets[g as usize];
                let end = offsets[g as usize + 1];
                let count = (end - begin).div_ceil(side);
                if tile_row >= tiles_before && tile_row < tiles_before + count {
                    mine = g;
                    row = begin + (tile_row - tiles_before) * side;
                    row_end = end;
                }
                tiles_before += count;
            }
            if row_end == 0 {
                // More tiles were launched than there are.
                first_steps = 0u32;
            }
            if comptime!(tiles.b_transposed()) {
                b_summand = mine * sizes.k;
                b_summands = b_summand + sizes.k;
            } else {
                b_first += mine * sizes.n;
                b_end = mine * sizes.n + sizes.n;
            }
            bias_first = mine * sizes.n;
        }
    }
    let steps = first_steps + sizes.rank.div_ceil(comptime!(STEP as u32));
    let mut begin = 0u32;
    let mut end = steps;
    if comptime!(tiles.splits_k) {
        begin = CUBE_POS_Y * steps / CUBE_COUNT_Y;
        end = (CUBE_POS_Y + 1) * steps / CUBE_COUNT_Y;
    }
    BlockTile {
        tile_row,
        tile_column,
        across,
        row,
        column,
        row_end,
        b_first,
        b_end,
        a_summand,
        a_summands,
        b_summand,
        b_summands,
        d_first,
        bias_first,
        first_steps,
        begin,
        end,
    }
}

/// This thread's warp, and this lane.
#[cube]
pub(super) fn this_warp(#[comptime] tiles: Tiles) -> Warp {
    let warp = UNIT_POS / 32;
    let lane = UNIT_POS % 32;
    let row = warp / 4;
    let column = warp % 4;
    // A warp's rows are a panel's height or a panel; its columns are rows of a panel, or four chunks of its eight.
    let a_lane = if comptime!(tiles.a_transposed()) {
        row * 8192 + lane_by_columns(lane)
    } else {
        row * 8192 + lane_by_rows(lane)
    };
    let b_lane = if comptime!(tiles.b_transposed()) {
        column / 2 * 8192 + (lane_by_rows(lane) ^ (column % 2 * 64))
    } else {
        column * 4096 + lane_by_columns(lane)
    };
    Warp {
        row,
        column,
        lane,
        a_lane,
        b_lane,
    }
}
