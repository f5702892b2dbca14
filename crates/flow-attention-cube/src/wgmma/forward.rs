//! The forward kernel with one block for each work tile; see [`forward_persistent`](super::forward_persistent) for the other.
//! `Q Kᵀ` of a tile and `P V` of the tile before are issued together; then comes the softmax of the tile
//! ([`online_softmax`](super::online_softmax)).

use super::ForwardTiles;
use super::arguments::{BlockMaskArgs, ForwardProblem, QkvMaps};
use super::copy::{TileOrigin, fill, issue, load_fragment, prefetch_tile, stage_before_last, store_rows};
use super::epilogue::{stage_output, write_log_sums};
use super::kv_stages::{KvHead, KvStages, fill_stage, init_barriers, renew_barriers};
use super::online_softmax::{OnlineSoftmax, RowStatistics, softmax_first_tile, softmax_tile};
use super::ping_pong::{end_turn, give_first_turn, wait_for_turn};
use crate::block_mask::{
    WorkTile, WorkTileHalf, apply_mask, block_number, entry_at, mask_bits, partial_mask_at, prefetched_tile,
    tile_at, tile_rows_in_segment, work_tile_at, work_tile_of,
};
use crate::softmax::mask_out_of_bounds;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use flow_cube::Issue;
use flow_cube::barrier::{
    self, COUNTER_WORDS, came_last, count_warp_by_lanes, counter_at, reset_counters, wait,
};
use flow_cube::register::{read, shared_address};
use flow_cube::tma;
use flow_cube::warpgroup::warpgroup_and_thread;
use flow_cube::wgmma;

/// A block's work and shared memory, and a thread's place in it. `_base` are byte addresses of shared memory, `_at` descriptors.
#[derive(CubeType)]
struct ForwardBlock<E: Numeric> {
    work: WorkTile,
    first_query: u32,
    kv_head: KvHead,
    keys: KvStages<E>,
    values: KvStages<E>,
    /// Barrier of the queries.
    q_full: u32,
    q_base: u32,
    /// Counters of the stages that warps are done with: of keys, then of values.
    used_base: u32,
    q_at: u64,
    k_at: u64,
    v_at: u64,
    warpgroup: u32,
    /// Of the warpgroup.
    thread: u32,
    lane: u32,
    scale_log2: f32,
}

/// Starts the copies of the queries and of the first tiles. For a whole warp.
#[cube]
fn start_copies<E: Numeric>(
    block: &ForwardBlock<E>,
    q: &TensorMap<E, Tiled>,
    q_tile: &[E],
    #[comptime] tiles: ForwardTiles,
) {
    let (rows, panels) = comptime!((tiles.queries(), tiles.panels()));
    let origin = TileOrigin {
        batch: block.work.sample,
        head: block.work.head,
        row: block.first_query,
    };
    fill::<E>(block.q_full, q, q_tile, 0usize, &origin, rows, panels);
    #[unroll]
    for s in 0..comptime!(tiles.stages) {
        let tile = prefetched_tile(block.work.prefetched, s, comptime!(tiles.mask_shape()));
        if comptime!(s as u32) < block.work.tiles {
            fill_stage::<E>(&block.keys, &block.kv_head, s, tile, tiles);
            fill_stage::<E>(&block.values, &block.kv_head, s, tile, tiles);
        }
    }
}

/// While its first tiles are on their way, a block has the queries of the block behind it brought to the cache: blocks of masks are
/// short. Of others the cache would lose them again, and the backward kernels' blocks are too long as well.
#[cube]
fn prefetch_queries_behind<E: Numeric>(
    q: &TensorMap<E, Tiled>,
    work_tiles: &[WorkTileHalf],
    #[comptime] tiles: ForwardTiles,
) {
    let last_warp = comptime!(4 * tiles.warpgroups as u32 - 1);
    if comptime!(tiles.masked) && plane_any(UNIT_POS / 32 == last_warp) {
        let behind = block_number() + comptime!(tiles.blocks_at_a_time());
        if behind < CUBE_COUNT_X * CUBE_COUNT_Y * CUBE_COUNT_Z {
            let next = work_tile_at(work_tiles, behind);
            let origin = TileOrigin {
                batch: next.sample,
                head: next.head,
                row: next.block * comptime!(tiles.queries() as u32),
            };
            prefetch_tile::<E>(q, &origin, comptime!(tiles.panels()));
        }
    }
}

