//! Gradients of keys and values: a tile of keys is stationary in a block, queries are streamed.
//!
//! With `P = exp(scale Q Kᵀ - lse)`: `dV = Pᵀ dO`, `dS = P ∘ (dO Vᵀ - delta)`, `dK = scale dSᵀ Q` (Dao 2023,
//! arXiv:2307.08691, algorithm 2). Products are transposed, so that `Pᵀ` and `dSᵀ` are in the registers that the next
//! product wants them in. A row of the sum over queries is summed in one thread, in order.

use super::BackwardTiles;
use super::arguments::{BackwardKeysMaps, BackwardKeysProblem, BlockMaskArgs, QueryStatisticPairs};
use super::backward_block::{StationaryTiles, count_stage, start_barriers};
use super::copy::{TileOrigin, issue, load_fragment, stage_before_last, store_rows};
use super::streamed_queries::{KeyWork, StreamedOperand, StreamedQueries, key_work, next_tile, start_copies};
use crate::block_mask::{apply_mask, mask_bits, partial_mask_at, tile_at};
use crate::softmax::{pack, stage_rows};
use crate::softmax_by_columns::{Pair, probabilities, score_gradients};
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use flow_cube::Issue;
use flow_cube::barrier::{self, COUNTER_WORDS, came_last, named_sync, wait};
use flow_cube::register::{read, shared_address};
use flow_cube::tma;
use flow_cube::warpgroup::warpgroup_and_thread;
use flow_cube::wgmma;

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
        comptime!(tiles.staging()),
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

/// A block's work and shared memory, and a thread's place in it. `_base` are byte addresses of shared memory, `_at` descriptors.
#[derive(CubeType)]
struct KeysBlock<E: Numeric> {
    work: KeyWork,
    stationary: StationaryTiles<E>,
    streamed: StreamedQueries<E>,
    k_base: u32,
    v_base: u32,
    /// Counters of the stages that warps are done with.
    used_base: u32,
    k_at: u64,
    v_at: u64,
    q_at: u64,
    do_at: u64,
    warpgroup: u32,
    /// Of the warpgroup.
    thread: u32,
    lane: u32,
    /// The first pair of this thread's columns.
    column: usize,
    group: u32,
    scale_log2: f32,
}

/// The sums over the first tile, with their products in flight, and what registers keep of the stationary rows.
#[derive(CubeType)]
struct FirstTile<NG: Size, NA: Size, NB: Size> {
    k_fragment: Vector<u32, NA>,
    v_fragment: Vector<u32, NB>,
    v_sum: Vector<f32, NG>,
    k_sum: Vector<f32, NG>,
}

