//! Gradient of queries: a tile of queries is stationary in a block, keys are streamed. Also `delta`, the sum over channels of `dO ∘ O`.
//!
//! `dQ = scale dS K` with `dS = P ∘ (dO Vᵀ - delta)` (Dao 2023, arXiv:2307.08691, algorithm 2). Runs before the kernel
//! for keys, which reads `delta`.

use super::BackwardTiles;
use super::copy::{
    TileOrigin, copy_tile, issue, load_fragment, load_stationary, stage_before_last, starts_copy, store_rows,
};
use super::ping_pong::{end_turn, give_first_turn, wait_for_turn};
use crate::block_mask::{
    BlockMaskEntry, BlockMaskShape, MaskWord, WorkTileHalf, apply_mask, mask_bits, partial_mask_at,
    prefetched_tile, tile_at, tile_rows_in_segment, work_tile_of,
};
use crate::delta::{read_row, row_product};
use crate::softmax::{exponentiate, mask_out_of_bounds, pack, score_gradients, stage_rows};
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::generic_to_shared;
use flow_cube::Issue;
use flow_cube::barrier::{
    self, COUNTER_WORDS, arrive_and_expect, came_last, count_warp, count_warp_by_lanes, counter_at,
    named_sync, reset_counters, wait,
};
use flow_cube::register::read;
use flow_cube::tma;
use flow_cube::warpgroup::warpgroup_and_thread;
use flow_cube::wgmma;

/// Starts the copies of one streamed tile.
#[cube]
fn next_tile<E: Numeric>(
    full: u32,
    k: &TensorMap<E, Tiled>,
    v: &TensorMap<E, Tiled>,
    k_2: &TensorMap<E, Tiled>,
    v_2: &TensorMap<E, Tiled>,
    k_tiles: &[E],
    v_tiles: &[E],
    stage: usize,
    batch: u32,
    head: u32,
    tile: u32,
    first_keys: u32,
    #[comptime] tiles: BackwardTiles,
    #[comptime] caller: Issue,
) {
    let rows = comptime!(tiles.streamed_rows);
    let panels = comptime!(tiles.panels());
    arrive_and_expect(full, comptime!((2 * rows * 128 * panels) as u32), caller);
    let at = stage * comptime!(rows * 64 * panels);
    let (_, row) = tile_rows_in_segment(
        tile,
        first_keys,
        0u32.runtime(),
        rows,
        comptime!(tiles.two_segments),
    );
    let origin = TileOrigin { batch, head, row };
    if comptime!(tiles.two_segments) {
        if tile * comptime!(tiles.streamed_rows as u32) < first_keys {
            copy_tile::<E>(full, k, k_tiles, at, &origin, rows, panels, caller);
            copy_tile::<E>(full, v, v_tiles, at, &origin, rows, panels, caller);
        } else {
            copy_tile::<E>(full, k_2, k_tiles, at, &origin, rows, panels, caller);
            copy_tile::<E>(full, v_2, v_tiles, at, &origin, rows, panels, caller);
        }
    } else {
        copy_tile::<E>(full, k, k_tiles, at, &origin, rows, panels, caller);
        copy_tile::<E>(full, v, v_tiles, at, &origin, rows, panels, caller);
    }
}