/// The first tile: what registers keep of the queries, and the tile's probabilities.
#[cube]
fn first_tile<E: Numeric, NS: Size, NP: Size, NQ: Size, NW: Size>(
    block: &ForwardBlock<E>,
    mask: &BlockMaskArgs<NW>,
    softmax: &mut OnlineSoftmax,
    #[comptime] tiles: ForwardTiles,
) -> (Vector<u32, NQ>, Vector<u32, NP>) {
    let tile_keys = comptime!(tiles.keys);
    let last_warp = comptime!(4 * tiles.warpgroups as u32 - 1);
    let shape = comptime!(tiles.mask_shape());
    let partial_mask = partial_mask_at(&mask.entries, block.work.begin, block.warpgroup, shape);
    let bits = mask_bits::<NW>(&mask.partial_masks, partial_mask, block.thread, shape);
    wait(block.q_full, 0u32);
    let fragment = load_fragment::<NQ>(
        block.q_base,
        block.warpgroup,
        block.thread,
        comptime!(tiles.q_register_steps),
        comptime!(tiles.queries()),
    );
    wait(block.keys.full, 0u32);
    let issued = issue::<NS, NQ>(
        fragment,
        block.q_at,
        block.k_at,
        comptime!(tiles.scores()),
        comptime!(tiles.q_register_steps),
    );
    let mut scores = wgmma::wait::<NS>(issued, comptime!(tiles.scores()), 0usize);
    let k_users = count_warp_by_lanes(block.lane, block.used_base, last_warp);
    if came_last(k_users, last_warp) {
        let next = comptime!(tiles.stages as u32).runtime();
        if next < block.work.tiles {
            let tile = tile_at(&mask.entries, block.work.begin + next, shape);
            fill_stage::<E>(&block.keys, &block.kv_head, 0usize, tile, tiles);
        }
    }
    scores = apply_mask::<NS>(scores, partial_mask, bits, shape);
    let (exist, _) = tile_rows_in_segment(
        0u32.runtime(),
        block.kv_head.first_keys,
        block.kv_head.second_keys,
        tile_keys,
        comptime!(tiles.two_segments),
    );
    if comptime!(!tiles.masked) && exist < comptime!(tiles.keys as u32) {
        scores = mask_out_of_bounds::<NS>(scores, (block.lane % 4) * 2, exist, tile_keys);
    }
    let probabilities = softmax_first_tile::<NS, NP>(softmax, scores, block.scale_log2, tiles);
    (fragment, probabilities)
}

