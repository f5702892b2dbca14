//! Gradients of keys and values: a tile of keys is stationary in a block, queries are streamed.
//!
//! With `P = exp(scale Q Kᵀ - lse)`: `dV = Pᵀ dO`, `dS = P ∘ (dO Vᵀ - delta)`, `dK = scale dSᵀ Q` (Dao 2023,
//! arXiv:2307.08691, algorithm 2). Products are transposed, so that `Pᵀ` and `dSᵀ` are in the registers that the next
//! product wants them in. A row of the sum over queries is summed in one thread, in order.

use super::BackwardTiles;
use super::copy::{
    TileOrigin, copy_tile, issue, load_fragment, load_stationary, stage_before_last, store_rows,
};
use crate::block_mask::{
    BlockMaskEntry, BlockMaskShape, MaskWord, WorkTileHalf, apply_mask, mask_bits, partial_mask_at,
    prefetched_tile, tile_at, work_tile_of,
};
use crate::softmax::{pack, stage_rows};
use crate::softmax_by_columns::{Pair, probabilities, score_gradients};
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::generic_to_shared;
use flow_cube::Issue;
use flow_cube::barrier::{
    self, COUNTER_WORDS, arrive_and_expect, bulk_copy, came_last, count_warp, count_warp_by_lanes,
    counter_at, named_sync, reset_counters, wait,
};
use flow_cube::register::read;
use flow_cube::tma;
use flow_cube::warpgroup::warpgroup_and_thread;
use flow_cube::wgmma;

/// Starts the copies of one operand's rows of a streamed tile, and of the statistic of these rows; bytes count towards `full`.
#[cube]
fn copy_streamed<E: Numeric>(
    full: u32,
    x: &TensorMap<E, Tiled>,
    statistic: &[Pair],
    to: &[E],
    statistic_to: &[Pair],
    stage: usize,
    origin: &TileOrigin,
    statistic_row: u32,
    #[comptime] tiles: BackwardTiles,
    #[comptime] caller: Issue,
) {
    let rows = comptime!(tiles.streamed_rows);
    let panels = comptime!(tiles.panels());
    let at = stage * comptime!(rows * 64 * panels);
    copy_tile::<E>(full, x, to, at, origin, rows, panels, caller);
    let from = (statistic_row / 2) as usize;
    let at = stage * comptime!(rows / 2);
    let length = comptime!(rows / 2);
    // SAFETY: a stage has room for the statistics of a streamed tile.
    let at = generic_to_shared::<Pair>(unsafe { statistic_to[at..at + length].as_ptr_unchecked() });
    bulk_copy::<Pair>(
        at,
        // SAFETY: rows of statistics are padded to a multiple of 128 (`lse_rows`), of which a streamed tile is
        // a part.
        unsafe { statistic[from..from + length].as_ptr_unchecked() },
        comptime!((rows * 4) as u32),
        full,
        caller,
    );
}

/// Starts the copies of one streamed tile.
#[cube]
fn next_tile<E: Numeric>(
    full: u32,
    q: &TensorMap<E, Tiled>,
    d_o: &TensorMap<E, Tiled>,
    lse: &[Pair],
    delta: &[Pair],
    q_tiles: &[E],
    do_tiles: &[E],
    lse_tiles: &[Pair],
    delta_tiles: &[Pair],
    stage: usize,
    batch: u32,
    heads: u32,
    head: u32,
    row: u32,
    lse_rows: u32,
    #[comptime] tiles: BackwardTiles,
    #[comptime] caller: Issue,
) {
    arrive_and_expect(
        full,
        comptime!((2 * tiles.streamed_rows * 128 * tiles.panels() + 2 * tiles.streamed_rows * 4) as u32),
        caller,
    );
    let from = (batch * heads + head) * lse_rows + row;
    let origin = TileOrigin { batch, head, row };
    copy_streamed::<E>(
        full, q, lse, q_tiles, lse_tiles, stage, &origin, from, tiles, caller,
    );
    copy_streamed::<E>(
        full,
        d_o,
        delta,
        do_tiles,
        delta_tiles,
        stage,
        &origin,
        from,
        tiles,
        caller,
    );
}

