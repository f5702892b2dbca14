//! The persistent forward kernel for masks: one block for each multiprocessor goes through the work items that the host has
//! assigned to it.
//!
//! Where a mask leaves few tiles, prologue and epilogue count: a block is launched, reads its list, waits for its first tiles, and
//! at the end for its output to leave shared memory; with 128 channels no other block hides that. Here the tiles of all work items
//! (128 queries of a head each) form one sequence. The first tiles and the queries of an item are loaded while the item before ends,
//! its first `Q Kᵀ` is issued together with the last `P V` of the item before, and the output is stored during the next tile.
//!
//! The mainloop has nothing else in it. The code of an item's boundary stands outside: inside, every iteration would jump over it,
//! and a jump waits for instructions (`bench/results/attention-ladder.md`, steps 62 to 68).
//!
//! See [`tile_scheduler`](crate::tile_scheduler) for the lists, and [`online_softmax`](super::online_softmax) for rows that overflow.

use super::ForwardTiles;
use super::arguments::{PersistentProblem, QkvMaps, WorkSchedule};
use super::copy::{TileOrigin, issue, store_rows};
use super::epilogue::{inverse, show_output, stage_scaled, write_log_sums};
use super::online_softmax::{OnlineSoftmax, RowStatistics, softmax_first_tile, softmax_tile};
use super::persistent_block::{
    PersistentBlock, Progress, STAGES, persistent_block, start_copies, take_queries,
};
use super::ping_pong::{end_turn, give_first_turn, wait_for_turn};
use super::scheduled_tiles::{Four, WorkItem, fill_record, partial_mask_of, work_item_at};
use crate::block_mask::{apply_mask, mask_bits};
use crate::tile_scheduler::MAX_WORK_ITEMS;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use flow_cube::Issue;
use flow_cube::barrier::{self, came_last, count_warp_by_lanes, counter_at, named_sync, wait};
use flow_cube::register::{load_shared, read, store_shared};
use flow_cube::tma;
use flow_cube::wgmma;

/// Has the accelerator write a warpgroup's staged output to the rows of its item. For all of its threads, which meet.
#[cube]
fn store_output<E: Numeric>(
    o_tile: &[E],
    o: &mut TensorMap<E, Tiled>,
    item: &WorkItem,
    warpgroup: u32,
    thread: u32,
    #[comptime] tiles: ForwardTiles,
) {
    show_output(warpgroup);
    if plane_any(thread < 32) {
        let origin = TileOrigin {
            batch: item.batch,
            head: item.head,
            row: item.first_query + warpgroup * 64,
        };
        store_rows::<E>(
            o_tile,
            o,
            warpgroup,
            &origin,
            comptime!(tiles.queries()),
            comptime!(tiles.panels()),
            Issue::ElectedLane,
        );
    }
}

/// Notes that an item has an overflowed row, if it has. For all threads of a warp.
#[cube]
fn record_overflow(softmax: &OnlineSoftmax, overflowed_items: &mut [u32], item: u32) {
    // A vote: under a branch that threads may take differently nothing that follows would be in uniform registers.
    if plane_any(softmax.overflowed) {
        overflowed_items[item as usize] = 1u32;
        overflowed_items[comptime!(MAX_WORK_ITEMS)] = 1u32;
    }
}

/// Writes the log-sum-exp of a thread's two rows of an item.
#[cube]
fn write_item_sums(
    lse: &mut [f32],
    problem: &PersistentProblem,
    item: &WorkItem,
    warpgroup: u32,
    thread: u32,
    statistics: &RowStatistics,
) {
    let at = (item.batch * problem.head_count + item.head) * problem.lse_rows;
    let first_query = item.first_query;
    write_log_sums(
        lse,
        at,
        problem.lse_rows,
        first_query,
        problem.queries,
        warpgroup,
        thread,
        statistics,
    );
}

/// What goes from one tile to the next.
#[derive(CubeType)]
struct TileState<NO: Size, NP: Size, NQ: Size> {
    next_partial_mask: u32,
    /// What the count of the values that were used last gave. Their copy starts behind the products of the next tile, see
    /// [`forward`](super::forward).
    freed_by: u32,
    /// The first record of the item, and that behind its last.
    begin: u32,
    end: u32,
    /// What registers keep of the item's queries.
    fragment: Vector<u32, NQ>,
    later_partial_mask: u32,
    /// Of the tile before, whose values are still to be multiplied.
    probabilities: Vector<u32, NP>,
    output: Vector<f32, NO>,
}