/// The first tile. It is peeled: sums that enter a loop as zeros make ptxas wait after each product.
#[cube]
fn first_tile<E: Numeric, NS: Size, NG: Size, NP: Size, NA: Size, NB: Size>(
    block: &KeysBlock<E>,
    mask: &BlockMaskArgs<Const<1>>,
    #[comptime] tiles: BackwardTiles,
) -> FirstTile<NG, NA, NB> {
    let stationary_rows = comptime!(tiles.stationary_rows());
    let streamed_rows = comptime!(tiles.streamed_rows);
    let element = comptime!(tiles.operand_type);
    let shape = comptime!(tiles.mask_shape());

    wait(block.stationary.full, 0u32);
    let k_fragment = load_fragment::<NA>(
        block.k_base,
        block.warpgroup,
        block.thread,
        comptime!(tiles.fragment[0]),
        stationary_rows,
    );
    let v_fragment = load_fragment::<NB>(
        block.v_base,
        block.warpgroup,
        block.thread,
        comptime!(tiles.fragment[1]),
        stationary_rows,
    );
    wait(block.streamed.full, 0u32);

    let partial_mask = partial_mask_at(&mask.entries, block.work.begin, block.warpgroup, shape);
    let bits = mask_bits::<Const<1>>(&mask.partial_masks, partial_mask, block.thread, shape);
    let scores = issue::<NS, NA>(
        k_fragment,
        block.k_at,
        block.q_at,
        comptime!(tiles.scores()),
        comptime!(tiles.fragment[0]),
    );
    let mut gradients = scores;
    if comptime!(tiles.sums.keys()) {
        gradients = issue::<NS, NB>(
            v_fragment,
            block.v_at,
            block.do_at,
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
    let p = probabilities::<NS>(
        scores,
        &block.streamed.q.statistics,
        block.column,
        block.scale_log2,
        streamed_rows,
    );
    let v_sum = if comptime!(tiles.sums.values()) {
        let weights = pack::<NS, NP>(p, streamed_rows, element);
        wgmma::issue_registers_from_zero::<NG, NP>(weights, block.do_at, comptime!(tiles.weighted()))
    } else {
        Vector::<f32, NG>::new(0.0f32)
    };
    let k_sum = if comptime!(tiles.sums.keys()) {
        let gradients = wgmma::wait::<NS>(
            gradients,
            comptime!(tiles.scores()),
            comptime!(tiles.sums.values() as usize),
        );
        let ds = score_gradients::<NS>(
            p,
            gradients,
            &block.streamed.d_o.statistics,
            block.column,
            streamed_rows,
        );
        let weights = pack::<NS, NP>(ds, streamed_rows, element);
        wgmma::issue_registers_from_zero::<NG, NP>(weights, block.q_at, comptime!(tiles.weighted()))
    } else {
        Vector::<f32, NG>::new(0.0f32)
    };
    FirstTile::<NG, NA, NB> {
        k_fragment,
        v_fragment,
        v_sum,
        k_sum,
    }
}

/// The other tiles: the sums over all, of values and of keys, with the last products in flight.
#[cube]
fn mainloop<E: Numeric, NS: Size, NG: Size, NP: Size, NA: Size, NB: Size>(
    block: &KeysBlock<E>,
    mask: &BlockMaskArgs<Const<1>>,
    statistics: &QueryStatisticPairs,
    first: &FirstTile<NG, NA, NB>,
    #[comptime] tiles: BackwardTiles,
) -> (Vector<f32, NG>, Vector<f32, NG>) {
    let streamed_rows = comptime!(tiles.streamed_rows);
    let stages = comptime!(tiles.stages);
    let last_warp = comptime!(4 * tiles.warpgroups as u32 - 1);
    let tile_units = comptime!((tiles.streamed_rows * 8 * tiles.panels()) as u32);
    let element = comptime!(tiles.operand_type);
    let refill_late = comptime!(tiles.refill_late);
    let shape = comptime!(tiles.mask_shape());
    let (begin, tile_count) = (block.work.begin, block.work.tile_count);
    let (first_tile, tiles_per_head) = (block.work.first_tile, block.work.tiles_per_head);
    let (warpgroup, lane, full) = (block.warpgroup, block.lane, block.streamed.full);

    let mut v_sum = first.v_sum;
    let mut k_sum = first.k_sum;
    let mut stage = 0u32;
    let mut phase = 0u32;
    // Where in the list the next tile is, and the one whose copy starts in this turn, with its head.
    let mut place = (first_tile + 1) % tiles_per_head;
    let mut next_partial_mask = partial_mask_at(&mask.entries, begin + place, warpgroup, shape);
    let mut ahead_place = (first_tile + comptime!(stages as u32 - 1)) % tiles_per_head;
    let mut ahead_head =
        block.work.kv_head * block.group + (first_tile + comptime!(stages as u32 - 1)) / tiles_per_head;
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
        let q_now = block.q_at + u64::cast_from(stage * tile_units);
        let do_now = block.do_at + u64::cast_from(stage * tile_units);
        let pairs = stage as usize * comptime!(streamed_rows / 2) + block.column;
        wait(barrier::at(full, stage as usize), phase);
        let scores = issue::<NS, NA>(
            first.k_fragment,
            block.k_at,
            q_now,
            comptime!(tiles.scores()),
            comptime!(tiles.fragment[0]),
        );
        let mut gradients = scores;
        if comptime!(tiles.sums.keys()) {
            gradients = issue::<NS, NB>(
                first.v_fragment,
                block.v_at,
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
                &block.streamed,
                statistics,
                freed,
                ahead_head,
                row,
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
        let upcoming = tile_at(&mask.entries, begin + ahead_place, shape);
        let partial_mask = next_partial_mask;
        place += 1;
        if place == tiles_per_head {
            place = 0;
        }
        next_partial_mask = partial_mask_at(&mask.entries, begin + place, warpgroup, shape);
        let bits = mask_bits::<Const<1>>(&mask.partial_masks, partial_mask, block.thread, shape);
        let scores = wgmma::wait::<NS>(
            scores,
            comptime!(tiles.scores()),
            comptime!(tiles.sums.keys() as usize),
        );
        // All products of the tile before are done, too.
        let users = count_stage(lane, block.used_base, before, tiles);
        if comptime!(!refill_late) && users == last_warp && tile - 1 + comptime!(stages as u32) < tile_count {
            let row = upcoming * comptime!(streamed_rows as u32);
            next_tile::<E>(
                barrier::at(full, before as usize),
                &block.streamed,
                statistics,
                before as usize,
                ahead_head,
                row,
                tiles,
                Issue::SingleThread,
            );
        }
        freed_by = read::<u32>(users);
        freed_for = read::<u32>(upcoming);
        let scores = apply_mask::<NS>(scores, partial_mask, bits, shape);
        let p = probabilities::<NS>(
            scores,
            &block.streamed.q.statistics,
            pairs,
            block.scale_log2,
            streamed_rows,
        );
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
            let ds =
                score_gradients::<NS>(p, gradients, &block.streamed.d_o.statistics, pairs, streamed_rows);
            let weights = pack::<NS, NP>(ds, streamed_rows, element);
            k_sum = wgmma::issue_registers::<NG, NP>(k_sum, weights, q_now, comptime!(tiles.weighted()));
        }
    }
    (v_sum, k_sum)
}

/// Writes a block's sums over its split of the queries, of values and of keys, to `sums`.
#[cube]
fn write_sums<E: Numeric, NG: Size>(
    block: &KeysBlock<E>,
    sums: &mut [Pair],
    v_sum: Vector<f32, NG>,
    k_sum: Vector<f32, NG>,
    #[comptime] tiles: BackwardTiles,
) {
    let split_q = comptime!(tiles.split_q as u32);
    let rows = CUBE_COUNT_X / split_q * comptime!(tiles.stationary_rows() as u32);
    let of_head = (block.work.batch * CUBE_COUNT_Y + block.work.kv_head) * split_q + block.work.query_split;
    let of_block = of_head * rows + block.work.first_key;
    let row = of_block + block.warpgroup * 64 + (block.thread / 32) * 16 + block.lane / 4;
    if comptime!(tiles.sums.values()) {
        let sum = wgmma::wait::<NG>(v_sum, comptime!(tiles.weighted()), 0usize);
        write_sum::<NG>(sums, row, block.lane, sum, comptime!(tiles.head_dim));
    }
    if comptime!(tiles.sums.keys()) {
        let of_keys = CUBE_COUNT_Z * CUBE_COUNT_Y * split_q * rows;
        let sum = wgmma::wait::<NG>(k_sum, comptime!(tiles.weighted()), 0usize);
        write_sum::<NG>(sums, of_keys + row, block.lane, sum, comptime!(tiles.head_dim));
    }
}

/// Writes a warpgroup's gradients of values and of keys, these times `scale`. They take the places of its keys and values.
#[cube]
fn store_gradients<E: Numeric, NG: Size>(
    block: &KeysBlock<E>,
    maps: &mut BackwardKeysMaps<E>,
    v_sum: Vector<f32, NG>,
    k_sum: Vector<f32, NG>,
    scale: f32,
    #[comptime] tiles: BackwardTiles,
) {
    let (rows, panels) = comptime!((tiles.stationary_rows(), tiles.panels()));
    let (warpgroup, thread) = (block.warpgroup, block.thread);
    if comptime!(tiles.sums.values()) {
        let sum = wgmma::wait::<NG>(v_sum, comptime!(tiles.weighted()), 0usize);
        stage_gradient::<NG>(block.v_base, warpgroup, thread, sum, 1.0f32, tiles);
    }
    if comptime!(tiles.sums.keys()) {
        let sum = wgmma::wait::<NG>(k_sum, comptime!(tiles.weighted()), 0usize);
        stage_gradient::<NG>(block.k_base, warpgroup, thread, sum, scale, tiles);
    }
    tma::fence();
    named_sync(warpgroup + 1, 128u32);
    if thread == 0 {
        let origin = TileOrigin {
            batch: block.work.batch,
            head: block.work.kv_head,
            row: block.work.first_key + warpgroup * 64,
        };
        if comptime!(tiles.sums.values()) {
            store_rows::<E>(
                &block.stationary.second_tile,
                &mut maps.dv,
                warpgroup,
                &origin,
                rows,
                panels,
                Issue::SingleThread,
            );
        }
        if comptime!(tiles.sums.keys()) {
            store_rows::<E>(
                &block.stationary.first_tile,
                &mut maps.dk,
                warpgroup,
                &origin,
                rows,
                panels,
                Issue::SingleThread,
            );
        }
        tma::wait_read(0usize);
    }
}

/// `dk` and `dv`. One block for `tiles.stationary_rows()` keys of a key head. The mask's list is of streamed queries, its rows are keys;
/// see [`block_mask`](crate::block_mask).
///
/// With `tiles.split_q` above one a block takes a split of the queries, and leaves its sums in `sums`: of values, then of keys,
/// each `[B, H, split_q, rows, D]`, with whole blocks of rows. [`reduce_partials`](super::reduce_partials) makes gradients of them.
#[cube(launch_unchecked)]
pub fn backward_keys<E: Numeric, NS: Size, NG: Size, NP: Size, NA: Size, NB: Size>(
    maps: &mut BackwardKeysMaps<E>,
    sums: &mut [Vector<f32, Const<2>>],
    statistics: &QueryStatisticPairs,
    mask: &BlockMaskArgs<Const<1>>,
    problem: &BackwardKeysProblem,
    #[comptime] tiles: BackwardTiles,
    #[define(E)] _element: ElemType,
    #[define(NS, NG, NP, NA, NB)] _vectors: [usize; 5],
) {
    let stationary_elements = comptime!(tiles.stationary_rows() * 64 * tiles.panels());
    let streamed_elements = comptime!(tiles.streamed_rows * 64 * tiles.panels() * tiles.stages);
    let statistic_pairs = comptime!(tiles.streamed_rows / 2 * tiles.stages);
    let leading = comptime!((tiles.streamed_rows * 128) as u32);
    let stages = comptime!(tiles.stages);

    let k_tile: Shared<[E]> = Shared::new_aligned_slice(stationary_elements, 1024usize);
    let v_tile: Shared<[E]> = Shared::new_aligned_slice(stationary_elements, 1024usize);
    let q_tiles: Shared<[E]> = Shared::new_aligned_slice(streamed_elements, 1024usize);
    let do_tiles: Shared<[E]> = Shared::new_aligned_slice(streamed_elements, 1024usize);
    let lse_tiles: Shared<[Pair]> = Shared::new_aligned_slice(statistic_pairs, 16usize);
    let delta_tiles: Shared<[Pair]> = Shared::new_aligned_slice(statistic_pairs, 16usize);
    let kv_full: Shared<[u64]> = Shared::new_slice(1usize);
    let kv_full = barrier::first(&kv_full);
    let full: Shared<[u64]> = Shared::new_slice(stages);
    let full = barrier::first(&full);
    let mut used: Shared<[u32]> = Shared::new_slice(comptime!(stages * COUNTER_WORDS));

    let heads = CUBE_COUNT_Y * problem.group;
    let work = key_work(mask, problem, tiles);
    start_barriers(kv_full, full, &mut used, stages);

    let (warpgroup, thread) =
        warpgroup_and_thread(comptime!(tiles.warpgroups), comptime!(tiles.uniform_warpgroup));
    let lane = thread % 32;
    let stationary = StationaryTiles::<E> {
        first: maps.k,
        second: maps.v,
        first_tile: k_tile,
        second_tile: v_tile,
        full: kv_full,
    };
    let q = StreamedOperand::<E> {
        map: maps.q,
        tiles: q_tiles,
        statistics: lse_tiles,
    };
    let d_o = StreamedOperand::<E> {
        map: maps.d_o,
        tiles: do_tiles,
        statistics: delta_tiles,
    };
    let streamed = StreamedQueries::<E> {
        q,
        d_o,
        full,
        batch: work.batch,
        heads,
        lse_rows: problem.lse_rows,
    };
    // A vote, so that the compiler takes it for the same in all threads of the warp.
    if plane_any(UNIT_POS < 32) {
        start_copies::<E>(&stationary, &streamed, statistics, &work, problem.group, tiles);
    }

    let k_base = shared_address::<E>(&stationary.first_tile);
    let v_base = shared_address::<E>(&stationary.second_tile);
    let q_base = shared_address::<E>(&streamed.q.tiles);
    let do_base = shared_address::<E>(&streamed.d_o.tiles);
    let used_base = shared_address::<u32>(&used);
    let k_at = wgmma::descriptor(k_base + warpgroup * 8192, 16u32, 1024u32);
    let v_at = wgmma::descriptor(v_base + warpgroup * 8192, 16u32, 1024u32);
    let q_at = wgmma::descriptor(q_base, leading, 1024u32);
    let do_at = wgmma::descriptor(do_base, leading, 1024u32);
    let column = (lane % 4) as usize;
    let block = KeysBlock::<E> {
        work,
        stationary,
        streamed,
        k_base,
        v_base,
        used_base,
        k_at,
        v_at,
        q_at,
        do_at,
        warpgroup,
        thread,
        lane,
        column,
        group: problem.group,
        scale_log2: problem.scale_log2,
    };

    let first = first_tile::<E, NS, NG, NP, NA, NB>(&block, mask, tiles);
    let (v_sum, k_sum) = mainloop::<E, NS, NG, NP, NA, NB>(&block, mask, statistics, &first, tiles);
    if comptime!(tiles.split_q > 1) {
        write_sums::<E, NG>(&block, sums, v_sum, k_sum, tiles);
    } else {
        store_gradients::<E, NG>(&block, maps, v_sum, k_sum, problem.scale, tiles);
    }
}