/// Writes a warpgroup's gradient, times `by`, where its keys or values were: to the tile at the byte address `base`.
#[cube]
fn stage_gradient<N: Size>(
    base: u32,
    warpgroup: u32,
    thread: u32,
    sum: Vector<f32, N>,
    by: f32,
    #[comptime] tiles: BackwardTiles,
) {
    let row = (thread / 32) * 16 + thread % 32 / 4;
    stage_rows::<N>(
        base + (warpgroup * 64 + row) * 128,
        row,
        thread % 32,
        sum,
        by,
        by,
        comptime!(tiles.head_dim),
        comptime!(tiles.stationary_rows()),
        comptime!(tiles.operand_type),
    );
}

/// Writes a thread's share of a sum, two rows of it from `row` on, to `sums` in pairs of channels.
#[cube]
fn write_sum<N: Size>(
    sums: &mut [Pair],
    row: u32,
    lane: u32,
    sum: Vector<f32, N>,
    #[comptime] head_dim: usize,
) {
    let pairs = comptime!((head_dim / 2) as u32);
    #[unroll]
    for half in 0..2usize {
        let at = (row + comptime!((8 * half) as u32)) * pairs + lane % 4;
        #[unroll]
        for j in 0..comptime!(head_dim / 8) {
            let mut pair = Pair::new(0.0f32);
            pair.insert(0usize, sum.extract(comptime!(4 * j + 2 * half)));
            pair.insert(1usize, sum.extract(comptime!(4 * j + 2 * half + 1)));
            sums[(at + comptime!((4 * j) as u32)) as usize] = pair;
        }
    }
}