/// The block's first tile, of the item `first`.
#[cube]
fn first_tile<E: Numeric, NS: Size, NO: Size, NP: Size, NQ: Size, NW: Size>(
    block: &PersistentBlock<E>,
    schedule: &WorkSchedule<NW>,
    progress: &mut Progress,
    softmax: &mut OnlineSoftmax,
    first: &WorkItem,
    #[comptime] tiles: ForwardTiles,
) -> TileState<NO, NP, NQ> {
    let last_warp = comptime!(4 * tiles.warpgroups as u32 - 1);
    let tile_units = comptime!((tiles.keys * 8 * tiles.panels()) as u32);
    let shape = comptime!(tiles.mask_shape());
    let (first_record, warpgroup) = (block.first_record, block.warpgroup);
    // Records are read two tiles ahead, so that no copy and no product waits for them; behind the last there are two that nobody
    // needs.
    let partial_mask = partial_mask_of(&schedule.record_words, first_record + progress.record, warpgroup);
    let next_partial_mask = partial_mask_of(
        &schedule.record_words,
        first_record + progress.record + 1,
        warpgroup,
    );
    let begin = read::<u32>(progress.record);
    let end = progress.record + first.records;

    progress.stage ^= 1;
    progress.phase ^= 1 - progress.stage;
    let bits = mask_bits::<NW>(&schedule.partial_masks, partial_mask, block.thread, shape);
    let fragment = take_queries::<E, NQ, NW>(block, schedule, progress, tiles);
    wait(
        barrier::at(block.keys.full, progress.stage as usize),
        progress.phase,
    );
    let issued = issue::<NS, NQ>(
        fragment,
        block.q_at,
        block.k_at + u64::cast_from(progress.stage * tile_units),
        comptime!(tiles.scores()),
        comptime!(tiles.q_register_steps),
    );
    let later_partial_mask = partial_mask_of(
        &schedule.record_words,
        first_record + progress.record + 2,
        warpgroup,
    );
    let mut scores = wgmma::wait::<NS>(issued, comptime!(tiles.scores()), 0usize);
    let k_users = count_warp_by_lanes(block.lane, counter_at(block.used_base, progress.stage), last_warp);
    scores = apply_mask::<NS>(scores, partial_mask, bits, shape);
    if came_last(k_users, last_warp) && progress.record + 2 < progress.record_end {
        let at = first_record + progress.record + 2;
        fill_record::<E>(&block.keys, progress.stage, &schedule.records, at, tiles);
    }
    if progress.time < 2 {
        softmax.clear_overflow();
    }
    let probabilities = softmax_first_tile::<NS, NP>(softmax, scores, block.scale_log2, tiles);
    TileState::<NO, NP, NQ> {
        next_partial_mask,
        freed_by: 0u32.runtime(),
        begin,
        end,
        fragment,
        later_partial_mask,
        probabilities,
        output: Vector::<f32, NO>::new(0.0f32),
    }
}

/// Behind the last tile of an item, whose values are still to be multiplied: what its rows came to.
#[cube]
fn finish_item<E: Numeric, NW: Size>(
    block: &PersistentBlock<E>,
    schedule: &WorkSchedule<NW>,
    problem: &PersistentProblem,
    progress: &Progress,
    softmax: &mut OnlineSoftmax,
    overflowed_items: &mut [u32],
    lse: &mut [f32],
) {
    record_overflow(&*softmax, overflowed_items, progress.item);
    let statistics = RowStatistics::of(&*softmax);
    let by = inverse(&statistics);
    store_shared(block.scale_address, u32::reinterpret(by.0));
    store_shared(block.scale_address + 4, u32::reinterpret(by.1));
    let own = work_item_at(&schedule.assignments, block.first_item + progress.item);
    write_item_sums(lse, problem, &own, block.warpgroup, block.thread, &statistics);
    if progress.time < 2 {
        softmax.clear_overflow();
    }
    softmax.reset();
}

