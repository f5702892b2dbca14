//! The kernel: blocks that stay, and take one tile of the schedule after another.
//!
//! Steps of factors pass through a ring of stages. There is no warp that only copies: the warp that is last to have read a
//! stage starts the copy of the step that takes its place, across the borders of tiles. Warpgroups share a tile, or take
//! tiles in turns: the ring brings one tile's steps after the other's.

// Conditions of kernels that are known when they are compiled stay apart from those that are not.
#![allow(clippy::collapsible_if)]

use super::Record;
use super::copy::fill;
use super::cursor::{ITEM, advance, enter};
use super::finish::put_piece;
use super::tiles::Tiles;
use crate::finish::Finish;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::generic_to_shared;
use flow_cube::Caller;
use flow_cube::barrier::{self, arrive_and_expect, came_last, count_warp, named_arrive, named_sync, wait};
use flow_cube::tma;
use flow_cube::warpgroup::warpgroup_and_thread;
use flow_cube::wgmma;

/// From a panel of 64 rows of a tile to the next, in bytes; of tiles that are one panel, 16 (PTX ISA: not used).
fn leading(transposed: bool) -> u32 {
    if transposed { 8192 } else { 16 }
}

/// Starts bringing piece `number` (of `per_unit` for each 64 rows) of what the epilogue reads to its place. For one thread.
#[cube]
fn bring<O: Numeric>(
    there: u32,
    other: &TensorMap<O, Tiled>,
    places: &mut [O],
    start: usize,
    row: u32,
    column: u32,
    #[comptime] number: usize,
    #[comptime] per_unit: usize,
    #[comptime] width: usize,
) {
    arrive_and_expect(there, 8192u32.runtime(), Caller::Thread);
    tma::load_2d::<O>(
        other,
        &places[start..start + comptime!(64 * width)],
        there,
        (row + comptime!((number / per_unit * 64) as u32)) as i32,
        (column + comptime!((number % per_unit * width) as u32)) as i32,
        Caller::Thread,
    );
}