/// The other tiles: the sums over values, with the product of the last tile in flight. `fragment` and `first` are of [`first_tile`].
#[cube]
fn mainloop<E: Numeric, NS: Size, NO: Size, NP: Size, NQ: Size, NW: Size>(
    block: &ForwardBlock<E>,
    mask: &BlockMaskArgs<NW>,
    softmax: &mut OnlineSoftmax,
    fragment: Vector<u32, NQ>,
    first: Vector<u32, NP>,
    #[comptime] tiles: ForwardTiles,
) -> Vector<f32, NO> {
    let tile_keys = comptime!(tiles.keys);
    let stages = comptime!(tiles.stages);
    let last_warp = comptime!(4 * tiles.warpgroups as u32 - 1);
    let tile_units = comptime!((tiles.keys * 8 * tiles.panels()) as u32);
    let shape = comptime!(tiles.mask_shape());
    let (begin, tile_count) = (block.work.begin, block.work.tiles);
    let (warpgroup, lane) = (block.warpgroup, block.lane);

    let mut probabilities = first;
    let mut output = Vector::<f32, NO>::new(0.0f32);
    let mut stage = 0u32;
    let mut phase = 0u32;
    // The list is read two tiles ahead, so that no copy and no product waits for it.
    let mut next_v = tile_at(&mask.entries, begin + comptime!(stages as u32), shape);
    let mut next_partial_mask = partial_mask_at(&mask.entries, begin + 1, warpgroup, shape);
    let mut later_partial_mask = partial_mask_at(&mask.entries, begin + 2, warpgroup, shape);
    // Of the values that were used last: what their count gave, and which tile their stage gets. The copy starts behind the
    // products of the next tile. Where the count is, its branch would part the exponentials from what goes between them.
    let mut freed_by = 0u32.runtime();
    let mut freed_for = 0u32.runtime();
    for at in 1..tile_count {
        let ahead = begin + at + comptime!(stages as u32);
        let (next_k, ahead) = entry_at(&mask.entries, ahead, warpgroup, shape);
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
            partial_mask_at(&mask.entries, begin + at + 2, warpgroup, shape)
        };
        let bits = mask_bits::<NW>(&mask.partial_masks, partial_mask, block.thread, shape);
        wait(barrier::at(block.keys.full, stage as usize), phase);
        if comptime!(tiles.ping_pong) {
            wait_for_turn(warpgroup);
        }
        let issued = issue::<NS, NQ>(
            fragment,
            block.q_at,
            block.k_at + u64::cast_from(stage * tile_units),
            comptime!(tiles.scores()),
            comptime!(tiles.q_register_steps),
        );
        wait(barrier::at(block.values.full, v_stage as usize), v_phase);
        let added = wgmma::issue_registers::<NO, NP>(
            output,
            probabilities,
            block.v_at + u64::cast_from(v_stage * tile_units),
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
            fill_stage::<E>(&block.values, &block.kv_head, to, freed_for, tiles);
        }
        let mut scores = wgmma::wait::<NS>(issued, comptime!(tiles.scores()), 1usize);
        let k_users = count_warp_by_lanes(lane, counter_at(block.used_base, stage), last_warp);
        scores = apply_mask::<NS>(scores, partial_mask, bits, shape);
        let (exist, _) = tile_rows_in_segment(
            at,
            block.kv_head.first_keys,
            block.kv_head.second_keys,
            tile_keys,
            comptime!(tiles.two_segments),
        );
        if comptime!(!tiles.masked) && exist < comptime!(tiles.keys as u32) {
            scores = mask_out_of_bounds::<NS>(scores, (lane % 4) * 2, exist, tile_keys);
        }
        if came_last(k_users, last_warp) && at + comptime!(stages as u32) < tile_count {
            fill_stage::<E>(&block.keys, &block.kv_head, stage as usize, next_k, tiles);
        }
        output = wgmma::wait::<NO>(added, comptime!(tiles.values()), 0usize);
        let v_counter = counter_at(block.used_base, v_stage + comptime!(stages as u32));
        let v_users = count_warp_by_lanes(lane, v_counter, last_warp);
        let (weights, scaled) =
            softmax_tile::<NS, NP, NO>(softmax, scores, output, false, block.scale_log2, tiles);
        probabilities = weights;
        output = scaled;
        freed_by = read::<u32>(v_users);
        freed_for = read::<u32>(next_v);
        // With one stage the next product waits for this copy.
        if comptime!(stages == 1)
            && came_last(v_users, last_warp)
            && at - 1 + comptime!(stages as u32) < tile_count
        {
            fill_stage::<E>(&block.values, &block.kv_head, v_stage as usize, next_v, tiles);
        }
        next_v = next_k;
    }
    wait(barrier::at(block.values.full, stage as usize), phase);
    wgmma::issue_registers::<NO, NP>(
        output,
        probabilities,
        block.v_at + u64::cast_from(stage * tile_units),
        comptime!(tiles.values()),
    )
}

/// Starts writing a warpgroup's output, which takes the place of its queries in `q_tile`, and writes its rows' log-sum-exps.
#[cube]
fn store_output<E: Numeric, NO: Size>(
    block: &ForwardBlock<E>,
    problem: &ForwardProblem,
    q_tile: &[E],
    o: &mut TensorMap<E, Tiled>,
    lse: &mut [f32],
    output: Vector<f32, NO>,
    sums: &RowStatistics,
    #[comptime] tiles: ForwardTiles,
) {
    let (rows, panels) = comptime!((tiles.queries(), tiles.panels()));
    let (warpgroup, thread) = (block.warpgroup, block.thread);
    stage_output::<NO>(block.q_base, warpgroup, thread, output, sums, tiles);
    if thread == 0 {
        let origin = TileOrigin {
            batch: block.work.sample,
            head: block.work.head,
            row: block.first_query + warpgroup * 64,
        };
        store_rows::<E>(q_tile, o, warpgroup, &origin, rows, panels, Issue::SingleThread);
    }
    let lse_rows = problem.lse_rows;
    let at = (block.work.sample * CUBE_COUNT_Y + block.work.head) * lse_rows;
    let (first_query, queries) = (block.first_query, problem.queries);
    write_log_sums(lse, at, lse_rows, first_query, queries, warpgroup, thread, sums);
}

