//! The forward kernel with one block for each work tile; see [`forward_persistent`](super::forward_persistent) for the other.
//! `Q Kᵀ` of a tile and `P V` of the tile before are issued together; then comes the softmax of the tile
//! ([`online_softmax`](super::online_softmax)).

use super::ForwardTiles;
use super::copy::{TileOrigin, fill, issue, load_fragment, prefetch_tile, stage_before_last, store_rows};
use super::epilogue::{stage_output, write_log_sums};
use super::online_softmax::{OnlineSoftmax, RowStatistics, softmax_first_tile, softmax_tile};
use super::ping_pong::{end_turn, give_first_turn, wait_for_turn};
use crate::block_mask::{
    BlockMaskEntry, BlockMaskShape, WorkTileHalf, apply_mask, block_number, entry_at, mask_bits,
    partial_mask_at, prefetched_tile, tile_at, tile_rows_in_segment, work_tile_at, work_tile_of,
};
use crate::softmax::mask_out_of_bounds;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::generic_to_shared;
use flow_cube::Issue;
use flow_cube::barrier::{
    self, COUNTER_WORDS, came_last, count_warp_by_lanes, counter_at, reset_counters, wait,
};
use flow_cube::register::read;
use flow_cube::tma;
use flow_cube::warpgroup::warpgroup_and_thread;
use flow_cube::wgmma;

/// Starts the copy of tile `tile` of keys, or of values. For a whole warp.
#[cube]
fn fill_keys<E: Numeric>(
    barrier: u32,
    first: &TensorMap<E, Tiled>,
    second: &TensorMap<E, Tiled>,
    to: &[E],
    stage: usize,
    batch: u32,
    head: u32,
    tile: u32,
    first_keys: u32,
    #[comptime] tiles: ForwardTiles,
) {
    let panels = comptime!(tiles.panels());
    let rows = comptime!(tiles.keys);
    let at = stage * comptime!(tiles.keys * 64 * tiles.panels());
    let (_, row) = tile_rows_in_segment(
        tile,
        first_keys,
        0u32.runtime(),
        rows,
        comptime!(tiles.two_segments),
    );
    let origin = TileOrigin { batch, head, row };
    if comptime!(tiles.two_segments) {
        if tile * comptime!(tiles.keys as u32) < first_keys {
            fill::<E>(barrier, first, to, at, &origin, rows, panels);
        } else {
            fill::<E>(barrier, second, to, at, &origin, rows, panels);
        }
    } else {
        fill::<E>(barrier, first, to, at, &origin, rows, panels);
    }
}