/// `dk` and `dv`. One block for `tiles.stationary_rows()` keys of a key head; `lse` and `delta` are `[B, H, lse_rows]`. The mask's
/// list is of streamed queries, its rows are keys; see [`block_mask`](crate::block_mask).
///
/// With `tiles.split_q` above one a block takes a split of the queries, and leaves its sums in `sums`: of values, then of keys,
/// each `[B, H, split_q, rows, D]`, with whole blocks of rows. [`reduce_partials`](super::reduce_partials) makes gradients of them.
#[cube(launch_unchecked)]
pub fn backward_keys<E: Numeric, NS: Size, NG: Size, NP: Size, NA: Size, NB: Size>(
    q: &TensorMap<E, Tiled>,
    k: &TensorMap<E, Tiled>,
    v: &TensorMap<E, Tiled>,
    d_o: &TensorMap<E, Tiled>,
    dk: &mut TensorMap<E, Tiled>,
    dv: &mut TensorMap<E, Tiled>,
    sums: &mut [Vector<f32, Const<2>>],
    lse: &[Vector<f32, Const<2>>],
    delta: &[Vector<f32, Const<2>>],
    work_tiles: &[WorkTileHalf],
    entries: &[BlockMaskEntry],
    partial_masks: &[MaskWord],
    queries: u32,
    lse_rows: u32,
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
    let shape = comptime!(BlockMaskShape {
        masked: tiles.masked,
        row_groups: tiles.warpgroups,
        columns: tiles.streamed_rows
    });

    let k_tile: Shared<[E]> = Shared::new_aligned_slice(comptime!(stationary_rows * 64 * panels), 1024usize);
    let v_tile: Shared<[E]> = Shared::new_aligned_slice(comptime!(stationary_rows * 64 * panels), 1024usize);
    let q_tiles: Shared<[E]> = Shared::new_aligned_slice(comptime!(tile_elements * stages), 1024usize);
    let do_tiles: Shared<[E]> = Shared::new_aligned_slice(comptime!(tile_elements * stages), 1024usize);
    let lse_tiles: Shared<[Pair]> = Shared::new_aligned_slice(comptime!(streamed_rows / 2 * stages), 16usize);
    let delta_tiles: Shared<[Pair]> =
        Shared::new_aligned_slice(comptime!(streamed_rows / 2 * stages), 16usize);
    let kv_full: Shared<[u64]> = Shared::new_slice(1usize);
    let kv_full = barrier::first(&kv_full);
    let full: Shared<[u64]> = Shared::new_slice(stages);
    let full = barrier::first(&full);
    let mut used: Shared<[u32]> = Shared::new_slice(comptime!(stages * COUNTER_WORDS));

    let split_q = comptime!(tiles.split_q as u32);
    let heads = CUBE_COUNT_Y * group;
    let all = (queries + comptime!(streamed_rows as u32 - 1)) / comptime!(streamed_rows as u32);
    let work_tile = work_tile_of(work_tiles, all, shape);
    let (batch, kv_head) = (work_tile.sample, work_tile.head);
    let (begin, tiles_per_head) = (work_tile.begin, work_tile.tiles);
    let mut block = work_tile.block;
    let mut query_split = 0u32;
    if comptime!(tiles.split_q > 1) {
        // Blocks that start together share queries.
        query_split = block / (CUBE_COUNT_X / split_q);
        block %= CUBE_COUNT_X / split_q;
    }
    let first_key = block * comptime!(stationary_rows as u32);
    // Of the list, once for each head of the group.
    let mut tile_count = tiles_per_head * group;
    let mut first_tile = 0u32;
    if comptime!(tiles.split_q > 1) {
        let each = (tile_count + comptime!(tiles.split_q as u32 - 1)) / split_q;
        first_tile = query_split * each;
        let left = tile_count - first_tile;
        tile_count = select(left < each, left, each);
    }

    if UNIT_POS == 0 {
        barrier::init(kv_full);
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
    // A vote, so that the compiler takes it for the same in all threads of the warp.
    if plane_any(UNIT_POS < 32) {
        let origin = TileOrigin {
            batch,
            head: kv_head,
            row: first_key,
        };
        load_stationary::<E>(kv_full, k, v, &k_tile, &v_tile, &origin, tiles);
        #[unroll]
        for s in 0..stages {
            let tile = first_tile + comptime!(s as u32);
            // The list begins again with each head.
            let passes = if comptime!(tiles.masked) {
                prefetched_tile(work_tile.prefetched, s, shape)
            } else {
                tile % tiles_per_head
            };
            let row = passes * comptime!(streamed_rows as u32);
            if comptime!(s as u32) < tile_count {
                next_tile::<E>(
                    barrier::at(full, s),
                    q,
                    d_o,
                    lse,
                    delta,
                    &q_tiles,
                    &do_tiles,
                    &lse_tiles,
                    &delta_tiles,
                    s,
                    batch,
                    heads,
                    kv_head * group + tile / tiles_per_head,
                    row,
                    lse_rows,
                    tiles,
                    Issue::ElectedLane,
                );
            }
        }
    }

    // SAFETY: the address of the block's own shared memory; by the sizes of the tiles, what is read and
    // written there stays within it.
    let k_base = generic_to_shared::<E>(unsafe { k_tile.as_ptr_unchecked() });
    // SAFETY: as above.
    let v_base = generic_to_shared::<E>(unsafe { v_tile.as_ptr_unchecked() });
    // SAFETY: as above.
    let q_base = generic_to_shared::<E>(unsafe { q_tiles.as_ptr_unchecked() });
    // SAFETY: as above.
    let do_base = generic_to_shared::<E>(unsafe { do_tiles.as_ptr_unchecked() });
    // SAFETY: as above.
    let used_base = generic_to_shared::<u32>(unsafe { used.as_ptr_unchecked() });
    let k_at = wgmma::descriptor(k_base + warpgroup * 8192, 16u32, 1024u32);
    let v_at = wgmma::descriptor(v_base + warpgroup * 8192, 16u32, 1024u32);
    let q_at = wgmma::descriptor(q_base, comptime!((streamed_rows * 128) as u32), 1024u32);
    let do_at = wgmma::descriptor(do_base, comptime!((streamed_rows * 128) as u32), 1024u32);
    let column = (lane % 4) as usize;

    wait(kv_full, 0u32);
    let k_fragment = load_fragment::<NA>(
        k_base,
        warpgroup,
        thread,
        comptime!(tiles.fragment[0]),
        stationary_rows,
    );
    let v_fragment = load_fragment::<NB>(
        v_base,
        warpgroup,
        thread,
        comptime!(tiles.fragment[1]),
        stationary_rows,
    );
    wait(full, 0u32);

    let partial_mask = partial_mask_at(entries, begin, warpgroup, shape);
    let bits = mask_bits::<Const<1>>(partial_masks, partial_mask, thread, shape);
    // The first tile is peeled: sums that enter a loop as zeros make ptxas wait after each product.
    let scores = issue::<NS, NA>(
        k_fragment,
        k_at,
        q_at,
        comptime!(tiles.scores()),
        comptime!(tiles.fragment[0]),
    );
    let mut gradients = scores;
    if comptime!(tiles.sums.keys()) {
        gradients = issue::<NS, NB>(
            v_fragment,
            v_at,
            do_at,
            comptime!(tiles.scores()),
            comptime!(tiles.fragment[1]),
        );
    }
    let scores = wgmma::wait::<NS>(
        scores,
        comptime!(tiles.scores()),
        comptime!(tiles.sums.keys() as usize),
    );
    let scores = apply_mask::<NS>(scores, partial_mask, bits, shape);
    let p = probabilities::<NS>(scores, &lse_tiles, column, scale_log2, streamed_rows);
    let mut v_sum = Vector::<f32, NG>::new(0.0f32);
    if comptime!(tiles.sums.values()) {
        let weights = pack::<NS, NP>(p, streamed_rows, element);
        v_sum = wgmma::issue_registers_from_zero::<NG, NP>(weights, do_at, comptime!(tiles.weighted()));
    }
    let mut k_sum = Vector::<f32, NG>::new(0.0f32);
    if comptime!(tiles.sums.keys()) {
        let gradients = wgmma::wait::<NS>(
            gradients,
            comptime!(tiles.scores()),
            comptime!(tiles.sums.values() as usize),
        );
        let ds = score_gradients::<NS>(p, gradients, &delta_tiles, column, streamed_rows);
        let weights = pack::<NS, NP>(ds, streamed_rows, element);
        k_sum = wgmma::issue_registers_from_zero::<NG, NP>(weights, q_at, comptime!(tiles.weighted()));
    }

    let mut stage = 0u32;
    let mut phase = 0u32;
    // Where in the list the next tile is, and the one whose copy starts in this turn, with its head.
    let mut place = (first_tile + 1) % tiles_per_head;
    let mut next_partial_mask = partial_mask_at(entries, begin + place, warpgroup, shape);
    let mut ahead_place = (first_tile + comptime!(stages as u32 - 1)) % tiles_per_head;
    let mut ahead_head = kv_head * group + (first_tile + comptime!(stages as u32 - 1)) / tiles_per_head;
    let refill_late = comptime!(tiles.refill_late);
    // Of the stage that the tile before last was in: what its count gave, and which tile it gets.
    let mut freed_by = 0u32.runtime();
    let mut freed_for = 0u32.runtime();
    for tile in 1..tile_count {
        let before = stage;
        stage += 1;
        if stage == comptime!(stages as u32) {
            stage = 0;
            phase ^= 1;
        }
        let q_now = q_at + u64::cast_from(stage * tile_units);
        let do_now = do_at + u64::cast_from(stage * tile_units);
        let pairs = stage as usize * comptime!(streamed_rows / 2) + column;
        wait(barrier::at(full, stage as usize), phase);
        let scores = issue::<NS, NA>(
            k_fragment,
            k_at,
            q_now,
            comptime!(tiles.scores()),
            comptime!(tiles.fragment[0]),
        );
        let mut gradients = scores;
        if comptime!(tiles.sums.keys()) {
            gradients = issue::<NS, NB>(
                v_fragment,
                v_at,
                do_now,
                comptime!(tiles.scores()),
                comptime!(tiles.fragment[1]),
            );
        }
        if comptime!(refill_late)
            && came_last(freed_by, last_warp)
            && tile - 2 + comptime!(stages as u32) < tile_count
        {
            let freed = stage_before_last(stage, stages) as usize;
            let row = if comptime!(tiles.masked) {
                freed_for
            } else {
                ahead_place
            } * comptime!(streamed_rows as u32);
            next_tile::<E>(
                barrier::at(full, freed),
                q,
                d_o,
                lse,
                delta,
                &q_tiles,
                &do_tiles,
                &lse_tiles,
                &delta_tiles,
                freed,
                batch,
                heads,
                ahead_head,
                row,
                lse_rows,
                tiles,
                Issue::ElectedLane,
            );
        }
        ahead_place += 1;
        if ahead_place == tiles_per_head {
            ahead_place = 0;
            ahead_head += 1;
        }
        // Read while products run, and long before it is asked for: neither a product nor a copy waits for the list.
        let upcoming = tile_at(entries, begin + ahead_place, shape);
        let partial_mask = next_partial_mask;
        place += 1;
        if place == tiles_per_head {
            place = 0;
        }
        next_partial_mask = partial_mask_at(entries, begin + place, warpgroup, shape);
        let bits = mask_bits::<Const<1>>(partial_masks, partial_mask, thread, shape);
        let scores = wgmma::wait::<NS>(
            scores,
            comptime!(tiles.scores()),
            comptime!(tiles.sums.keys() as usize),
        );
        // All products of the tile before are done, too.
        let users = if comptime!(refill_late) {
            count_warp_by_lanes(lane, counter_at(used_base, before), last_warp)
        } else {
            count_warp(lane, counter_at(used_base, before), last_warp)
        };
        if comptime!(!refill_late) && users == last_warp && tile - 1 + comptime!(stages as u32) < tile_count {
            let row = upcoming * comptime!(streamed_rows as u32);
            next_tile::<E>(
                barrier::at(full, before as usize),
                q,
                d_o,
                lse,
                delta,
                &q_tiles,
                &do_tiles,
                &lse_tiles,
                &delta_tiles,
                before as usize,
                batch,
                heads,
                ahead_head,
                row,
                lse_rows,
                tiles,
                Issue::SingleThread,
            );
        }
        freed_by = read::<u32>(users);
        freed_for = read::<u32>(upcoming);
        let scores = apply_mask::<NS>(scores, partial_mask, bits, shape);
        let p = probabilities::<NS>(scores, &lse_tiles, pairs, scale_log2, streamed_rows);
        if comptime!(tiles.sums.values()) {
            let weights = pack::<NS, NP>(p, streamed_rows, element);
            v_sum = wgmma::issue_registers::<NG, NP>(v_sum, weights, do_now, comptime!(tiles.weighted()));
        }
        if comptime!(tiles.sums.keys()) {
            let gradients = wgmma::wait::<NS>(
                gradients,
                comptime!(tiles.scores()),
                comptime!(tiles.sums.values() as usize),
            );
            let ds = score_gradients::<NS>(p, gradients, &delta_tiles, pairs, streamed_rows);
            let weights = pack::<NS, NP>(ds, streamed_rows, element);
            k_sum = wgmma::issue_registers::<NG, NP>(k_sum, weights, q_now, comptime!(tiles.weighted()));
        }
    }

    if comptime!(tiles.split_q > 1) {
        let rows = CUBE_COUNT_X / split_q * comptime!(stationary_rows as u32);
        let of_block = ((batch * CUBE_COUNT_Y + kv_head) * split_q + query_split) * rows + first_key;
        let row = of_block + warpgroup * 64 + (thread / 32) * 16 + lane / 4;
        if comptime!(tiles.sums.values()) {
            let sum = wgmma::wait::<NG>(v_sum, comptime!(tiles.weighted()), 0usize);
            write_sum::<NG>(sums, row, lane, sum, comptime!(tiles.head_dim));
        }
        if comptime!(tiles.sums.keys()) {
            let of_keys = CUBE_COUNT_Z * CUBE_COUNT_Y * split_q * rows;
            let sum = wgmma::wait::<NG>(k_sum, comptime!(tiles.weighted()), 0usize);
            write_sum::<NG>(sums, of_keys + row, lane, sum, comptime!(tiles.head_dim));
        }
    } else {
        // Gradients take the places of this warpgroup's keys and values.
        if comptime!(tiles.sums.values()) {
            let sum = wgmma::wait::<NG>(v_sum, comptime!(tiles.weighted()), 0usize);
            stage_gradient::<NG>(v_base, warpgroup, thread, sum, 1.0f32, tiles);
        }
        if comptime!(tiles.sums.keys()) {
            let sum = wgmma::wait::<NG>(k_sum, comptime!(tiles.weighted()), 0usize);
            stage_gradient::<NG>(k_base, warpgroup, thread, sum, scale, tiles);
        }
        tma::fence();
        named_sync(warpgroup + 1, 128u32);
        if thread == 0 {
            let origin = TileOrigin {
                batch,
                head: kv_head,
                row: first_key + warpgroup * 64,
            };
            if comptime!(tiles.sums.values()) {
                store_rows::<E>(
                    &v_tile,
                    dv,
                    warpgroup,
                    &origin,
                    stationary_rows,
                    panels,
                    Issue::SingleThread,
                );
            }
            if comptime!(tiles.sums.keys()) {
                store_rows::<E>(
                    &k_tile,
                    dk,
                    warpgroup,
                    &origin,
                    stationary_rows,
                    panels,
                    Issue::SingleThread,
                );
            }
            tma::wait_read(0usize);
        }
    }
}
