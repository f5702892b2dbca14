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
use super::copy::{TileOrigin, issue, load_fragment, store_rows};
use super::epilogue::{inverse, show_output, stage_scaled, write_log_sums};
use super::online_softmax::{OnlineSoftmax, RowStatistics, softmax_first_tile, softmax_tile};
use super::ping_pong::{end_turn, give_first_turn, wait_for_turn};
use super::scheduled_tiles::{Four, WorkItem, fill_queries, fill_record, partial_mask_of, work_item_at};
use crate::block_mask::{BlockMaskShape, apply_mask, mask_bits};
use crate::tile_scheduler::MAX_WORK_ITEMS;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::generic_to_shared;
use flow_cube::Issue;
use flow_cube::barrier::{
    self, COUNTER_WORDS, came_last, count_warp_by_lanes, counter_at, named_sync, reset_counters, wait,
};
use flow_cube::register::{load_shared, read, store_shared};
use flow_cube::tma;
use flow_cube::warpgroup::warpgroup_and_thread;
use flow_cube::wgmma;

/// Stages of keys, and of values.
const STAGES: usize = 2;

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
    lse_rows: u32,
    head_count: u32,
    queries: u32,
    item: &WorkItem,
    warpgroup: u32,
    thread: u32,
    statistics: &RowStatistics,
) {
    let at = (item.batch * head_count + item.head) * lse_rows;
    let first_query = item.first_query;
    write_log_sums(
        lse,
        at,
        lse_rows,
        first_query,
        queries,
        warpgroup,
        thread,
        statistics,
    );
}