/// All tiles but the block's first. Ends before an item's first tile and behind it; whether it was behind.
#[cube]
fn mainloop<E: Numeric, NS: Size, NO: Size, NP: Size, NQ: Size, NW: Size>(
    block: &PersistentBlock<E>,
    schedule: &WorkSchedule<NW>,
    progress: &mut Progress,
    state: &mut TileState<NO, NP, NQ>,
    softmax: &mut OnlineSoftmax,
    #[comptime] tiles: ForwardTiles,
) -> bool {
    let last_warp = comptime!(4 * tiles.warpgroups as u32 - 1);
    let tile_units = comptime!((tiles.keys * 8 * tiles.panels()) as u32);
    let shape = comptime!(tiles.mask_shape());
    let (first_record, warpgroup, lane) = (block.first_record, block.warpgroup, block.lane);
    let mut in_item = true.runtime();
    let mut began = false.runtime();
    while in_item {
        let v_stage = read::<u32>(progress.stage);
        let v_phase = read::<u32>(progress.phase);
        let partial_mask = read::<u32>(state.next_partial_mask);
        state.next_partial_mask = state.later_partial_mask;
        state.later_partial_mask = partial_mask_of(
            &schedule.record_words,
            first_record + progress.record + 2,
            warpgroup,
        );
        progress.stage ^= 1;
        progress.phase ^= 1 - progress.stage;
        let bits = mask_bits::<NW>(&schedule.partial_masks, partial_mask, block.thread, shape);
        wait(
            barrier::at(block.keys.full, progress.stage as usize),
            progress.phase,
        );
        wait_for_turn(warpgroup);
        let issued = issue::<NS, NQ>(
            state.fragment,
            block.q_at,
            block.k_at + u64::cast_from(progress.stage * tile_units),
            comptime!(tiles.scores()),
            comptime!(tiles.q_register_steps),
        );
        wait(barrier::at(block.values.full, v_stage as usize), v_phase);
        let added = wgmma::issue_registers::<NO, NP>(
            state.output,
            state.probabilities,
            block.v_at + u64::cast_from(v_stage * tile_units),
            comptime!(tiles.values()),
        );
        if came_last(state.freed_by, last_warp) {
            let at = first_record + progress.record;
            fill_record::<E>(&block.values, progress.stage, &schedule.records, at, tiles);
        }
        let mut scores = wgmma::wait::<NS>(issued, comptime!(tiles.scores()), 1usize);
        let k_users = count_warp_by_lanes(lane, counter_at(block.used_base, progress.stage), last_warp);
        scores = apply_mask::<NS>(scores, partial_mask, bits, shape);
        if came_last(k_users, last_warp) && progress.record + 2 < progress.record_end {
            let at = first_record + progress.record + 2;
            fill_record::<E>(&block.keys, progress.stage, &schedule.records, at, tiles);
        }
        state.output = wgmma::wait::<NO>(added, comptime!(tiles.values()), 0usize);
        end_turn(warpgroup);
        let v_counter = counter_at(block.used_base, v_stage + comptime!(STAGES as u32));
        let v_users = count_warp_by_lanes(lane, v_counter, last_warp);
        let (weights, scaled) = softmax_tile::<NS, NP, NO>(
            softmax,
            scores,
            state.output,
            progress.record == state.begin,
            block.scale_log2,
            tiles,
        );
        state.probabilities = weights;
        state.output = scaled;
        state.freed_by = read::<u32>(v_users);
        began = progress.record == state.begin;
        progress.record += 1;
        in_item = !began && progress.record != state.end;
    }
    began
}

/// After all items: those with overflowed rows once more, which is seldom. What was written is written over. Whether there is one;
/// `start` and `start_record` are where the items began that were gone through.
#[cube]
fn repeat_overflowed<E: Numeric>(
    block: &PersistentBlock<E>,
    assignments: &[Four],
    progress: &mut Progress,
    overflowed_items: &[u32],
    start: u32,
    start_record: u32,
) -> bool {
    // Votes, so that the compiler takes what follows from them for the same in all threads, and keeps it in uniform registers.
    let mut more = plane_any(overflowed_items[comptime!(MAX_WORK_ITEMS)] != 0);
    if more {
        if progress.time == 1 {
            progress.time = 2u32.runtime();
            progress.item = start;
            progress.record = start_record;
        } else {
            // The first item that overflowed; or the next one, whose record follows.
            if progress.time == 0 {
                progress.item = 0u32.runtime();
                progress.record = 0u32.runtime();
            }
            while progress.item < block.items && plane_any(overflowed_items[progress.item as usize] == 0) {
                progress.record += work_item_at(assignments, block.first_item + progress.item).records;
                progress.item += 1;
            }
            progress.time = 1u32.runtime();
            more = progress.item < block.items;
        }
        if more {
            progress.item_end = progress.item + 1;
            let own = work_item_at(assignments, block.first_item + progress.item);
            progress.record_end = progress.record + own.records;
        }
        sync_cube();
    }
    more
}

