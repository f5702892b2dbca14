//! The kernel: persistent blocks that take one tile of the schedule after another.
//!
//! Steps of operands pass through a ring of stages. There is no warp that only copies: the warp that is last to have read a
//! stage starts the copy of the step that takes its place, across the borders of tiles. Warpgroups share a tile (cooperative), or
//! compute a tile each (ping-pong): the ring brings one tile's steps after the other's.

// Conditions of kernels that are known when they are compiled stay apart from those that are not.
#![allow(clippy::collapsible_if)]

use super::Record;
use super::copy::fill;
use super::cursor::{ITEM, advance, enter};
use super::epilogue::{scale_sums, stage_subtile};
use super::tiles::Tiles;
use crate::epilogue::CompiledEpilogue;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::generic_to_shared;
use flow_cube::Issue;
use flow_cube::barrier::{self, arrive_and_expect, came_last, count_warp, named_arrive, named_sync, wait};
use flow_cube::tma;
use flow_cube::warpgroup::warpgroup_and_thread;
use flow_cube::wgmma;

/// From a panel of 64 rows of a tile to the next, in bytes; of tiles that are one panel, 16 (PTX ISA: not used).
fn leading(transposed: bool) -> u32 {
    if transposed { 8192 } else { 16 }
}

/// Starts bringing subtile `number` (of `subtiles_per_row_group` for each 64 rows) of what the epilogue reads to its place. For one thread.
#[cube]
fn load_subtile<O: Numeric>(
    loaded: u32,
    other: &TensorMap<O, Tiled>,
    places: &mut [O],
    start: usize,
    row: u32,
    column: u32,
    #[comptime] number: usize,
    #[comptime] subtiles_per_row_group: usize,
    #[comptime] width: usize,
) {
    arrive_and_expect(loaded, 8192u32.runtime(), Issue::SingleThread);
    tma::load_2d::<O>(
        other,
        &places[start..start + comptime!(64 * width)],
        loaded,
        (row + comptime!((number / subtiles_per_row_group * 64) as u32)) as i32,
        (column + comptime!((number % subtiles_per_row_group * width) as u32)) as i32,
        Issue::SingleThread,
    );
}

/// Adds the second pair's product of `steps` steps, the item's last, to sums of codes that were scaled. `first_stage` and `first_phase`
/// are those of its first step.
#[cube]
fn add_low_rank<E: Numeric, N: Size>(
    scaled: Vector<f32, N>,
    steps: u32,
    first_stage: u32,
    first_phase: u32,
    a_at: u64,
    b_at: u64,
    full: u32,
    used_base: u32,
    lane: u32,
    a: &TensorMap<E, Tiled>,
    b: &TensorMap<E, Tiled>,
    low_rank_a: &TensorMap<E, Tiled>,
    low_rank_b: &TensorMap<E, Tiled>,
    a_tiles: &mut [E],
    b_tiles: &mut [E],
    cursor: &mut Array<u32>,
    items: &[Record],
    last: u32,
    first_steps: u32,
    #[comptime] tiles: Tiles,
) -> Vector<f32, N> {
    let stages = comptime!(tiles.stages as u32);
    let last_reader = comptime!(tiles.readers() as u32 - 1);
    let a_stage = comptime!((tiles.a_elements() / 8) as u32);
    let b_stage = comptime!((tiles.b_elements() / 8) as u32);
    let mut sums = scaled;
    let mut stage = first_stage;
    let mut phase = first_phase;
    for _ in 0..steps {
        wait(barrier::at(full, stage as usize), phase);
        let a_now = a_at + u64::cast_from(stage * a_stage);
        let b_now = b_at + u64::cast_from(stage * b_stage);
        let issued = wgmma::issue::<N>(sums, a_now, b_now, comptime!(tiles.low_rank_products()));
        sums = wgmma::wait::<N>(issued, comptime!(tiles.low_rank_products()), 0usize);
        let users = count_warp(lane, used_base + stage * 4, last_reader);
        if came_last(users, last_reader) && cursor[ITEM] < last {
            fill::<E>(
                barrier::at(full, stage as usize),
                a,
                b,
                low_rank_a,
                low_rank_b,
                a_tiles,
                b_tiles,
                stage as usize,
                &*cursor,
                first_steps,
                0u32,
                0u32,
                tiles,
                Issue::ElectedLane,
            );
        }
        advance(cursor, items, last, 1u32);
        stage += 1;
        if stage == stages {
            stage = 0u32;
            phase ^= 1;
        }
    }
    sums
}