/// `o = softmax(q kᵀ scale) v` and the log-sum-exp of each row, `lse [B, H, lse_rows]`. One block for `tiles.queries()`
/// queries of a head. Keys and values have `first_keys` rows in `k` and `v`, and `second_keys` in `k_2` and `v_2`.
/// `work_tiles`, `entries` and `partial_masks` are of the mask; see [`block_mask`](crate::block_mask).
#[cube(launch_unchecked)]
pub fn forward<E: Numeric, NS: Size, NO: Size, NP: Size, NQ: Size, NW: Size>(
    q: &TensorMap<E, Tiled>,
    k: &TensorMap<E, Tiled>,
    v: &TensorMap<E, Tiled>,
    k_2: &TensorMap<E, Tiled>,
    v_2: &TensorMap<E, Tiled>,
    o: &mut TensorMap<E, Tiled>,
    lse: &mut [f32],
    work_tiles: &[WorkTileHalf],
    entries: &[BlockMaskEntry],
    partial_masks: &[Vector<u32, NW>],
    queries: u32,
    lse_rows: u32,
    first_keys: u32,
    second_keys: u32,
    group: u32,
    scale_log2: f32,
    #[comptime] tiles: ForwardTiles,
    #[define(E)] _element: ElemType,
    #[define(NS, NO, NP, NQ, NW)] _vectors: [usize; 5],
) {
    let panels = comptime!(tiles.panels());
    let rows = comptime!(tiles.queries());
    let tile_keys = comptime!(tiles.keys);
    let stages = comptime!(tiles.stages);
    let last_warp = comptime!(4 * tiles.warpgroups as u32 - 1);
    let tile_elements = comptime!(tiles.keys * 64 * tiles.panels());
    let tile_units = comptime!((tiles.keys * 8 * tiles.panels()) as u32);
    let two_segments = comptime!(tiles.two_segments);
    let shape = comptime!(BlockMaskShape {
        masked: tiles.masked,
        row_groups: tiles.warpgroups,
        columns: tiles.keys
    });

    let q_tile: Shared<[E]> = Shared::new_aligned_slice(comptime!(rows * 64 * panels), 1024usize);
    let k_tiles: Shared<[E]> = Shared::new_aligned_slice(comptime!(tile_elements * stages), 1024usize);
    let v_tiles: Shared<[E]> = Shared::new_aligned_slice(comptime!(tile_elements * stages), 1024usize);
    let q_full: Shared<[u64]> = Shared::new_slice(1usize);
    let q_full = barrier::first(&q_full);
    let k_full: Shared<[u64]> = Shared::new_slice(stages);
    let k_full = barrier::first(&k_full);
    let v_full: Shared<[u64]> = Shared::new_slice(stages);
    let v_full = barrier::first(&v_full);
    let mut used: Shared<[u32]> = Shared::new_slice(comptime!(2 * stages * COUNTER_WORDS));
    let mut any_overflowed: Shared<[u32]> = Shared::new_slice(1usize);
    let overflowed: Shared<[u32]> = Shared::new_slice(comptime!(tiles.threads() as usize));

    let per_tile = comptime!(tiles.keys as u32);
    let mut all = first_keys.div_ceil(per_tile);
    if comptime!(tiles.two_segments) {
        all += second_keys.div_ceil(per_tile);
    }
    let work_tile = work_tile_of(work_tiles, all, shape);

    if UNIT_POS == 0 {
        barrier::init(q_full);
        #[unroll]
        for s in 0..stages {
            barrier::init(barrier::at(k_full, s));
            barrier::init(barrier::at(v_full, s));
        }
        any_overflowed[0] = 0u32;
        tma::fence();
    }
    reset_counters(&mut used, comptime!(2 * stages));
    sync_cube();
    let (batch, head, block) = (work_tile.sample, work_tile.head, work_tile.block);
    let (begin, tile_count) = (work_tile.begin, work_tile.tiles);
    let kv_head = head / group;
    let first_query = block * comptime!(rows as u32);

    // Where descriptors of queries are needed in each tile. With queries in registers it cost 2 % at 128 channels.
    let (warpgroup, thread) = warpgroup_and_thread(
        comptime!(tiles.warpgroups),
        comptime!(tiles.q_register_steps == 0),
    );
    let lane = thread % 32;
    // For the warp that starts the first copies; a vote, so that the compiler takes it for the same in all of its threads.
    let first_warp = plane_any(UNIT_POS < 32);
    // SAFETY: the address of the block's own shared memory; by the sizes of the tiles, what is read and
    // written there stays within it.
    let q_base = generic_to_shared::<E>(unsafe { q_tile.as_ptr_unchecked() });
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

    let mut softmax = OnlineSoftmax::new(overflow_base + UNIT_POS * 4);
    if comptime!(tiles.ping_pong) {
        give_first_turn(warpgroup);
    }
    let mut again = true.runtime();
    while again {
        if first_warp {
            let origin = TileOrigin {
                batch,
                head,
                row: first_query,
            };
            fill::<E>(q_full, q, &q_tile, 0usize, &origin, rows, panels);
            #[unroll]
            for s in 0..stages {
                let tile = prefetched_tile(work_tile.prefetched, s, shape);
                if comptime!(s as u32) < tile_count {
                    fill_keys::<E>(
                        barrier::at(k_full, s),
                        k,
                        k_2,
                        &k_tiles,
                        s,
                        batch,
                        kv_head,
                        tile,
                        first_keys,
                        tiles,
                    );
                    fill_keys::<E>(
                        barrier::at(v_full, s),
                        v,
                        v_2,
                        &v_tiles,
                        s,
                        batch,
                        kv_head,
                        tile,
                        first_keys,
                        tiles,
                    );
                }
            }
        }
        // While its first tiles are on their way, this block has the queries of the block behind it brought to the cache: blocks of masks are
        // short. Of others the cache would lose them again, and the backward kernels' blocks are too long as well.
        if comptime!(tiles.masked) && plane_any(UNIT_POS / 32 == last_warp) {
            let behind = block_number() + comptime!(tiles.blocks_at_a_time());
            if behind < CUBE_COUNT_X * CUBE_COUNT_Y * CUBE_COUNT_Z {
                let next = work_tile_at(work_tiles, behind);
                let origin = TileOrigin {
                    batch: next.sample,
                    head: next.head,
                    row: next.block * comptime!(rows as u32),
                };
                prefetch_tile::<E>(q, &origin, panels);
            }
        }
        let partial_mask = partial_mask_at(entries, begin, warpgroup, shape);
        let bits = mask_bits::<NW>(partial_masks, partial_mask, thread, shape);
        wait(q_full, 0u32);
        let fragment =
            load_fragment::<NQ>(q_base, warpgroup, thread, comptime!(tiles.q_register_steps), rows);
        wait(k_full, 0u32);
        let issued = issue::<NS, NQ>(
            fragment,
            q_at,
            k_at,
            comptime!(tiles.scores()),
            comptime!(tiles.q_register_steps),
        );
        let mut scores = wgmma::wait::<NS>(issued, comptime!(tiles.scores()), 0usize);
        let k_users = count_warp_by_lanes(lane, used_base, last_warp);
        if came_last(k_users, last_warp) {
            let next = comptime!(stages as u32).runtime();
            if next < tile_count {
                let tile = tile_at(entries, begin + next, shape);
                fill_keys::<E>(
                    k_full, k, k_2, &k_tiles, 0usize, batch, kv_head, tile, first_keys, tiles,
                );
            }
        }
        scores = apply_mask::<NS>(scores, partial_mask, bits, shape);
        let (exist, _) =
            tile_rows_in_segment(0u32.runtime(), first_keys, second_keys, tile_keys, two_segments);
        if comptime!(!tiles.masked) && exist < per_tile {
            scores = mask_out_of_bounds::<NS>(scores, (lane % 4) * 2, exist, tile_keys);
        }
        let mut probabilities = softmax_first_tile::<NS, NP>(&mut softmax, scores, scale_log2, tiles);
        let mut output = Vector::<f32, NO>::new(0.0f32);

        let mut stage = 0u32;
        let mut phase = 0u32;
        // The list is read two tiles ahead, so that no copy and no product waits for it.
        let mut next_v = tile_at(entries, begin + comptime!(stages as u32), shape);
        let mut next_partial_mask = partial_mask_at(entries, begin + 1, warpgroup, shape);
        let mut later_partial_mask = partial_mask_at(entries, begin + 2, warpgroup, shape);
        // Of the values that were used last: what their count gave, and which tile their stage gets. The copy starts behind the
        // products of the next tile. Where the count is, its branch would part the exponentials from what goes between them.
        let mut freed_by = 0u32.runtime();
        let mut freed_for = 0u32.runtime();
        for at in 1..tile_count {
            let (next_k, ahead) = entry_at(entries, begin + at + comptime!(stages as u32), warpgroup, shape);
            let v_stage = stage;
            let v_phase = phase;
            stage += 1;
            if stage == comptime!(stages as u32) {
                stage = 0;
                phase ^= 1;
            }
            let partial_mask = next_partial_mask;
            next_partial_mask = later_partial_mask;
            later_partial_mask = if comptime!(stages == 2) {
                ahead
            } else {
                partial_mask_at(entries, begin + at + 2, warpgroup, shape)
            };
            let bits = mask_bits::<NW>(partial_masks, partial_mask, thread, shape);
            wait(barrier::at(k_full, stage as usize), phase);
            if comptime!(tiles.ping_pong) {
                wait_for_turn(warpgroup);
            }
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
            if comptime!(tiles.ping_pong) {
                end_turn(warpgroup);
            }
            if comptime!(stages > 1)
                && came_last(freed_by, last_warp)
                && at - 2 + comptime!(stages as u32) < tile_count
            {
                let to = stage_before_last(stage, stages) as usize;
                fill_keys::<E>(
                    barrier::at(v_full, to),
                    v,
                    v_2,
                    &v_tiles,
                    to,
                    batch,
                    kv_head,
                    freed_for,
                    first_keys,
                    tiles,
                );
            }
            let mut scores = wgmma::wait::<NS>(issued, comptime!(tiles.scores()), 1usize);
            let k_users = count_warp_by_lanes(lane, counter_at(used_base, stage), last_warp);
            scores = apply_mask::<NS>(scores, partial_mask, bits, shape);
            let (exist, _) = tile_rows_in_segment(at, first_keys, second_keys, tile_keys, two_segments);
            if comptime!(!tiles.masked) && exist < per_tile {
                scores = mask_out_of_bounds::<NS>(scores, (lane % 4) * 2, exist, tile_keys);
            }
            if came_last(k_users, last_warp) && at + comptime!(stages as u32) < tile_count {
                let to = stage as usize;
                fill_keys::<E>(
                    barrier::at(k_full, to),
                    k,
                    k_2,
                    &k_tiles,
                    to,
                    batch,
                    kv_head,
                    next_k,
                    first_keys,
                    tiles,
                );
            }
            output = wgmma::wait::<NO>(added, comptime!(tiles.values()), 0usize);
            let v_users = count_warp_by_lanes(
                lane,
                counter_at(used_base, v_stage + comptime!(stages as u32)),
                last_warp,
            );
            let (weights, scaled) =
                softmax_tile::<NS, NP, NO>(&mut softmax, scores, output, false, scale_log2, tiles);
            probabilities = weights;
            output = scaled;
            freed_by = read::<u32>(v_users);
            freed_for = read::<u32>(next_v);
            // With one stage the next product waits for this copy.
            if comptime!(stages == 1)
                && came_last(v_users, last_warp)
                && at - 1 + comptime!(stages as u32) < tile_count
            {
                let to = v_stage as usize;
                fill_keys::<E>(
                    barrier::at(v_full, to),
                    v,
                    v_2,
                    &v_tiles,
                    to,
                    batch,
                    kv_head,
                    next_v,
                    first_keys,
                    tiles,
                );
            }
            next_v = next_k;
        }
        wait(barrier::at(v_full, stage as usize), phase);
        let added = wgmma::issue_registers::<NO, NP>(
            output,
            probabilities,
            v_at + u64::cast_from(stage * tile_units),
            comptime!(tiles.values()),
        );
        let sums = RowStatistics::of(&softmax);
        let output = wgmma::wait::<NO>(added, comptime!(tiles.values()), 0usize);

        // The output takes the place of this warpgroup's queries.
        stage_output::<NO>(q_base, warpgroup, thread, output, &sums, tiles);
        if thread == 0 {
            let origin = TileOrigin {
                batch,
                head,
                row: first_query + warpgroup * 64,
            };
            store_rows::<E>(&q_tile, o, warpgroup, &origin, rows, panels, Issue::SingleThread);
        }
        let at = (batch * CUBE_COUNT_Y + head) * lse_rows;
        write_log_sums(lse, at, lse_rows, first_query, queries, warpgroup, thread, &sums);

        if thread == 0 {
            tma::wait_read(0usize);
        }
        // Once more if a row overflowed; none overflows twice.
        if softmax.overflowed {
            any_overflowed[0] = 1u32;
        }
        sync_cube();
        again = any_overflowed[0] != 0;
        if again {
            // What was written is written over.
            tma::wait_all();
            sync_cube();
            if UNIT_POS == 0 {
                any_overflowed[0] = 0u32;
                barrier::renew(q_full);
                #[unroll]
                for s in 0..stages {
                    barrier::renew(barrier::at(k_full, s));
                    barrier::renew(barrier::at(v_full, s));
                }
                tma::fence();
            }
            sync_cube();
        }
    }
}
