//! The main loop: products of a tile's steps, and the copies of later ones to the stages that they leave.

// Conditions of kernels that are known when they are compiled stay apart from those that are not.
#![allow(clippy::collapsible_if)]

use super::arguments::{Factors, Inputs};
use super::block::{Block, Position, Sums, Tile, move_on, step_on};
use super::copy::fill;
use super::cursor::{ITEM, advance};
use super::epilogue::scale_sums;
use super::tiles::Tiles;
use cubecl::prelude::*;
use flow_cube::Issue;
use flow_cube::barrier::{self, came_last, count_warp, named_arrive, named_sync, wait};
use flow_cube::wgmma;

/// Sums of a tile while their last product is under way, and the stage that it reads.
#[derive(CubeType)]
struct Issued<N: Size> {
    first: Vector<f32, N>,
    second: Vector<f32, N>,
    stage: u32,
}

/// Leaves stage `stage`, which this warp has read: the last warp to do so starts the copy of the cursor's step in its place.
/// Moves the cursor on.
#[cube]
fn release<E: Numeric, O: Numeric>(
    block: &Block<E, O>,
    factors: &Factors<E>,
    inputs: &Inputs,
    cursor: &mut Array<u32>,
    stage: u32,
    #[comptime] tiles: Tiles,
) {
    let last_reader = comptime!(tiles.readers() as u32 - 1);
    let users = count_warp(block.thread.lane, block.thread.used + stage * 4, last_reader);
    if came_last(users, last_reader) && cursor[ITEM] < block.thread.last {
        fill::<E, O>(
            &block.memory,
            factors,
            &block.sizes,
            &*cursor,
            stage,
            tiles,
            Issue::ElectedLane,
        );
    }
    advance(cursor, &inputs.items, block.thread.last, 1u32);
}

/// Issues the products of `steps` steps: of both pairs of factors, or of the first one if its sums are scaled.
#[cube]
fn multiply<E: Numeric, O: Numeric, N: Size>(
    block: &Block<E, O>,
    factors: &Factors<E>,
    inputs: &Inputs,
    cursor: &mut Array<u32>,
    position: &mut Position,
    steps: u32,
    #[comptime] tiles: Tiles,
) -> Issued<N> {
    let stages = comptime!(tiles.stages);
    let row_groups = comptime!(tiles.row_groups);
    let a_stage = comptime!((tiles.a_elements() / 8) as u32);
    let b_stage = comptime!((tiles.b_elements() / 8) as u32);
    wait(
        barrier::at(block.memory.full, position.stage as usize),
        position.phase,
    );
    let a_now = block.thread.a_at + u64::cast_from(position.stage * a_stage);
    let b_now = block.thread.b_at + u64::cast_from(position.stage * b_stage);
    // The first step is peeled: sums that enter a loop as zeros make ptxas wait after each product.
    let mut sums_0 = wgmma::issue_from_zero::<N>(a_now, b_now, comptime!(tiles.products()));
    if comptime!(tiles.is_promoted()) {
        sums_0 = wgmma::wait::<N>(sums_0, comptime!(tiles.products()), 0usize);
    }
    let mut sums_1 = sums_0;
    if comptime!(row_groups == 2) {
        sums_1 = wgmma::issue_from_zero::<N>(a_now + 512, b_now, comptime!(tiles.products()));
    }
    let mut before = position.stage;
    step_on(position, stages);
    let main_steps = if comptime!(tiles.adds_low_rank_to_scaled()) {
        block.sizes.first_steps
    } else {
        steps
    };
    for _ in 1..main_steps {
        wait(
            barrier::at(block.memory.full, position.stage as usize),
            position.phase,
        );
        let a_now = block.thread.a_at + u64::cast_from(position.stage * a_stage);
        let b_now = block.thread.b_at + u64::cast_from(position.stage * b_stage);
        if comptime!(tiles.is_promoted()) {
            sums_0 = wgmma::add_promoted::<N>(sums_0, a_now, b_now, comptime!(tiles.products()));
        } else {
            sums_0 = wgmma::issue::<N>(sums_0, a_now, b_now, comptime!(tiles.products()));
        }
        if comptime!(row_groups == 2) {
            sums_1 = wgmma::issue::<N>(sums_1, a_now + 512, b_now, comptime!(tiles.products()));
        }
        // Of the step before, all was read.
        wgmma::wait_for_reads(row_groups);
        release::<E, O>(block, factors, inputs, cursor, before, tiles);
        before = position.stage;
        step_on(position, stages);
    }
    Issued::<N> {
        first: sums_0,
        second: sums_1,
        stage: before,
    }
}