/// `D = epilogue(op(A) op(B) + op(A₂) op(B₂) + bias)`, by items (see [`schedule`](crate::schedule)). `starts` says where
/// the items of each block begin; what the epilogue reads is `read`, and `kept` is where sums are kept. `rows` and `columns` are those of D, `first_steps` the steps of the first pair of operands; `frame_stride`
/// and `row_stride` are a convolution's (see [`KernelRows`](crate::problem::KernelRows)).
/// Bias and gate are read in pairs, and `gate_start` and `gate_stride` are in pairs. Codes have scales, of A's rows (`row_scales`) and of
/// B's (`column_scales`).
#[cube(launch_unchecked)]
pub fn matmul<E: Numeric, O: Numeric, N: Size>(
    a: &TensorMap<E, Tiled>,
    b: &TensorMap<E, Tiled>,
    low_rank_a: &TensorMap<E, Tiled>,
    low_rank_b: &TensorMap<E, Tiled>,
    d: &mut TensorMap<O, Tiled>,
    read: &TensorMap<O, Tiled>,
    kept: &mut TensorMap<O, Tiled>,
    bias: &[u32],
    gate: &[u32],
    row_scales: &[f32],
    column_scales: &[f32],
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
    row_scale_start: u32,
    column_scale_start: u32,
    #[comptime] tiles: Tiles,
    #[comptime] epilogue: CompiledEpilogue,
    #[define(E, O)] _elements: [ElemType; 2],
    #[define(N)] _vector: usize,
) {
    let stages = comptime!(tiles.stages);
    let last_reader = comptime!(tiles.readers() as u32 - 1);
    let row_groups = comptime!(tiles.row_groups);
    let subtile_buffers = comptime!(tiles.subtile_buffers);
    let width = comptime!(epilogue.subtile_columns());
    let subtiles_per_row_group = comptime!(tiles.columns / epilogue.subtile_columns());
    let a_stage = comptime!((tiles.a_elements() / 8) as u32);
    let b_stage = comptime!((tiles.b_elements() / 8) as u32);

    let mut a_tiles: Shared<[E]> =
        Shared::new_aligned_slice(comptime!(tiles.a_elements() * stages), 1024usize);
    let mut b_tiles: Shared<[E]> =
        Shared::new_aligned_slice(comptime!(tiles.b_elements() * stages), 1024usize);
    let mut places: Shared<[O]> = Shared::new_aligned_slice(
        comptime!(tiles.warpgroups * subtile_buffers * 64 * width),
        1024usize,
    );
    let full: Shared<[u64]> = Shared::new_slice(stages);
    let full = barrier::first(&full);
    let loaded: Shared<[u64]> = Shared::new_slice(comptime!(tiles.warpgroups * subtile_buffers));
    let loaded = barrier::first(&loaded);
    let mut used: Shared<[u32]> = Shared::new_slice(stages);

    if UNIT_POS == 0 {
        #[unroll]
        for s in 0..stages {
            barrier::init(barrier::at(full, s));
            used[s] = 0u32;
        }
        #[unroll]
        for p in 0..comptime!(tiles.warpgroups * subtile_buffers) {
            barrier::init(barrier::at(loaded, p));
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
                low_rank_a,
                low_rank_b,
                &mut a_tiles,
                &mut b_tiles,
                s as usize,
                &cursor,
                first_steps,
                frame_stride,
                row_stride,
                tiles,
                Issue::SingleThread,
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
    let unit_first = if comptime!(tiles.ping_pong) {
        0u32.runtime()
    } else {
        warpgroup * comptime!(row_groups as u32)
    };
    let a_at = wgmma::descriptor(
        a_base + unit_first * 8192,
        comptime!(leading(tiles.a_transposed())),
        1024u32,
    );
    let b_at = wgmma::descriptor(b_base, comptime!(leading(tiles.b_transposed())), 1024u32);
    let place_first = warpgroup * comptime!(subtile_buffers as u32);

    let mut item = first;
    let mut stage = 0u32;
    let mut phase = 0u32;
    let mut round = 0u32;
    let mut skip = 0u32;
    if comptime!(tiles.ping_pong) {
        if warpgroup == 1 && first < last {
            let record = items[(2 * first) as usize];
            skip = record.extract(3usize) - record.extract(2usize);
        }
    }
    if comptime!(tiles.ping_pong) {
        if warpgroup == 1 && first < last {
            // The first turn is the other's.
            named_arrive(4u32, 256u32);
        }
    }
    let mut more = first < last;
    while more {
        if comptime!(tiles.ping_pong) {
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
            if comptime!(epilogue.reads()) {
                if thread == 0 {
                    tma::wait_read(0usize);
                    #[unroll]
                    for p in 0..subtile_buffers {
                        let place = place_first + comptime!(p as u32);
                        load_subtile::<O>(
                            barrier::at(loaded, place as usize),
                            read,
                            &mut places,
                            place as usize * comptime!(64 * width),
                            row,
                            column,
                            p,
                            subtiles_per_row_group,
                            width,
                        );
                    }
                }
            }

            if comptime!(tiles.ping_pong) {
                // A barrier tells one phase from the next, not from the one after: the other warpgroup must have waited for
                // all of its steps.
                named_sync(4 + warpgroup, 256u32);
            }
            wait(barrier::at(full, stage as usize), phase);
            let a_now = a_at + u64::cast_from(stage * a_stage);
            let b_now = b_at + u64::cast_from(stage * b_stage);
            // The first step is peeled: sums that enter a loop as zeros make ptxas wait after each product.
            let mut sums_0 = wgmma::issue_from_zero::<N>(a_now, b_now, comptime!(tiles.products()));
            if comptime!(tiles.is_promoted()) {
                sums_0 = wgmma::wait::<N>(sums_0, comptime!(tiles.products()), 0usize);
            }
            let mut sums_1 = sums_0;
            if comptime!(row_groups == 2) {
                sums_1 = wgmma::issue_from_zero::<N>(a_now + 512, b_now, comptime!(tiles.products()));
            }
            let mut before = stage;
            stage += 1;
            if stage == comptime!(stages as u32) {
                stage = 0u32;
                phase ^= 1;
            }
            let main_steps = if comptime!(tiles.adds_low_rank_to_scaled()) {
                first_steps
            } else {
                steps
            };
            for _ in 1..main_steps {
                wait(barrier::at(full, stage as usize), phase);
                let a_now = a_at + u64::cast_from(stage * a_stage);
                let b_now = b_at + u64::cast_from(stage * b_stage);
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
                let users = count_warp(lane, used_base + before * 4, last_reader);
                if came_last(users, last_reader) && cursor[ITEM] < last {
                    fill::<E>(
                        barrier::at(full, before as usize),
                        a,
                        b,
                        low_rank_a,
                        low_rank_b,
                        &mut a_tiles,
                        &mut b_tiles,
                        before as usize,
                        &cursor,
                        first_steps,
                        frame_stride,
                        row_stride,
                        tiles,
                        Issue::ElectedLane,
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
            if comptime!(tiles.ping_pong) {
                if item + 1 < last {
                    named_arrive(5 - warpgroup, 256u32);
                }
            }
            let sums_0 = wgmma::wait::<N>(sums_0, comptime!(tiles.products()), 0usize);
            let mut sums_last = sums_0;
            if comptime!(row_groups == 2) {
                sums_last = wgmma::wait::<N>(sums_1, comptime!(tiles.products()), 0usize);
            }
            let users = count_warp(lane, used_base + before * 4, last_reader);
            if came_last(users, last_reader) && cursor[ITEM] < last {
                fill::<E>(
                    barrier::at(full, before as usize),
                    a,
                    b,
                    low_rank_a,
                    low_rank_b,
                    &mut a_tiles,
                    &mut b_tiles,
                    before as usize,
                    &cursor,
                    first_steps,
                    frame_stride,
                    row_stride,
                    tiles,
                    Issue::ElectedLane,
                );
            }
            advance(&mut cursor, items, last, 1u32);

            let row_of_thread = row + row_in_unit;
            let scaled_0 = if comptime!(tiles.is_e4m3()) {
                let row_scale_0 = row_scales[(row_scale_start + min(row_of_thread, rows - 1)) as usize];
                let row_scale_1 = row_scales[(row_scale_start + min(row_of_thread + 8, rows - 1)) as usize];
                scale_sums::<N>(
                    sums_0,
                    column_scales,
                    column_scale_start,
                    row_scale_0,
                    row_scale_1,
                    column,
                    columns,
                    lane,
                    comptime!(tiles.columns),
                )
            } else {
                sums_0
            };
            let sums_first = if comptime!(tiles.adds_low_rank_to_scaled()) {
                add_low_rank::<E, N>(
                    scaled_0,
                    steps - first_steps,
                    stage,
                    phase,
                    a_at,
                    b_at,
                    full,
                    used_base,
                    lane,
                    a,
                    b,
                    low_rank_a,
                    low_rank_b,
                    &mut a_tiles,
                    &mut b_tiles,
                    &mut cursor,
                    items,
                    last,
                    first_steps,
                    tiles,
                )
            } else {
                scaled_0
            };
            if comptime!(tiles.adds_low_rank_to_scaled()) {
                let at = stage + steps - first_steps;
                phase ^= (at / comptime!(stages as u32)) % 2;
                stage = at % comptime!(stages as u32);
            }
            if comptime!(tiles.is_e4m3() && row_groups == 2) {
                let row_scale_0 = row_scales[(row_scale_start + min(row_of_thread + 64, rows - 1)) as usize];
                let row_scale_1 = row_scales[(row_scale_start + min(row_of_thread + 72, rows - 1)) as usize];
                sums_last = scale_sums::<N>(
                    sums_last,
                    column_scales,
                    column_scale_start,
                    row_scale_0,
                    row_scale_1,
                    column,
                    columns,
                    lane,
                    comptime!(tiles.columns),
                );
            }

            #[unroll]
            for number in 0..comptime!(row_groups * subtiles_per_row_group) {
                let row_group = comptime!(number / subtiles_per_row_group);
                let subtile = comptime!(number % subtiles_per_row_group);
                let first_row = row + comptime!((row_group * 64) as u32);
                let mut gate_0 = 0u32;
                let mut gate_1 = 0u32;
                if comptime!(epilogue.gated()) {
                    // Rows beyond the result take the last row's gate; they are not written.
                    gate_0 = min(first_row + row_in_unit, rows - 1) / tokens * gate_stride + gate_start;
                    gate_1 = min(first_row + row_in_unit + 8, rows - 1) / tokens * gate_stride + gate_start;
                }
                #[unroll]
                for kind in 0..comptime!(1 + epilogue.keeps_sum() as usize) {
                    // Sums first, then the result.
                    let sum_only = comptime!(epilogue.keeps_sum() && kind == 0);
                    let use_of = comptime!(number * (1 + epilogue.keeps_sum() as usize) + kind);
                    let place = place_first + comptime!((use_of % subtile_buffers) as u32);
                    if comptime!(epilogue.reads()) {
                        let uses = comptime!((row_groups * subtiles_per_row_group / subtile_buffers) as u32);
                        let turn = round * uses + comptime!((use_of / subtile_buffers) as u32);
                        wait(barrier::at(loaded, place as usize), turn % 2);
                    } else {
                        if thread == 0 {
                            tma::wait_read(comptime!(subtile_buffers - 1));
                        }
                        named_sync(warpgroup + 1, 128u32);
                    }
                    if comptime!(row_group == 0) {
                        stage_subtile::<N>(
                            places_base + place * 8192,
                            sums_first,
                            bias,
                            gate,
                            row_in_unit,
                            lane,
                            column,
                            columns,
                            gate_0,
                            gate_1,
                            subtile,
                            epilogue,
                            sum_only,
                        );
                    } else {
                        stage_subtile::<N>(
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
                            subtile,
                            epilogue,
                            sum_only,
                        );
                    }
                    tma::fence();
                    named_sync(warpgroup + 1, 128u32);
                    if thread == 0 {
                        let start = place as usize * comptime!(64 * width);
                        let piece_column = column + comptime!((subtile * width) as u32);
                        let tile = &places[start..start + comptime!(64 * width)];
                        if comptime!(sum_only) {
                            tma::store_2d(tile, kept, first_row as i32, piece_column as i32);
                        } else {
                            tma::store_2d(tile, d, first_row as i32, piece_column as i32);
                        }
                        tma::commit();
                        if comptime!(
                            epilogue.reads()
                                && use_of + subtile_buffers < row_groups * subtiles_per_row_group
                        ) {
                            tma::wait_read(0usize);
                            load_subtile::<O>(
                                barrier::at(loaded, place as usize),
                                read,
                                &mut places,
                                start,
                                row,
                                column,
                                comptime!(use_of + subtile_buffers),
                                subtiles_per_row_group,
                                width,
                            );
                        }
                    }
                }
            }
            round += 1;
            item += 1;
            if comptime!(tiles.ping_pong) {
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