/// As [`forward`](super::forward::forward), for a mask and for persistent blocks; see [`tile_scheduler`](crate::tile_scheduler).
#[cube(launch_unchecked)]
pub fn forward_persistent<E: Numeric, NS: Size, NO: Size, NP: Size, NQ: Size, NW: Size>(
    maps: &QkvMaps<E>,
    o: &mut TensorMap<E, Tiled>,
    lse: &mut [f32],
    schedule: &WorkSchedule<NW>,
    problem: &PersistentProblem,
    #[comptime] tiles: ForwardTiles,
    #[define(E)] _element: ElemType,
    #[define(NS, NO, NP, NQ, NW)] _vectors: [usize; 5],
) {
    let last_warp = comptime!(4 * tiles.warpgroups as u32 - 1);
    let tile_units = comptime!((tiles.keys * 8 * tiles.panels()) as u32);
    let block = persistent_block::<E, NW>(maps, schedule, problem.scale_log2, tiles);
    let mut overflowed_items = block.overflowed_items.clone();
    let (warpgroup, thread) = (block.warpgroup, block.thread);
    let mut softmax = OnlineSoftmax::new(block.overflow_address);
    give_first_turn(warpgroup);
    let mut progress = Progress {
        stage: 1u32.runtime(),
        phase: 1u32.runtime(),
        q_phase: 0u32.runtime(),
        time: 0u32.runtime(),
        item: 0u32.runtime(),
        record: 0u32.runtime(),
        item_end: read::<u32>(block.items),
        record_end: block.records,
    };
    let mut more = progress.item < progress.item_end;
    while more {
        let start = read::<u32>(progress.item);
        let start_record = read::<u32>(progress.record);
        let first = work_item_at(&schedule.assignments, block.first_item + progress.item);
        if block.first_warp {
            start_copies::<E, NW>(&block, schedule, &progress, &first, tiles);
        }
        let mut state =
            first_tile::<E, NS, NO, NP, NQ, NW>(&block, schedule, &mut progress, &mut softmax, &first, tiles);
        progress.record += 1;
        let mut running = progress.record < progress.record_end;
        while running {
            // Between two items: what the rows came to, and the queries of the next. The last values are still to be multiplied.
            if progress.record == state.end {
                finish_item::<E, NW>(
                    &block,
                    schedule,
                    problem,
                    &progress,
                    &mut softmax,
                    &mut overflowed_items,
                    lse,
                );
                progress.item += 1;
                let own = work_item_at(&schedule.assignments, block.first_item + progress.item);
                state.begin = read::<u32>(progress.record);
                state.end = progress.record + own.records;
                state.fragment = take_queries::<E, NQ, NW>(&block, schedule, &mut progress, tiles);
                // The output before has left shared memory.
                tma::wait_read(0usize);
                named_sync(warpgroup + 1, 128u32);
            }
            let began = mainloop::<E, NS, NO, NP, NQ, NW>(
                &block,
                schedule,
                &mut progress,
                &mut state,
                &mut softmax,
                tiles,
            );
            // They were multiplied, beside the first scores of this item: the output of the item before leaves.
            if began {
                let by = (
                    f32::reinterpret(load_shared(block.scale_address)),
                    f32::reinterpret(load_shared(block.scale_address + 4)),
                );
                stage_scaled::<NO>(block.o_base, warpgroup, thread, state.output, by, tiles);
                let before = work_item_at(&schedule.assignments, block.first_item + progress.item - 1);
                store_output::<E>(&block.o_tile, o, &before, warpgroup, thread, tiles);
                state.output = Vector::<f32, NO>::new(0.0f32);
                softmax.update_limits();
            }
            running = progress.record < progress.record_end;
        }
        wait(
            barrier::at(block.values.full, progress.stage as usize),
            progress.phase,
        );
        let added = wgmma::issue_registers::<NO, NP>(
            state.output,
            state.probabilities,
            block.v_at + u64::cast_from(progress.stage * tile_units),
            comptime!(tiles.values()),
        );
        record_overflow(&softmax, &mut overflowed_items, progress.item);
        let statistics = RowStatistics::of(&softmax);
        let by = inverse(&statistics);
        let own = work_item_at(&schedule.assignments, block.first_item + progress.item);
        write_item_sums(lse, problem, &own, warpgroup, thread, &statistics);
        tma::wait_read(0usize);
        named_sync(warpgroup + 1, 128u32);
        let output = wgmma::wait::<NO>(added, comptime!(tiles.values()), 0usize);
        // Not to be filled again, but counted, so that the count begins anew.
        let v_counter = counter_at(block.used_base, progress.stage + comptime!(STAGES as u32));
        count_warp_by_lanes(block.lane, v_counter, last_warp);
        stage_scaled::<NO>(block.o_base, warpgroup, thread, output, by, tiles);
        store_output::<E>(&block.o_tile, o, &own, warpgroup, thread, tiles);
        progress.item += 1;

        tma::wait_all();
        sync_cube();
        more = repeat_overflowed::<E>(
            &block,
            &schedule.assignments,
            &mut progress,
            &overflowed_items,
            start,
            start_record,
        );
    }
}