/// `D = epilogue(op(A) op(B) + op(A₂) op(B₂) + bias)`, by items (see [`schedule`](crate::schedule)). `starts` says where
/// the items of each block begin; what the epilogue reads is `read`, and `kept` is where sums are kept. `rows` and `columns` are those of D, `first_steps` the steps of the first pair of factors; `frame_stride` and `row_stride` are a convolution's (see
/// [`KernelRows`](crate::call::KernelRows)).
/// Bias and gate are read in pairs, and `gate_start` and `gate_stride` are in pairs.
#[cube(launch_unchecked)]
pub fn matmul<E: Numeric, O: Numeric, N: Size>(
    a: &TensorMap<E, Tiled>,
    b: &TensorMap<E, Tiled>,
    a_2: &TensorMap<E, Tiled>,
    b_2: &TensorMap<E, Tiled>,
    d: &mut TensorMap<O, Tiled>,
    read: &TensorMap<O, Tiled>,
    kept: &mut TensorMap<O, Tiled>,
    bias: &[u32],
    gate: &[u32],
    starts: &[u32],
    items: &[Record],
    rows: u32,
    columns: u32,
    first_steps: u32,
    frame_stride: u32,
    row_stride: u32,
    tokens: u32,
    gate_start: u32,
    gate_stride: u32,
    #[comptime] tiles: Tiles,
    #[comptime] finish: Finish,
    #[define(E, O)] _elements: [ElemType; 2],
    #[define(N)] _vector: usize,
) {
    let stages = comptime!(tiles.stages);
    let last_reader = comptime!(tiles.readers() as u32 - 1);
    let units = comptime!(tiles.units);
    let pieces = comptime!(tiles.pieces);
    let width = comptime!(finish.piece_columns());
    let per_unit = comptime!(tiles.columns / finish.piece_columns());
    let a_stage = comptime!((tiles.a_elements() / 8) as u32);
    let b_stage = comptime!((tiles.b_elements() / 8) as u32);

    let mut a_tiles: Shared<[E]> =
        Shared::new_aligned_slice(comptime!(tiles.a_elements() * stages), 1024usize);
    let mut b_tiles: Shared<[E]> =
        Shared::new_aligned_slice(comptime!(tiles.b_elements() * stages), 1024usize);
    let mut places: Shared<[O]> =
        Shared::new_aligned_slice(comptime!(tiles.warpgroups * pieces * 64 * width), 1024usize);
    let full: Shared<[u64]> = Shared::new_slice(stages);
    let full = barrier::first(&full);
    let there: Shared<[u64]> = Shared::new_slice(comptime!(tiles.warpgroups * pieces));
    let there = barrier::first(&there);
    let mut used: Shared<[u32]> = Shared::new_slice(stages);

    if UNIT_POS == 0 {
        #[unroll]
        for s in 0..stages {
            barrier::init(barrier::at(full, s));
            used[s] = 0u32;
        }
        #[unroll]
        for p in 0..comptime!(tiles.warpgroups * pieces) {
            barrier::init(barrier::at(there, p));
        }
        tma::fence();
    }
    sync_cube();

    let first = starts[CUBE_POS_X as usize];
    let last = starts[CUBE_POS_X as usize + 1];
    let mut cursor = Array::<u32>::new(5usize);
    #[unroll]
    for i in 0..5usize {
        cursor[i] = 0u32;
    }
    enter(&mut cursor, items, first, last, 0u32);
    for s in 0..comptime!(stages as u32) {
        if UNIT_POS == 0 && cursor[ITEM] < last {
            fill::<E>(
                barrier::at(full, s as usize),
                a,
                b,
                a_2,
                b_2,
                &mut a_tiles,
                &mut b_tiles,
                s as usize,
                &cursor,
                first_steps,
                frame_stride,
                row_stride,
                tiles,
                Caller::Thread,
            );
        }
        advance(&mut cursor, items, last, 1u32);
    }

    let (warpgroup, thread) = warpgroup_and_thread(comptime!(tiles.warpgroups), true);
    let lane = thread % 32;
    let row_in_unit = (thread / 32) * 16 + lane / 4;
    // SAFETY: the address of the block's own shared memory; by the sizes of the tiles, what is read and
    // written there stays within it.
    let a_base = generic_to_shared::<E>(unsafe { a_tiles.as_ptr_unchecked() });
    // SAFETY: as above.
    let b_base = generic_to_shared::<E>(unsafe { b_tiles.as_ptr_unchecked() });
    // SAFETY: as above.
    let places_base = generic_to_shared::<O>(unsafe { places.as_ptr_unchecked() });
    // SAFETY: as above.
    let used_base = generic_to_shared::<u32>(unsafe { used.as_ptr_unchecked() });
    let unit_first = if comptime!(tiles.in_turns) {
        0u32.runtime()
    } else {
        warpgroup * comptime!(units as u32)
    };
    let a_at = wgmma::descriptor(
        a_base + unit_first * 8192,
        comptime!(leading(tiles.a_transposed())),
        1024u32,
    );
    let b_at = wgmma::descriptor(b_base, comptime!(leading(tiles.b_transposed())), 1024u32);
    let place_first = warpgroup * comptime!(pieces as u32);

    let mut item = first;
    let mut stage = 0u32;
    let mut phase = 0u32;
    let mut round = 0u32;
    let mut skip = 0u32;
    if comptime!(tiles.in_turns) {
        if warpgroup == 1 && first < last {
            let record = items[(2 * first) as usize];
            skip = record.extract(3usize) - record.extract(2usize);
        }
    }
    if comptime!(tiles.in_turns) {
        if warpgroup == 1 && first < last {
            // The first turn is the other's.
            named_arrive(4u32, 256u32);
        }
    }
    let mut more = first < last;
    while more {
        if comptime!(tiles.in_turns) {
            // The other warpgroup's steps.
            if skip > 0 {
                advance(&mut cursor, items, last, skip);
                let at = stage + skip;
                phase ^= (at / comptime!(stages as u32)) % 2;
                stage = at % comptime!(stages as u32);
                item += 1;
                skip = 0u32;
            }
        }
        if item < last {
            let record = items[(2 * item) as usize];
            let target = items[(2 * item + 1) as usize];
            let steps = record.extract(3usize) - record.extract(2usize);
            let row = target.extract(0usize) + unit_first * 64;
            let column = target.extract(1usize);
            if comptime!(finish.reads()) {
                if thread == 0 {
                    tma::wait_read(0usize);
                    #[unroll]
                    for p in 0..pieces {
                        let place = place_first + comptime!(p as u32);
                        bring::<O>(
                            barrier::at(there, place as usize),
                            read,
                            &mut places,
                            place as usize * comptime!(64 * width),
                            row,
                            column,
                            p,
                            per_unit,
                            width,
                        );
                    }
                }
            }

            if comptime!(tiles.in_turns) {
                // A barrier tells one phase from the next, not from the one after: the other warpgroup must have waited for
                // all of its steps.
                named_sync(4 + warpgroup, 256u32);
            }
            wait(barrier::at(full, stage as usize), phase);
            let a_now = a_at + u64::cast_from(stage * a_stage);
            let b_now = b_at + u64::cast_from(stage * b_stage);
            // The first step is peeled: sums that enter a loop as zeros make ptxas wait after each product.
            let mut sums_0 = wgmma::issue_from_zero::<N>(a_now, b_now, comptime!(tiles.products()));
            let mut sums_1 = sums_0;
            if comptime!(units == 2) {
                sums_1 = wgmma::issue_from_zero::<N>(a_now + 512, b_now, comptime!(tiles.products()));
            }
            let mut before = stage;
            stage += 1;
            if stage == comptime!(stages as u32) {
                stage = 0u32;
                phase ^= 1;
            }
            for _ in 1..steps {
                wait(barrier::at(full, stage as usize), phase);
                let a_now = a_at + u64::cast_from(stage * a_stage);
                let b_now = b_at + u64::cast_from(stage * b_stage);
                sums_0 = wgmma::issue::<N>(sums_0, a_now, b_now, comptime!(tiles.products()));
                if comptime!(units == 2) {
                    sums_1 = wgmma::issue::<N>(sums_1, a_now + 512, b_now, comptime!(tiles.products()));
                }
                // Of the step before, all was read.
                wgmma::wait_for_reads(units);
                let users = count_warp(lane, used_base + before * 4, last_reader);
                if came_last(users, last_reader) && cursor[ITEM] < last {
                    fill::<E>(
                        barrier::at(full, before as usize),
                        a,
                        b,
                        a_2,
                        b_2,
                        &mut a_tiles,
                        &mut b_tiles,
                        before as usize,
                        &cursor,
                        first_steps,
                        frame_stride,
                        row_stride,
                        tiles,
                        Caller::Warp,
                    );
                }
                advance(&mut cursor, items, last, 1u32);
                before = stage;
                stage += 1;
                if stage == comptime!(stages as u32) {
                    stage = 0u32;
                    phase ^= 1;
                }
            }
            if comptime!(tiles.in_turns) {
                if item + 1 < last {
                    named_arrive(5 - warpgroup, 256u32);
                }
            }
            let sums_0 = wgmma::wait::<N>(sums_0, comptime!(tiles.products()), 0usize);
            let mut sums_last = sums_0;
            if comptime!(units == 2) {
                sums_last = wgmma::wait::<N>(sums_1, comptime!(tiles.products()), 0usize);
            }
            let users = count_warp(lane, used_base + before * 4, last_reader);
            if came_last(users, last_reader) && cursor[ITEM] < last {
                fill::<E>(
                    barrier::at(full, before as usize),
                    a,
                    b,
                    a_2,
                    b_2,
                    &mut a_tiles,
                    &mut b_tiles,
                    before as usize,
                    &cursor,
                    first_steps,
                    frame_stride,
                    row_stride,
                    tiles,
                    Caller::Warp,
                );
            }
            advance(&mut cursor, items, last, 1u32);

            #[unroll]
            for number in 0..comptime!(units * per_unit) {
                let unit = comptime!(number / per_unit);
                let piece = comptime!(number % per_unit);
                let unit_row = row + comptime!((unit * 64) as u32);
                let mut gate_0 = 0u32;
                let mut gate_1 = 0u32;
                if comptime!(finish.gated()) {
                    // Rows beyond the result take the last row's gate; they are not written.
                    gate_0 = min(unit_row + row_in_unit, rows - 1) / tokens * gate_stride + gate_start;
                    gate_1 = min(unit_row + row_in_unit + 8, rows - 1) / tokens * gate_stride + gate_start;
                }
                #[unroll]
                for kind in 0..comptime!(1 + finish.keeps_sum() as usize) {
                    // Sums first, then the result.
                    let sum_only = comptime!(finish.keeps_sum() && kind == 0);
                    let use_of = comptime!(number * (1 + finish.keeps_sum() as usize) + kind);
                    let place = place_first + comptime!((use_of % pieces) as u32);
                    if comptime!(finish.reads()) {
                        let uses = comptime!((units * per_unit / pieces) as u32);
                        let turn = round * uses + comptime!((use_of / pieces) as u32);
                        wait(barrier::at(there, place as usize), turn % 2);
                    } else {
                        if thread == 0 {
                            tma::wait_read(comptime!(pieces - 1));
                        }
                        named_sync(warpgroup + 1, 128u32);
                    }
                    if comptime!(unit == 0) {
                        put_piece::<N>(
                            places_base + place * 8192,
                            sums_0,
                            bias,
                            gate,
                            row_in_unit,
                            lane,
                            column,
                            columns,
                            gate_0,
                            gate_1,
                            piece,
                            finish,
                            sum_only,
                        );
                    } else {
                        put_piece::<N>(
                            places_base + place * 8192,
                            sums_last,
                            bias,
                            gate,
                            row_in_unit,
                            lane,
                            column,
                            columns,
                            gate_0,
                            gate_1,
                            piece,
                            finish,
                            sum_only,
                        );
                    }
                    tma::fence();
                    named_sync(warpgroup + 1, 128u32);
                    if thread == 0 {
                        let start = place as usize * comptime!(64 * width);
                        let piece_column = column + comptime!((piece * width) as u32);
                        let tile = &places[start..start + comptime!(64 * width)];
                        if comptime!(sum_only) {
                            tma::store_2d(tile, kept, unit_row as i32, piece_column as i32);
                        } else {
                            tma::store_2d(tile, d, unit_row as i32, piece_column as i32);
                        }
                        tma::commit();
                        if comptime!(finish.reads() && use_of + pieces < units * per_unit) {
                            tma::wait_read(0usize);
                            bring::<O>(
                                barrier::at(there, place as usize),
                                read,
                                &mut places,
                                start,
                                row,
                                column,
                                comptime!(use_of + pieces),
                                per_unit,
                                width,
                            );
                        }
                    }
                }
            }
            round += 1;
            item += 1;
            if comptime!(tiles.in_turns) {
                if item < last {
                    let record = items[(2 * item) as usize];
                    skip = record.extract(3usize) - record.extract(2usize);
                }
            }
        }
        more = item < last;
    }
    if thread == 0 {
        tma::wait_read(0usize);
    }
}