/// As [`forward`](super::forward::forward), for a mask. `assignments` has for each block where its items and its records begin and how many
/// there are, then the items; `record_words` are the records once more, word by word. See [`tile_scheduler`](crate::tile_scheduler). Queries have `head_count` heads.
#[cube(launch_unchecked)]
pub fn forward_persistent<E: Numeric, NS: Size, NO: Size, NP: Size, NQ: Size, NW: Size>(
    q: &TensorMap<E, Tiled>,
    k: &TensorMap<E, Tiled>,
    v: &TensorMap<E, Tiled>,
    k_2: &TensorMap<E, Tiled>,
    v_2: &TensorMap<E, Tiled>,
    o: &mut TensorMap<E, Tiled>,
    lse: &mut [f32],
    assignments: &[Four],
    records: &[Four],
    record_words: &[u32],
    partial_masks: &[Vector<u32, NW>],
    head_count: u32,
    queries: u32,
    lse_rows: u32,
    scale_log2: f32,
    #[comptime] tiles: ForwardTiles,
    #[define(E)] _element: ElemType,
    #[define(NS, NO, NP, NQ, NW)] _vectors: [usize; 5],
) {
    let panels = comptime!(tiles.panels());
    let rows = comptime!(tiles.queries());
    let last_warp = comptime!(4 * tiles.warpgroups as u32 - 1);
    let tile_elements = comptime!(tiles.keys * 64 * tiles.panels());
    let tile_units = comptime!((tiles.keys * 8 * tiles.panels()) as u32);
    let shape = comptime!(BlockMaskShape {
        masked: true,
        row_groups: tiles.warpgroups,
        columns: tiles.keys
    });

    let q_tile: Shared<[E]> = Shared::new_aligned_slice(comptime!(rows * 64 * panels), 1024usize);
    let o_tile: Shared<[E]> = Shared::new_aligned_slice(comptime!(rows * 64 * panels), 1024usize);
    let k_tiles: Shared<[E]> = Shared::new_aligned_slice(comptime!(tile_elements * STAGES), 1024usize);
    let v_tiles: Shared<[E]> = Shared::new_aligned_slice(comptime!(tile_elements * STAGES), 1024usize);
    let q_full: Shared<[u64]> = Shared::new_slice(1usize);
    let q_full = barrier::first(&q_full);
    let k_full: Shared<[u64]> = Shared::new_slice(comptime!(STAGES));
    let k_full = barrier::first(&k_full);
    let v_full: Shared<[u64]> = Shared::new_slice(comptime!(STAGES));
    let v_full = barrier::first(&v_full);
    // Of keys, of values, of queries.
    let mut used: Shared<[u32]> = Shared::new_slice(comptime!((2 * STAGES + 1) * COUNTER_WORDS));
    // Whether an item has an overflowed row; behind the last one, whether any has.
    let mut overflowed_items: Shared<[u32]> = Shared::new_slice(comptime!(MAX_WORK_ITEMS + 1));
    let overflowed: Shared<[u32]> = Shared::new_slice(comptime!(tiles.threads() as usize));
    // What a thread's two rows of the output before are multiplied by.
    let inverses: Shared<[u32]> = Shared::new_slice(comptime!(2 * tiles.threads() as usize));

    let share = assignments[CUBE_POS_X as usize];
    let first_item = share.extract(0usize);
    let items = share.extract(1usize);
    let first_record = share.extract(2usize);

    if UNIT_POS == 0 {
        barrier::init(q_full);
        #[unroll]
        for s in 0..STAGES {
            barrier::init(barrier::at(k_full, s));
            barrier::init(barrier::at(v_full, s));
        }
        tma::fence();
    }
    #[unroll]
    for i in 0..comptime!(MAX_WORK_ITEMS / tiles.threads() as usize) {
        overflowed_items[comptime!(i * tiles.threads() as usize) + UNIT_POS as usize] = 0u32;
    }
    if UNIT_POS == 0 {
        overflowed_items[comptime!(MAX_WORK_ITEMS)] = 0u32;
    }
    reset_counters(&mut used, comptime!(2 * STAGES + 1));
    sync_cube();

    let (warpgroup, thread) = warpgroup_and_thread(comptime!(tiles.warpgroups), true);
    let lane = thread % 32;
    // For the warp that starts the first copies; a vote, so that the compiler takes it for the same in all of its threads.
    let first_warp = plane_any(UNIT_POS < 32);
    // SAFETY: the address of the block's own shared memory; by the sizes of the tiles, what is read and
    // written there stays within it.
    let q_base = generic_to_shared::<E>(unsafe { q_tile.as_ptr_unchecked() });
    // SAFETY: as above.
    let o_base = generic_to_shared::<E>(unsafe { o_tile.as_ptr_unchecked() });
    // SAFETY: as above.
    let k_base = generic_to_shared::<E>(unsafe { k_tiles.as_ptr_unchecked() });
    // SAFETY: as above.
    let v_base = generic_to_shared::<E>(unsafe { v_tiles.as_ptr_unchecked() });
    // SAFETY: as above.
    let used_base = generic_to_shared::<u32>(unsafe { used.as_ptr_unchecked() });
    // SAFETY: as above.
    let overflow_base = generic_to_shared::<u32>(unsafe { overflowed.as_ptr_unchecked() });
    let q_at = wgmma::descriptor(q_base + warpgroup * 8192, 16u32, 1024u32);
    let k_at = wgmma::descriptor(k_base, 16u32, 1024u32);
    let v_at = wgmma::descriptor(v_base, comptime!((tiles.keys * 128) as u32), 1024u32);

    // SAFETY: the address of the block's own shared memory; by the sizes of the tiles, what is read and
    // written there stays within it.
    let scale_address = generic_to_shared::<u32>(unsafe { inverses.as_ptr_unchecked() }) + UNIT_POS * 8;
    let queries_counter = counter_at(used_base, comptime!(2 * STAGES as u32).runtime());
    let mut softmax = OnlineSoftmax::new(overflow_base + UNIT_POS * 4);
    give_first_turn(warpgroup);
    // Stages go around from the first tile of the block to its last; these are of the tile that is looked at.
    let mut stage = 1u32;
    let mut phase = 1u32;
    let mut q_phase = 0u32;
    // What is gone through: all items; then, if rows overflowed, each of their items twice, to find the rows and with care for them.
    let mut time = 0u32;
    let mut item = 0u32;
    let mut record = 0u32;
    let mut item_end = read::<u32>(items);
    let mut record_end = share.extract(3usize);
    let mut more = item < item_end;
    while more {
        let start = read::<u32>(item);
        let start_record = read::<u32>(record);
        let first = work_item_at(assignments, first_item + item);
        if first_warp {
            fill_queries::<E>(q_full, q, &q_tile, &first, tiles);
            #[unroll]
            for s in 0..STAGES {
                let at = record + comptime!(s as u32);
                if at < record_end {
                    let to = stage ^ comptime!(1 - s as u32);
                    let at = first_record + at;
                    fill_record::<E>(k_full, k, k_2, &k_tiles, to, records, at, tiles);
                    fill_record::<E>(v_full, v, v_2, &v_tiles, to, records, at, tiles);
                }
            }
        }
        // Records are read two tiles ahead, so that no copy and no product waits for them; behind the last there are two that nobody
        // needs.
        let partial_mask = partial_mask_of(record_words, first_record + record, warpgroup);
        let mut next_partial_mask = partial_mask_of(record_words, first_record + record + 1, warpgroup);
        // What the count of the values that were used last gave. Their copy starts behind the products of the next tile, see
        // `forward`.
        let mut freed_by = 0u32.runtime();
        // The first record of the item, and that behind its last.
        let mut begin = read::<u32>(record);
        let mut end = record + first.records;

        stage ^= 1;
        phase ^= 1 - stage;
        let bits = mask_bits::<NW>(partial_masks, partial_mask, thread, shape);
        wait(q_full, q_phase);
        q_phase ^= 1;
        let mut fragment =
            load_fragment::<NQ>(q_base, warpgroup, thread, comptime!(tiles.q_register_steps), rows);
        let q_users = count_warp_by_lanes(lane, queries_counter, last_warp);
        if came_last(q_users, last_warp) && item + 1 < item_end {
            let behind = work_item_at(assignments, first_item + item + 1);
            fill_queries::<E>(q_full, q, &q_tile, &behind, tiles);
        }
        wait(barrier::at(k_full, stage as usize), phase);
        let issued = issue::<NS, NQ>(
            fragment,
            q_at,
            k_at + u64::cast_from(stage * tile_units),
            comptime!(tiles.scores()),
            comptime!(tiles.q_register_steps),
        );
        let mut later_partial_mask = partial_mask_of(record_words, first_record + record + 2, warpgroup);
        let mut scores = wgmma::wait::<NS>(issued, comptime!(tiles.scores()), 0usize);
        let k_users = count_warp_by_lanes(lane, counter_at(used_base, stage), last_warp);
        scores = apply_mask::<NS>(scores, partial_mask, bits, shape);
        if came_last(k_users, last_warp) && record + 2 < record_end {
            fill_record::<E>(
                k_full,
                k,
                k_2,
                &k_tiles,
                stage,
                records,
                first_record + record + 2,
                tiles,
            );
        }
        if time < 2 {
            softmax.clear_overflow();
        }
        let mut probabilities = softmax_first_tile::<NS, NP>(&mut softmax, scores, scale_log2, tiles);
        let mut output = Vector::<f32, NO>::new(0.0f32);
        record += 1;
        let mut running = record < record_end;
        while running {
            // Between two items: what the rows came to, and the queries of the next. The last values are still to be multiplied.
            if record == end {
                record_overflow(&softmax, &mut overflowed_items, item);
                let statistics = RowStatistics::of(&softmax);
                let by = inverse(&statistics);
                store_shared(scale_address, u32::reinterpret(by.0));
                store_shared(scale_address + 4, u32::reinterpret(by.1));
                let own = work_item_at(assignments, first_item + item);
                write_item_sums(
                    lse,
                    lse_rows,
                    head_count,
                    queries,
                    &own,
                    warpgroup,
                    thread,
                    &statistics,
                );
                if time < 2 {
                    softmax.clear_overflow();
                }
                softmax.reset();
                item += 1;
                begin = read::<u32>(record);
                end = record + work_item_at(assignments, first_item + item).records;
                wait(q_full, q_phase);
                q_phase ^= 1;
                fragment =
                    load_fragment::<NQ>(q_base, warpgroup, thread, comptime!(tiles.q_register_steps), rows);
                let q_users = count_warp_by_lanes(lane, queries_counter, last_warp);
                if came_last(q_users, last_warp) && item + 1 < item_end {
                    let behind = work_item_at(assignments, first_item + item + 1);
                    fill_queries::<E>(q_full, q, &q_tile, &behind, tiles);
                }
                // The output before has left shared memory.
                tma::wait_read(0usize);
                named_sync(warpgroup + 1, 128u32);
            }
            // All tiles but the block's first. The loop ends before an item's first tile and behind it.
            let mut in_item = true.runtime();
            let mut began = false.runtime();
            while in_item {
                let v_stage = stage;
                let v_phase = phase;
                let partial_mask = next_partial_mask;
                next_partial_mask = later_partial_mask;
                later_partial_mask = partial_mask_of(record_words, first_record + record + 2, warpgroup);
                stage ^= 1;
                phase ^= 1 - stage;
                let bits = mask_bits::<NW>(partial_masks, partial_mask, thread, shape);
                wait(barrier::at(k_full, stage as usize), phase);
                wait_for_turn(warpgroup);
                let issued = issue::<NS, NQ>(
                    fragment,
                    q_at,
                    k_at + u64::cast_from(stage * tile_units),
                    comptime!(tiles.scores()),
                    comptime!(tiles.q_register_steps),
                );
                wait(barrier::at(v_full, v_stage as usize), v_phase);
                let added = wgmma::issue_registers::<NO, NP>(
                    output,
                    probabilities,
                    v_at + u64::cast_from(v_stage * tile_units),
                    comptime!(tiles.values()),
                );
                if came_last(freed_by, last_warp) {
                    fill_record::<E>(
                        v_full,
                        v,
                        v_2,
                        &v_tiles,
                        stage,
                        records,
                        first_record + record,
                        tiles,
                    );
                }
                let mut scores = wgmma::wait::<NS>(issued, comptime!(tiles.scores()), 1usize);
                let k_users = count_warp_by_lanes(lane, counter_at(used_base, stage), last_warp);
                scores = apply_mask::<NS>(scores, partial_mask, bits, shape);
                if came_last(k_users, last_warp) && record + 2 < record_end {
                    fill_record::<E>(
                        k_full,
                        k,
                        k_2,
                        &k_tiles,
                        stage,
                        records,
                        first_record + record + 2,
                        tiles,
                    );
                }
                output = wgmma::wait::<NO>(added, comptime!(tiles.values()), 0usize);
                end_turn(warpgroup);
                let v_users = count_warp_by_lanes(
                    lane,
                    counter_at(used_base, v_stage + comptime!(STAGES as u32)),
                    last_warp,
                );
                let (weights, scaled) = softmax_tile::<NS, NP, NO>(
                    &mut softmax,
                    scores,
                    output,
                    record == begin,
                    scale_log2,
                    tiles,
                );
                probabilities = weights;
                output = scaled;
                freed_by = read::<u32>(v_users);
                began = record == begin;
                record += 1;
                in_item = !began && record != end;
            }
            // They were, beside the first scores of this item: the output of the item before leaves.
            if began {
                let by = (
                    f32::reinterpret(load_shared(scale_address)),
                    f32::reinterpret(load_shared(scale_address + 4)),
                );
                stage_scaled::<NO>(o_base, warpgroup, thread, output, by, tiles);
                let before = work_item_at(assignments, first_item + item - 1);
                store_output::<E>(&o_tile, o, &before, warpgroup, thread, tiles);
                output = Vector::<f32, NO>::new(0.0f32);
                softmax.update_limits();
            }
            running = record < record_end;
        }
        wait(barrier::at(v_full, stage as usize), phase);
        let added = wgmma::issue_registers::<NO, NP>(
            output,
            probabilities,
            v_at + u64::cast_from(stage * tile_units),
            comptime!(tiles.values()),
        );
        record_overflow(&softmax, &mut overflowed_items, item);
        let statistics = RowStatistics::of(&softmax);
        let by = inverse(&statistics);
        let own = work_item_at(assignments, first_item + item);
        write_item_sums(
            lse,
            lse_rows,
            head_count,
            queries,
            &own,
            warpgroup,
            thread,
            &statistics,
        );
        tma::wait_read(0usize);
        named_sync(warpgroup + 1, 128u32);
        let output = wgmma::wait::<NO>(added, comptime!(tiles.values()), 0usize);
        // Not to be filled again, but counted, so that the count begins anew.
        count_warp_by_lanes(
            lane,
            counter_at(used_base, stage + comptime!(STAGES as u32)),
            last_warp,
        );
        stage_scaled::<NO>(o_base, warpgroup, thread, output, by, tiles);
        store_output::<E>(&o_tile, o, &own, warpgroup, thread, tiles);
        item += 1;

        // Items with overflowed rows once more, which is seldom. What was written is written over.
        tma::wait_all();
        sync_cube();
        // Votes, so that the compiler takes what follows from them for the same in all threads, and keeps it in uniform registers.
        more = plane_any(overflowed_items[comptime!(MAX_WORK_ITEMS)] != 0);
        if more {
            if time == 1 {
                time = 2u32.runtime();
                item = start;
                record = start_record;
            } else {
                // The first item that overflowed; or the next one, whose record follows.
                if time == 0 {
                    item = 0u32.runtime();
                    record = 0u32.runtime();
                }
                while item < items && plane_any(overflowed_items[item as usize] == 0) {
                    record += work_item_at(assignments, first_item + item).records;
                    item += 1;
                }
                time = 1u32.runtime();
                more = item < items;
            }
            if more {
                item_end = item + 1;
                record_end = record + work_item_at(assignments, first_item + item).records;
            }
            sync_cube();
        }
    }
}
