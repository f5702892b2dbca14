//! The kernel: persistent blocks that take one tile of the schedule after another.
//!
//! Steps of operands pass through a ring of stages. There is no warp that only copies: the warp that is last to have read a
//! stage starts the copy of the step that takes its place, across the borders of tiles. Warpgroups share a tile (cooperative), or
//! compute a tile each (ping-pong): the ring brings one tile's steps after the other's.

// Conditions of kernels that are known when they are compiled stay apart from those that are not.
#![allow(clippy::collapsible_if)]

use super::arguments::{Factors, Inputs, Results, Sizes};
use super::block::{Block, Position, Tile, allocate, move_on, this_thread};
use super::copy::fill;
use super::cursor::{ITEM, advance, enter};
use super::epilogue::{load_first_subtiles, store_tile};
use super::main_loop::compute_tile;
use super::tiles::Tiles;
use crate::epilogue::CompiledEpilogue;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use flow_cube::Issue;
use flow_cube::barrier::named_arrive;
use flow_cube::tma;

/// `D = epilogue(op(A) op(B) + op(A₂) op(B₂) + bias)`, by items (see [`schedule`](crate::schedule)).
#[cube(launch_unchecked)]
pub fn matmul<E: Numeric, O: Numeric, N: Size>(
    factors: &Factors<E>,
    results: &mut Results<O>,
    inputs: &Inputs,
    sizes: Sizes,
    #[comptime] tiles: Tiles,
    #[comptime] epilogue: CompiledEpilogue,
    #[define(E, O)] _elements: [ElemType; 2],
    #[define(N)] _vector: usize,
) {
    let stages = comptime!(tiles.stages);
    let memory = allocate::<E, O>(tiles, epilogue);

    let first = inputs.starts[CUBE_POS_X as usize];
    let last = inputs.starts[CUBE_POS_X as usize + 1];
    let mut cursor = Array::<u32>::new(5usize);
    #[unroll]
    for i in 0..5usize {
        cursor[i] = 0u32;
    }
    enter(&mut cursor, &inputs.items, first, last, 0u32);
    for s in 0..comptime!(stages as u32) {
        if UNIT_POS == 0 && cursor[ITEM] < last {
            fill::<E, O>(&memory, factors, &sizes, &cursor, s, tiles, Issue::SingleThread);
        }
        advance(&mut cursor, &inputs.items, last, 1u32);
    }

    let thread = this_thread::<E, O>(&memory, last, tiles);
    let block = Block::<E, O> {
        memory,
        thread,
        sizes,
    };
    let mut item = first;
    let mut position = Position {
        stage: 0u32,
        phase: 0u32,
    };
    let mut round = 0u32;
    let mut skip = 0u32;
    if comptime!(tiles.ping_pong) {
        if block.thread.warpgroup == 1 && first < last {
            let record = inputs.items[(2 * first) as usize];
            skip = record.extract(3usize) - record.extract(2usize);
        }
    }
    if comptime!(tiles.ping_pong) {
        if block.thread.warpgroup == 1 && first < last {
            // The first turn is the other's.
            named_arrive(4u32, 256u32);
        }
    }
    let mut more = first < last;
    while more {
        if comptime!(tiles.ping_pong) {
            // The other warpgroup's steps.
            if skip > 0 {
                advance(&mut cursor, &inputs.items, last, skip);
                let at = position.stage + skip;
                move_on(&mut position, at, stages);
                item += 1;
                skip = 0u32;
            }
        }
        if item < last {
            let record = inputs.items[(2 * item) as usize];
            let target = inputs.items[(2 * item + 1) as usize];
            let steps = record.extract(3usize) - record.extract(2usize);
            let tile = Tile {
                row: target.extract(0usize) + block.thread.row_group * 64,
                column: target.extract(1usize),
                columns: block.sizes.columns,
                steps,
                item,
                round,
            };
            if comptime!(epilogue.reads()) {
                load_first_subtiles::<E, O>(&block, &results.read, &tile, tiles, epilogue);
            }
            let sums =
                compute_tile::<E, O, N>(&block, factors, inputs, &mut cursor, &mut position, &tile, tiles);
            store_tile::<E, O, N>(&sums, &block, inputs, results, &tile, tiles, epilogue);
            round += 1;
            item += 1;
            if comptime!(tiles.ping_pong) {
                if item < last {
                    let record = inputs.items[(2 * item) as usize];
                    skip = record.extract(3usize) - record.extract(2usize);
                }
            }
        }
        more = item < last;
    }
    if block.thread.index == 0 {
        tma::wait_read(0usize);
    }
}