/// `o = softmax(q kᵀ scale) v` and the log-sum-exp of each row, `lse [B, H, lse_rows]`. One block for `tiles.queries()`
/// queries of a head. Keys and values have `first_keys` rows in `k` and `v`, and `second_keys` in `k_2` and `v_2`.
#[cube(launch_unchecked)]
pub fn forward<E: Numeric, NS: Size, NO: Size, NP: Size, NQ: Size, NW: Size>(
    maps: &QkvMaps<E>,
    o: &mut TensorMap<E, Tiled>,
    lse: &mut [f32],
    mask: &BlockMaskArgs<NW>,
    problem: &ForwardProblem,
    #[comptime] tiles: ForwardTiles,
    #[define(E)] _element: ElemType,
    #[define(NS, NO, NP, NQ, NW)] _vectors: [usize; 5],
) {
    let panels = comptime!(tiles.panels());
    let rows = comptime!(tiles.queries());
    let stages = comptime!(tiles.stages);
    let kv_elements = comptime!(tiles.keys * 64 * tiles.panels() * tiles.stages);

    let q_tile: Shared<[E]> = Shared::new_aligned_slice(comptime!(rows * 64 * panels), 1024usize);
    let k_tiles: Shared<[E]> = Shared::new_aligned_slice(kv_elements, 1024usize);
    let v_tiles: Shared<[E]> = Shared::new_aligned_slice(kv_elements, 1024usize);
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
    let mut all = problem.first_keys.div_ceil(per_tile);
    if comptime!(tiles.two_segments) {
        all += problem.second_keys.div_ceil(per_tile);
    }
    let work = work_tile_of(&mask.work_tiles, all, comptime!(tiles.mask_shape()));

    if UNIT_POS == 0 {
        init_barriers(q_full, k_full, v_full, stages);
        any_overflowed[0] = 0u32;
        tma::fence();
    }
    reset_counters(&mut used, comptime!(2 * stages));
    sync_cube();
    let kv_head = KvHead {
        batch: work.sample,
        head: work.head / problem.group,
        first_keys: problem.first_keys,
        second_keys: problem.second_keys,
    };
    let first_query = work.block * comptime!(rows as u32);

    // Where descriptors of queries are needed in each tile. With queries in registers it cost 2 % at 128 channels.
    let (warpgroup, thread) = warpgroup_and_thread(
        comptime!(tiles.warpgroups),
        comptime!(tiles.q_register_steps == 0),
    );
    let lane = thread % 32;
    // For the warp that starts the first copies; a vote, so that the compiler takes it for the same in all of its threads.
    let first_warp = plane_any(UNIT_POS < 32);
    let q_base = shared_address::<E>(&q_tile);
    let k_base = shared_address::<E>(&k_tiles);
    let v_base = shared_address::<E>(&v_tiles);
    let used_base = shared_address::<u32>(&used);
    let overflow_base = shared_address::<u32>(&overflowed);
    let q_at = wgmma::descriptor(q_base + warpgroup * 8192, 16u32, 1024u32);
    let k_at = wgmma::descriptor(k_base, 16u32, 1024u32);
    let v_at = wgmma::descriptor(v_base, comptime!((tiles.keys * 128) as u32), 1024u32);
    let keys = KvStages::<E> {
        first: maps.k,
        second: maps.k_2,
        tiles: k_tiles,
        full: k_full,
    };
    let values = KvStages::<E> {
        first: maps.v,
        second: maps.v_2,
        tiles: v_tiles,
        full: v_full,
    };
    let block = ForwardBlock::<E> {
        work,
        first_query,
        kv_head,
        keys,
        values,
        q_full,
        q_base,
        used_base,
        q_at,
        k_at,
        v_at,
        warpgroup,
        thread,
        lane,
        scale_log2: problem.scale_log2,
    };

    let mut softmax = OnlineSoftmax::new(overflow_base + UNIT_POS * 4);
    if comptime!(tiles.ping_pong) {
        give_first_turn(warpgroup);
    }
    let mut again = true.runtime();
    while again {
        if first_warp {
            start_copies::<E>(&block, &maps.q, &q_tile, tiles);
        }
        prefetch_queries_behind::<E>(&maps.q, &mask.work_tiles, tiles);
        let (fragment, first) = first_tile::<E, NS, NP, NQ, NW>(&block, mask, &mut softmax, tiles);
        let added = mainloop::<E, NS, NO, NP, NQ, NW>(&block, mask, &mut softmax, fragment, first, tiles);
        let sums = RowStatistics::of(&softmax);
        let output = wgmma::wait::<NO>(added, comptime!(tiles.values()), 0usize);

        store_output::<E, NO>(&block, problem, &q_tile, o, lse, output, &sums, tiles);
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
                renew_barriers(q_full, k_full, v_full, stages);
                tma::fence();
            }
            sync_cube();
        }
    }
}