/// `dq`, and `delta [B, H, lse_rows]`. One block for `tiles.stationary_rows()` queries of a head. `o_rows` and `do_rows` are the
/// buffers of `o` and `d_o` in units of eight values, as their strides are. Keys, values and the mask as in
/// [`forward`](super::forward::forward).
#[cube(launch_unchecked)]
pub fn backward_queries<E: Numeric, NS: Size, NG: Size, NP: Size, NA: Size, NB: Size>(
    q: &TensorMap<E, Tiled>,
    k: &TensorMap<E, Tiled>,
    v: &TensorMap<E, Tiled>,
    k_2: &TensorMap<E, Tiled>,
    v_2: &TensorMap<E, Tiled>,
    d_o: &TensorMap<E, Tiled>,
    dq: &mut TensorMap<E, Tiled>,
    o_rows: &[Vector<u32, Const<4>>],
    do_rows: &[Vector<u32, Const<4>>],
    o_batch: u32,
    o_head: u32,
    o_row: u32,
    do_batch: u32,
    do_head: u32,
    do_row: u32,
    lse: &[f32],
    delta: &mut [f32],
    work_tiles: &[WorkTileHalf],
    entries: &[BlockMaskEntry],
    partial_masks: &[MaskWord],
    queries: u32,
    lse_rows: u32,
    first_keys: u32,
    second_keys: u32,
    group: u32,
    scale_log2: f32,
    scale: f32,
    #[comptime] tiles: BackwardTiles,
    #[define(E)] _element: ElemType,
    #[define(NS, NG, NP, NA, NB)] _vectors: [usize; 5],
) {
    let panels = comptime!(tiles.panels());
    let stationary_rows = comptime!(tiles.stationary_rows());
    let streamed_rows = comptime!(tiles.streamed_rows);
    let stages = comptime!(tiles.stages);
    let last_warp = comptime!(4 * tiles.warpgroups as u32 - 1);
    let tile_elements = comptime!(tiles.streamed_rows * 64 * tiles.panels());
    let tile_units = comptime!((tiles.streamed_rows * 8 * tiles.panels()) as u32);
    let element = comptime!(tiles.operand_type);
    let two_segments = comptime!(tiles.two_segments);
    let shape = comptime!(BlockMaskShape {
        masked: tiles.masked,
        row_groups: tiles.warpgroups,
        columns: tiles.streamed_rows
    });

    let q_tile: Shared<[E]> = Shared::new_aligned_slice(comptime!(stationary_rows * 64 * panels), 1024usize);
    let do_tile: Shared<[E]> = Shared::new_aligned_slice(comptime!(stationary_rows * 64 * panels), 1024usize);
    let k_tiles: Shared<[E]> = Shared::new_aligned_slice(comptime!(tile_elements * stages), 1024usize);
    let v_tiles: Shared<[E]> = Shared::new_aligned_slice(comptime!(tile_elements * stages), 1024usize);
    let q_full: Shared<[u64]> = Shared::new_slice(1usize);
    let q_full = barrier::first(&q_full);
    let full: Shared<[u64]> = Shared::new_slice(stages);
    let full = barrier::first(&full);
    let mut used: Shared<[u32]> = Shared::new_slice(comptime!(stages * COUNTER_WORDS));

    let per_tile = comptime!(streamed_rows as u32);
    let mut all = first_keys.div_ceil(per_tile);
    if comptime!(tiles.two_segments) {
        all += second_keys.div_ceil(per_tile);
    }
    let work_tile = work_tile_of(work_tiles, all, shape);
    let (batch, head, block) = (work_tile.sample, work_tile.head, work_tile.block);
    let (begin, tile_count) = (work_tile.begin, work_tile.tiles);
    let kv_head = head / group;
    let first_query = block * comptime!(stationary_rows as u32);

    // Two threads a row. What they read is on its way before the copies are, and is asked for behind the first products.
    let of_row = first_query + UNIT_POS / 2;
    let row_fragment = read_row(
        o_rows,
        do_rows,
        batch * o_batch + head * o_head + of_row * o_row,
        batch * do_batch + head * do_head + of_row * do_row,
        of_row < queries,
        comptime!(tiles.head_dim),
    );

    if UNIT_POS == 0 {
        barrier::init(q_full);
        #[unroll]
        for s in 0..stages {
            barrier::init(barrier::at(full, s));
        }
        tma::fence();
    }
    reset_counters(&mut used, stages);
    sync_cube();

    let (warpgroup, thread) =
        warpgroup_and_thread(comptime!(tiles.warpgroups), comptime!(tiles.uniform_warpgroup));
    let lane = thread % 32;
    // With a list one warp starts the first copies, in order. Without, four divide them: the tiles of blocks that run side by side are the same,
    // and ptxas orders the loop below so that long calls take 1 to 3 % less. Votes, so that it takes them for the same in a warp's threads.
    let divided = comptime!(!tiles.masked);
    let takes_part = if divided {
        true.runtime()
    } else {
        plane_any(UNIT_POS < 32)
    };
    if takes_part {
        if starts_copy(true.runtime(), 0usize, divided) {
            let origin = TileOrigin {
                batch,
                head,
                row: first_query,
            };
            load_stationary::<E>(q_full, q, d_o, &q_tile, &do_tile, &origin, tiles);
        }
        #[unroll]
        for s in 0..stages {
            let tile = prefetched_tile(work_tile.prefetched, s, shape);
            if starts_copy(comptime!(s as u32) < tile_count, s + 1, divided) {
                next_tile::<E>(
                    barrier::at(full, s),
                    k,
                    v,
                    k_2,
                    v_2,
                    &k_tiles,
                    &v_tiles,
                    s,
                    batch,
                    kv_head,
                    tile,
                    first_keys,
                    tiles,
                    Issue::ElectedLane,
                );
            }
        }
    }

    let lse_at = (batch * (CUBE_COUNT_Y) + head) * lse_rows;
    let row = (thread / 32) * 16 + lane / 4;
    let of_tile = warpgroup * 64 + row;
    let offset_0 = lse[(lse_at + first_query + of_tile) as usize] * std::f32::consts::LOG2_E;
    let offset_1 = lse[(lse_at + first_query + of_tile + 8) as usize] * std::f32::consts::LOG2_E;

    // SAFETY: the address of the block's own shared memory; by the sizes of the tiles, what is read and
    // written there stays within it.
    let q_base = generic_to_shared::<E>(unsafe { q_tile.as_ptr_unchecked() });
    // SAFETY: as above.
    let do_base = generic_to_shared::<E>(unsafe { do_tile.as_ptr_unchecked() });
    // SAFETY: as above.
    let k_base = generic_to_shared::<E>(unsafe { k_tiles.as_ptr_unchecked() });
    // SAFETY: as above.
    let v_base = generic_to_shared::<E>(unsafe { v_tiles.as_ptr_unchecked() });
    // SAFETY: as above.
    let used_base = generic_to_shared::<u32>(unsafe { used.as_ptr_unchecked() });
    let q_at = wgmma::descriptor(q_base + warpgroup * 8192, 16u32, 1024u32);
    let do_at = wgmma::descriptor(do_base + warpgroup * 8192, 16u32, 1024u32);
    let k_at = wgmma::descriptor(k_base, comptime!((streamed_rows * 128) as u32), 1024u32);
    let v_at = wgmma::descriptor(v_base, comptime!((streamed_rows * 128) as u32), 1024u32);

    let partial_mask = partial_mask_at(entries, begin, warpgroup, shape);
    let bits = mask_bits::<Const<1>>(partial_masks, partial_mask, thread, shape);
    // Where one warpgroup has the multiprocessor to itself, what stands between its products delays them.
    let sum_early = comptime!(tiles.head_dim > 128);
    let mut sum = 0.0f32;
    if comptime!(sum_early) {
        sum = row_product(&row_fragment, comptime!(tiles.head_dim), element);
    }
    wait(q_full, 0u32);
    let q_fragment = load_fragment::<NA>(
        q_base,
        warpgroup,
        thread,
        comptime!(tiles.fragment[0]),
        stationary_rows,
    );
    let do_fragment = load_fragment::<NB>(
        do_base,
        warpgroup,
        thread,
        comptime!(tiles.fragment[1]),
        stationary_rows,
    );
    wait(full, 0u32);
    let scores = issue::<NS, NA>(
        q_fragment,
        q_at,
        k_at,
        comptime!(tiles.scores()),
        comptime!(tiles.fragment[0]),
    );
    let gradients = issue::<NS, NB>(
        do_fragment,
        do_at,
        v_at,
        comptime!(tiles.scores()),
        comptime!(tiles.fragment[1]),
    );
    if comptime!(!sum_early) {
        sum = row_product(&row_fragment, comptime!(tiles.head_dim), element);
    }
    if UNIT_POS.is_multiple_of(2) {
        delta[(lse_at + of_row) as usize] = sum;
    }
    // A warp has the rows whose sums it wants, in other lanes.
    let delta_0 = plane_shuffle(sum, lane / 4 * 2);
    let delta_1 = plane_shuffle(sum, lane / 4 * 2 + 16);
    let mut scores = wgmma::wait::<NS>(scores, comptime!(tiles.scores()), 1usize);
    scores = apply_mask::<NS>(scores, partial_mask, bits, shape);
    let (exist, _) = tile_rows_in_segment(
        0u32.runtime(),
        first_keys,
        second_keys,
        streamed_rows,
        two_segments,
    );
    if comptime!(!tiles.masked) && exist < per_tile {
        scores = mask_out_of_bounds::<NS>(scores, (lane % 4) * 2, exist, streamed_rows);
    }
    let p = exponentiate::<NS>(scores, scale_log2, offset_0, offset_1, streamed_rows);
    let gradients = wgmma::wait::<NS>(gradients, comptime!(tiles.scores()), 0usize);
    let ds = score_gradients::<NS>(p, gradients, delta_0, delta_1, streamed_rows);
    let mut q_sum = wgmma::issue_registers_from_zero::<NG, NP>(
        pack::<NS, NP>(ds, streamed_rows, element),
        k_at,
        comptime!(tiles.weighted()),
    );

    let mut stage = 0u32;
    let mut phase = 0u32;
    let mut next_partial_mask = partial_mask_at(entries, begin + 1, warpgroup, shape);
    let refill_late = comptime!(tiles.refill_late);
    // Of the stage that the tile before last was in: what its count gave, and which tile it gets.
    let mut freed_by = 0u32.runtime();
    let mut freed_for = 0u32.runtime();
    if comptime!(tiles.ping_pong) {
        give_first_turn(warpgroup);
    }
    for at in 1..tile_count {
        let before = stage;
        stage += 1;
        if stage == comptime!(stages as u32) {
            stage = 0;
            phase ^= 1;
        }
        let k_now = k_at + u64::cast_from(stage * tile_units);
        let v_now = v_at + u64::cast_from(stage * tile_units);
        wait(barrier::at(full, stage as usize), phase);
        if comptime!(tiles.ping_pong) {
            wait_for_turn(warpgroup);
        }
        let scores = issue::<NS, NA>(
            q_fragment,
            q_at,
            k_now,
            comptime!(tiles.scores()),
            comptime!(tiles.fragment[0]),
        );
        let gradients = issue::<NS, NB>(
            do_fragment,
            do_at,
            v_now,
            comptime!(tiles.scores()),
            comptime!(tiles.fragment[1]),
        );
        if comptime!(tiles.ping_pong) {
            end_turn(warpgroup);
        }
        if comptime!(refill_late)
            && came_last(freed_by, last_warp)
            && at - 2 + comptime!(stages as u32) < tile_count
        {
            let to = stage_before_last(stage, stages) as usize;
            let tile = if comptime!(tiles.masked) {
                freed_for
            } else {
                at - 2 + comptime!(stages as u32)
            };
            next_tile::<E>(
                barrier::at(full, to),
                k,
                v,
                k_2,
                v_2,
                &k_tiles,
                &v_tiles,
                to,
                batch,
                kv_head,
                tile,
                first_keys,
                tiles,
                Issue::ElectedLane,
            );
        }
        // Read while products run, and long before it is asked for: neither a product nor a copy waits for the list.
        let upcoming = tile_at(entries, begin + at - 1 + comptime!(stages as u32), shape);
        let partial_mask = next_partial_mask;
        next_partial_mask = partial_mask_at(entries, begin + at + 1, warpgroup, shape);
        let bits = mask_bits::<Const<1>>(partial_masks, partial_mask, thread, shape);
        let mut scores = wgmma::wait::<NS>(scores, comptime!(tiles.scores()), 1usize);
        // The sum over the tile before is done, too.
        let users = if comptime!(refill_late) {
            count_warp_by_lanes(lane, counter_at(used_base, before), last_warp)
        } else {
            count_warp(lane, counter_at(used_base, before), last_warp)
        };
        if comptime!(!refill_late) && users == last_warp && at - 1 + comptime!(stages as u32) < tile_count {
            let to = before as usize;
            next_tile::<E>(
                barrier::at(full, to),
                k,
                v,
                k_2,
                v_2,
                &k_tiles,
                &v_tiles,
                to,
                batch,
                kv_head,
                upcoming,
                first_keys,
                tiles,
                Issue::SingleThread,
            );
        }
        freed_by = read::<u32>(users);
        freed_for = read::<u32>(upcoming);
        scores = apply_mask::<NS>(scores, partial_mask, bits, shape);
        let (exist, _) = tile_rows_in_segment(at, first_keys, second_keys, streamed_rows, two_segments);
        if comptime!(!tiles.masked) && exist < per_tile {
            scores = mask_out_of_bounds::<NS>(scores, (lane % 4) * 2, exist, streamed_rows);
        }
        let p = exponentiate::<NS>(scores, scale_log2, offset_0, offset_1, streamed_rows);
        let gradients = wgmma::wait::<NS>(gradients, comptime!(tiles.scores()), 0usize);
        let ds = score_gradients::<NS>(p, gradients, delta_0, delta_1, streamed_rows);
        q_sum = wgmma::issue_registers::<NG, NP>(
            q_sum,
            pack::<NS, NP>(ds, streamed_rows, element),
            k_now,
            comptime!(tiles.weighted()),
        );
    }
    let q_sum = wgmma::wait::<NG>(q_sum, comptime!(tiles.weighted()), 0usize);

    // The gradient takes the place of this warpgroup's queries.
    stage_rows::<NG>(
        q_base + of_tile * 128,
        row,
        lane,
        q_sum,
        scale,
        scale,
        comptime!(tiles.head_dim),
        stationary_rows,
        element,
    );
    tma::fence();
    named_sync(warpgroup + 1, 128u32);
    if thread == 0 {
        let origin = TileOrigin {
            batch,
            head,
            row: first_query + warpgroup * 64,
        };
        store_rows::<E>(
            &q_tile,
            dq,
            warpgroup,
            &origin,
            stationary_rows,
            panels,
            Issue::SingleThread,
        );
        tma::wait_read(0usize);
    }
}