/// Adds the second pair's product of `steps` steps, the item's last, to sums of codes that were scaled. `first` is where the first
/// of these steps is.
#[cube]
fn add_low_rank<E: Numeric, O: Numeric, N: Size>(
    scaled: Vector<f32, N>,
    steps: u32,
    block: &Block<E, O>,
    factors: &Factors<E>,
    inputs: &Inputs,
    cursor: &mut Array<u32>,
    first: &Position,
    #[comptime] tiles: Tiles,
) -> Vector<f32, N> {
    let stages = comptime!(tiles.stages as u32);
    let a_stage = comptime!((tiles.a_elements() / 8) as u32);
    let b_stage = comptime!((tiles.b_elements() / 8) as u32);
    let mut sums = scaled;
    let mut stage = first.stage;
    let mut phase = first.phase;
    for _ in 0..steps {
        wait(barrier::at(block.memory.full, stage as usize), phase);
        let a_now = block.thread.a_at + u64::cast_from(stage * a_stage);
        let b_now = block.thread.b_at + u64::cast_from(stage * b_stage);
        let issued = wgmma::issue::<N>(sums, a_now, b_now, comptime!(tiles.low_rank_products()));
        sums = wgmma::wait::<N>(issued, comptime!(tiles.low_rank_products()), 0usize);
        release::<E, O>(block, factors, inputs, cursor, stage, tiles);
        stage += 1;
        if stage == stages {
            stage = 0u32;
            phase ^= 1;
        }
    }
    sums
}

/// The sums of `tile`, scaled if they are of codes. `position` is that of its first step, and becomes that behind its last.
#[cube]
pub(super) fn compute_tile<E: Numeric, O: Numeric, N: Size>(
    block: &Block<E, O>,
    factors: &Factors<E>,
    inputs: &Inputs,
    cursor: &mut Array<u32>,
    position: &mut Position,
    tile: &Tile,
    #[comptime] tiles: Tiles,
) -> Sums<N> {
    let row_groups = comptime!(tiles.row_groups);
    if comptime!(tiles.ping_pong) {
        // A barrier tells one phase from the next, not from the one after: the other warpgroup must have waited for
        // all of its steps.
        named_sync(4 + block.thread.warpgroup, 256u32);
    }
    let issued = multiply::<E, O, N>(block, factors, inputs, cursor, position, tile.steps, tiles);
    if comptime!(tiles.ping_pong) {
        if tile.item + 1 < block.thread.last {
            named_arrive(5 - block.thread.warpgroup, 256u32);
        }
    }
    let sums_0 = wgmma::wait::<N>(issued.first, comptime!(tiles.products()), 0usize);
    let mut sums_last = sums_0;
    if comptime!(row_groups == 2) {
        sums_last = wgmma::wait::<N>(issued.second, comptime!(tiles.products()), 0usize);
    }
    release::<E, O>(block, factors, inputs, cursor, issued.stage, tiles);

    let row = tile.row + block.thread.row;
    let scaled_0 = if comptime!(tiles.is_e4m3()) {
        scale_sums::<E, O, N>(sums_0, block, inputs, tile, row, 0usize, comptime!(tiles.columns))
    } else {
        sums_0
    };
    let sums_first = if comptime!(tiles.adds_low_rank_to_scaled()) {
        add_low_rank::<E, O, N>(
            scaled_0,
            tile.steps - block.sizes.first_steps,
            block,
            factors,
            inputs,
            cursor,
            &*position,
            tiles,
        )
    } else {
        scaled_0
    };
    if comptime!(tiles.adds_low_rank_to_scaled()) {
        let at = position.stage + tile.steps - block.sizes.first_steps;
        move_on(position, at, comptime!(tiles.stages));
    }
    if comptime!(tiles.is_e4m3() && row_groups == 2) {
        sums_last = scale_sums::<E, O, N>(
            sums_last,
            block,
            inputs,
            tile,
            row,
            1usize,
            comptime!(tiles.columns),
        );
    }
    Sums::<N> {
        first: sums_first,
        last: sums_last,
    }
}
