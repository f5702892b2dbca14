//! Gradient of queries: a tile of queries is stationary in a block, keys are streamed. Also `delta`, the sum over channels of `dO ∘ O`.
//!
//! `dQ = scale dS K` with `dS = P ∘ (dO Vᵀ - delta)` (Dao 2023, arXiv:2307.08691, algorithm 2). Runs before the kernel
//! for keys, which reads `delta`.

use super::BackwardTiles;
use super::arguments::{
    BackwardQueriesMaps, BackwardQueriesProblem, BlockMaskArgs, OutputRows, QueryStatistics,
};
use super::backward_block::{StationaryTiles, count_stage, load_stationary, start_barriers, starts_copy};
use super::copy::{TileOrigin, copy_tile, issue, load_fragment, stage_before_last, store_rows};
use super::kv_stages::KvHead;
use super::ping_pong::{end_turn, give_first_turn, wait_for_turn};
use crate::block_mask::{
    WorkTile, apply_mask, mask_bits, partial_mask_at, prefetched_tile, tile_at, tile_rows_in_segment,
    work_tile_of,
};
use crate::delta::{RowFragment, read_row, row_product};
use crate::softmax::{exponentiate, mask_out_of_bounds, pack, score_gradients, stage_rows};
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use flow_cube::Issue;
use flow_cube::barrier::{self, COUNTER_WORDS, arrive_and_expect, came_last, named_sync, wait};
use flow_cube::register::{read, shared_address};
use flow_cube::tma;
use flow_cube::warpgroup::warpgroup_and_thread;
use flow_cube::wgmma;

/// The stages that tiles of keys, and of values, pass through.
#[derive(CubeType)]
struct StreamedKv<E: Numeric> {
    k: TensorMap<E, Tiled>,
    v: TensorMap<E, Tiled>,
    k_2: TensorMap<E, Tiled>,
    v_2: TensorMap<E, Tiled>,
    k_tiles: Shared<[E]>,
    v_tiles: Shared<[E]>,
    /// The first barrier of the stages: a phase completes when both tiles are there.
    full: u32,
}

/// Starts the copies of a tile of keys and of one of values, from `origin` on, to the stage that begins at `at`.
#[cube]
fn copy_pair<E: Numeric>(
    full: u32,
    k: &TensorMap<E, Tiled>,
    v: &TensorMap<E, Tiled>,
    streamed: &StreamedKv<E>,
    at: usize,
    origin: &TileOrigin,
    #[comptime] tiles: BackwardTiles,
    #[comptime] caller: Issue,
) {
    let (rows, panels) = comptime!((tiles.streamed_rows, tiles.panels()));
    copy_tile::<E>(full, k, &streamed.k_tiles, at, origin, rows, panels, caller);
    copy_tile::<E>(full, v, &streamed.v_tiles, at, origin, rows, panels, caller);
}

/// Starts the copies of streamed tile `tile` to stage `stage`.
#[cube]
fn next_tile<E: Numeric>(
    streamed: &StreamedKv<E>,
    kv_head: &KvHead,
    stage: usize,
    tile: u32,
    #[comptime] tiles: BackwardTiles,
    #[comptime] caller: Issue,
) {
    let full = barrier::at(streamed.full, stage);
    let rows = comptime!(tiles.streamed_rows);
    let panels = comptime!(tiles.panels());
    arrive_and_expect(full, comptime!((2 * rows * 128 * panels) as u32), caller);
    let at = stage * comptime!(rows * 64 * panels);
    let (_, row) = tile_rows_in_segment(
        tile,
        kv_head.first_keys,
        0u32.runtime(),
        rows,
        comptime!(tiles.two_segments),
    );
    let origin = TileOrigin {
        batch: kv_head.batch,
        head: kv_head.head,
        row,
    };
    if comptime!(tiles.two_segments) {
        if tile * comptime!(tiles.streamed_rows as u32) < kv_head.first_keys {
            copy_pair::<E>(
                full,
                &streamed.k,
                &streamed.v,
                streamed,
                at,
                &origin,
                tiles,
                caller,
            );
        } else {
            copy_pair::<E>(
                full,
                &streamed.k_2,
                &streamed.v_2,
                streamed,
                at,
                &origin,
                tiles,
                caller,
            );
        }
    } else {
        copy_pair::<E>(
            full,
            &streamed.k,
            &streamed.v,
            streamed,
            at,
            &origin,
            tiles,
            caller,
        );
    }
}

/// A block's work and shared memory, and a thread's place in it. `_base` are byte addresses of shared memory, `_at` descriptors.
#[derive(CubeType)]
struct QueriesBlock<E: Numeric> {
    work: WorkTile,
    first_query: u32,
    kv_head: KvHead,
    stationary: StationaryTiles<E>,
    streamed: StreamedKv<E>,
    q_base: u32,
    do_base: u32,
    /// Counters of the stages that warps are done with.
    used_base: u32,
    q_at: u64,
    do_at: u64,
    k_at: u64,
    v_at: u64,
    warpgroup: u32,
    /// Of the warpgroup.
    thread: u32,
    lane: u32,
    /// The first of this thread's two rows: of its warpgroup's, and of the tile's.
    row: u32,
    of_tile: u32,
    /// The log-sum-exp of this thread's two rows, in units of log2.
    offset_0: f32,
    offset_1: f32,
    scale_log2: f32,
}

/// The sum over the first tile, with its product in flight, and what all tiles want.
#[derive(CubeType)]
struct FirstTile<NG: Size, NA: Size, NB: Size> {
    q_fragment: Vector<u32, NA>,
    do_fragment: Vector<u32, NB>,
    delta_0: f32,
    delta_1: f32,
    q_sum: Vector<f32, NG>,
}

/// Starts the copies of the queries and of the first tiles.
///
/// With a list one warp starts them, in order. Without, four divide them: the tiles of blocks that run side by side are the same,
/// and ptxas orders the loop below so that long calls take 1 to 3 % less. Votes, so that it takes them for the same in a warp's threads.
#[cube]
fn start_copies<E: Numeric>(
    stationary: &StationaryTiles<E>,
    streamed: &StreamedKv<E>,
    work: &WorkTile,
    kv_head: &KvHead,
    first_query: u32,
    #[comptime] tiles: BackwardTiles,
) {
    let divided = comptime!(!tiles.masked);
    let takes_part = if divided {
        true.runtime()
    } else {
        plane_any(UNIT_POS < 32)
    };
    if takes_part {
        if starts_copy(true.runtime(), 0usize, divided) {
            let origin = TileOrigin {
                batch: work.sample,
                head: work.head,
                row: first_query,
            };
            load_stationary::<E>(stationary, &origin, tiles);
        }
        #[unroll]
        for s in 0..comptime!(tiles.stages) {
            let tile = prefetched_tile(work.prefetched, s, comptime!(tiles.mask_shape()));
            if starts_copy(comptime!(s as u32) < work.tiles, s + 1, divided) {
                next_tile::<E>(streamed, kv_head, s, tile, tiles, Issue::ElectedLane);
            }
        }
    }
}

/// The first tile. `row` is the thread's share of row `of_row`, whose `delta` it writes; `lse_at` is where the head's statistics begin.
#[cube]
fn first_tile<E: Numeric, NS: Size, NG: Size, NP: Size, NA: Size, NB: Size>(
    block: &QueriesBlock<E>,
    mask: &BlockMaskArgs<Const<1>>,
    row: &RowFragment,
    delta: &mut [f32],
    lse_at: u32,
    of_row: u32,
    #[comptime] tiles: BackwardTiles,
) -> FirstTile<NG, NA, NB> {
    let stationary_rows = comptime!(tiles.stationary_rows());
    let streamed_rows = comptime!(tiles.streamed_rows);
    let element = comptime!(tiles.operand_type);
    let shape = comptime!(tiles.mask_shape());
    let lane = block.lane;
    let partial_mask = partial_mask_at(&mask.entries, block.work.begin, block.warpgroup, shape);
    let bits = mask_bits::<Const<1>>(&mask.partial_masks, partial_mask, block.thread, shape);
    // Where one warpgroup has the multiprocessor to itself, what stands between its products delays them.
    let sum_early = comptime!(tiles.head_dim > 128);
    let mut sum = 0.0f32;
    if comptime!(sum_early) {
        sum = row_product(row, comptime!(tiles.head_dim), element);
    }
    wait(block.stationary.full, 0u32);
    let q_fragment = load_fragment::<NA>(
        block.q_base,
        block.warpgroup,
        block.thread,
        comptime!(tiles.fragment[0]),
        stationary_rows,
    );
    let do_fragment = load_fragment::<NB>(
        block.do_base,
        block.warpgroup,
        block.thread,
        comptime!(tiles.fragment[1]),
        stationary_rows,
    );
    wait(block.streamed.full, 0u32);
    let scores = issue::<NS, NA>(
        q_fragment,
        block.q_at,
        block.k_at,
        comptime!(tiles.scores()),
        comptime!(tiles.fragment[0]),
    );
    let gradients = issue::<NS, NB>(
        do_fragment,
        block.do_at,
        block.v_at,
        comptime!(tiles.scores()),
        comptime!(tiles.fragment[1]),
    );
    if comptime!(!sum_early) {
        sum = row_product(row, comptime!(tiles.head_dim), element);
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
        block.kv_head.first_keys,
        block.kv_head.second_keys,
        streamed_rows,
        comptime!(tiles.two_segments),
    );
    if comptime!(!tiles.masked) && exist < comptime!(tiles.streamed_rows as u32) {
        scores = mask_out_of_bounds::<NS>(scores, (lane % 4) * 2, exist, streamed_rows);
    }
    let (offset_0, offset_1) = (block.offset_0, block.offset_1);
    let p = exponentiate::<NS>(scores, block.scale_log2, offset_0, offset_1, streamed_rows);
    let gradients = wgmma::wait::<NS>(gradients, comptime!(tiles.scores()), 0usize);
    let ds = score_gradients::<NS>(p, gradients, delta_0, delta_1, streamed_rows);
    let q_sum = wgmma::issue_registers_from_zero::<NG, NP>(
        pack::<NS, NP>(ds, streamed_rows, element),
        block.k_at,
        comptime!(tiles.weighted()),
    );
    FirstTile::<NG, NA, NB> {
        q_fragment,
        do_fragment,
        delta_0,
        delta_1,
        q_sum,
    }
}

/// The other tiles: the sum over all, with the last product in flight.
#[cube]
fn mainloop<E: Numeric, NS: Size, NG: Size, NP: Size, NA: Size, NB: Size>(
    block: &QueriesBlock<E>,
    mask: &BlockMaskArgs<Const<1>>,
    first: &FirstTile<NG, NA, NB>,
    #[comptime] tiles: BackwardTiles,
) -> Vector<f32, NG> {
    let streamed_rows = comptime!(tiles.streamed_rows);
    let stages = comptime!(tiles.stages);
    let last_warp = comptime!(4 * tiles.warpgroups as u32 - 1);
    let tile_units = comptime!((tiles.streamed_rows * 8 * tiles.panels()) as u32);
    let element = comptime!(tiles.operand_type);
    let refill_late = comptime!(tiles.refill_late);
    let shape = comptime!(tiles.mask_shape());
    let (begin, tile_count) = (block.work.begin, block.work.tiles);
    let (warpgroup, lane) = (block.warpgroup, block.lane);
    let (offset_0, offset_1) = (block.offset_0, block.offset_1);

    let mut q_sum = first.q_sum;
    let mut stage = 0u32;
    let mut phase = 0u32;
    let mut next_partial_mask = partial_mask_at(&mask.entries, begin + 1, warpgroup, shape);
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
        let k_now = block.k_at + u64::cast_from(stage * tile_units);
        let v_now = block.v_at + u64::cast_from(stage * tile_units);
        wait(barrier::at(block.streamed.full, stage as usize), phase);
        if comptime!(tiles.ping_pong) {
            wait_for_turn(warpgroup);
        }
        let scores = issue::<NS, NA>(
            first.q_fragment,
            block.q_at,
            k_now,
            comptime!(tiles.scores()),
            comptime!(tiles.fragment[0]),
        );
        let gradients = issue::<NS, NB>(
            first.do_fragment,
            block.do_at,
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
                &block.streamed,
                &block.kv_head,
                to,
                tile,
                tiles,
                Issue::ElectedLane,
            );
        }
        // Read while products run, and long before it is asked for: neither a product nor a copy waits for the list.
        let upcoming = tile_at(&mask.entries, begin + at - 1 + comptime!(stages as u32), shape);
        let partial_mask = next_partial_mask;
        next_partial_mask = partial_mask_at(&mask.entries, begin + at + 1, warpgroup, shape);
        let bits = mask_bits::<Const<1>>(&mask.partial_masks, partial_mask, block.thread, shape);
        let mut scores = wgmma::wait::<NS>(scores, comptime!(tiles.scores()), 1usize);
        // The sum over the tile before is done, too.
        let users = count_stage(lane, block.used_base, before, tiles);
        if comptime!(!refill_late) && users == last_warp && at - 1 + comptime!(stages as u32) < tile_count {
            let to = before as usize;
            next_tile::<E>(
                &block.streamed,
                &block.kv_head,
                to,
                upcoming,
                tiles,
                Issue::SingleThread,
            );
        }
        freed_by = read::<u32>(users);
        freed_for = read::<u32>(upcoming);
        scores = apply_mask::<NS>(scores, partial_mask, bits, shape);
        let (exist, _) = tile_rows_in_segment(
            at,
            block.kv_head.first_keys,
            block.kv_head.second_keys,
            streamed_rows,
            comptime!(tiles.two_segments),
        );
        if comptime!(!tiles.masked) && exist < comptime!(tiles.streamed_rows as u32) {
            scores = mask_out_of_bounds::<NS>(scores, (lane % 4) * 2, exist, streamed_rows);
        }
        let p = exponentiate::<NS>(scores, block.scale_log2, offset_0, offset_1, streamed_rows);
        let gradients = wgmma::wait::<NS>(gradients, comptime!(tiles.scores()), 0usize);
        let ds = score_gradients::<NS>(p, gradients, first.delta_0, first.delta_1, streamed_rows);
        q_sum = wgmma::issue_registers::<NG, NP>(
            q_sum,
            pack::<NS, NP>(ds, streamed_rows, element),
            k_now,
            comptime!(tiles.weighted()),
        );
    }
    q_sum
}

/// Writes a warpgroup's gradient, times `scale`, which takes the place of its queries.
#[cube]
fn store_gradient<E: Numeric, NG: Size>(
    block: &QueriesBlock<E>,
    dq: &mut TensorMap<E, Tiled>,
    q_sum: Vector<f32, NG>,
    scale: f32,
    #[comptime] tiles: BackwardTiles,
) {
    let stationary_rows = comptime!(tiles.stationary_rows());
    let warpgroup = block.warpgroup;
    stage_rows::<NG>(
        block.q_base + block.of_tile * 128,
        block.row,
        block.lane,
        q_sum,
        scale,
        scale,
        comptime!(tiles.staging()),
    );
    tma::fence();
    named_sync(warpgroup + 1, 128u32);
    if block.thread == 0 {
        let origin = TileOrigin {
            batch: block.work.sample,
            head: block.work.head,
            row: block.first_query + warpgroup * 64,
        };
        store_rows::<E>(
            &block.stationary.first_tile,
            dq,
            warpgroup,
            &origin,
            stationary_rows,
            comptime!(tiles.panels()),
            Issue::SingleThread,
        );
        tma::wait_read(0usize);
    }
}

/// `dq`, and `delta`. One block for `tiles.stationary_rows()` queries of a head. Keys, values and the mask as in
/// [`forward`](super::forward::forward).
#[cube(launch_unchecked)]
pub fn backward_queries<E: Numeric, NS: Size, NG: Size, NP: Size, NA: Size, NB: Size>(
    maps: &mut BackwardQueriesMaps<E>,
    rows: &OutputRows,
    statistics: &mut QueryStatistics,
    mask: &BlockMaskArgs<Const<1>>,
    problem: &BackwardQueriesProblem,
    #[comptime] tiles: BackwardTiles,
    #[define(E)] _element: ElemType,
    #[define(NS, NG, NP, NA, NB)] _vectors: [usize; 5],
) {
    let stationary_elements = comptime!(tiles.stationary_rows() * 64 * tiles.panels());
    let streamed_elements = comptime!(tiles.streamed_rows * 64 * tiles.panels() * tiles.stages);
    let stages = comptime!(tiles.stages);

    let q_tile: Shared<[E]> = Shared::new_aligned_slice(stationary_elements, 1024usize);
    let do_tile: Shared<[E]> = Shared::new_aligned_slice(stationary_elements, 1024usize);
    let k_tiles: Shared<[E]> = Shared::new_aligned_slice(streamed_elements, 1024usize);
    let v_tiles: Shared<[E]> = Shared::new_aligned_slice(streamed_elements, 1024usize);
    let q_full: Shared<[u64]> = Shared::new_slice(1usize);
    let q_full = barrier::first(&q_full);
    let full: Shared<[u64]> = Shared::new_slice(stages);
    let full = barrier::first(&full);
    let mut used: Shared<[u32]> = Shared::new_slice(comptime!(stages * COUNTER_WORDS));

    let per_tile = comptime!(tiles.streamed_rows as u32);
    let mut all = problem.first_keys.div_ceil(per_tile);
    if comptime!(tiles.two_segments) {
        all += problem.second_keys.div_ceil(per_tile);
    }
    let work = work_tile_of(&mask.work_tiles, all, comptime!(tiles.mask_shape()));
    let (batch, head) = (work.sample, work.head);
    let kv_head = KvHead {
        batch,
        head: head / problem.group,
        first_keys: problem.first_keys,
        second_keys: problem.second_keys,
    };
    let first_query = work.block * comptime!(tiles.stationary_rows() as u32);

    // Two threads a row. What they read is on its way before the copies are, and is asked for behind the first products.
    let of_row = first_query + UNIT_POS / 2;
    let row_fragment = read_row(
        &rows.o_rows,
        &rows.do_rows,
        batch * rows.o_batch + head * rows.o_head + of_row * rows.o_row,
        batch * rows.do_batch + head * rows.do_head + of_row * rows.do_row,
        of_row < problem.queries,
        comptime!(tiles.head_dim),
    );
    start_barriers(q_full, full, &mut used, stages);

    let (warpgroup, thread) =
        warpgroup_and_thread(comptime!(tiles.warpgroups), comptime!(tiles.uniform_warpgroup));
    let lane = thread % 32;
    let stationary = StationaryTiles::<E> {
        first: maps.qkv.q,
        second: maps.d_o,
        first_tile: q_tile,
        second_tile: do_tile,
        full: q_full,
    };
    let streamed = StreamedKv::<E> {
        k: maps.qkv.k,
        v: maps.qkv.v,
        k_2: maps.qkv.k_2,
        v_2: maps.qkv.v_2,
        k_tiles,
        v_tiles,
        full,
    };
    start_copies::<E>(&stationary, &streamed, &work, &kv_head, first_query, tiles);

    let lse_at = (batch * (CUBE_COUNT_Y) + head) * problem.lse_rows;
    let row = (thread / 32) * 16 + lane / 4;
    let of_tile = warpgroup * 64 + row;
    let offset_0 = statistics.lse[(lse_at + first_query + of_tile) as usize] * std::f32::consts::LOG2_E;
    let offset_1 = statistics.lse[(lse_at + first_query + of_tile + 8) as usize] * std::f32::consts::LOG2_E;

    let q_base = shared_address::<E>(&stationary.first_tile);
    let do_base = shared_address::<E>(&stationary.second_tile);
    let k_base = shared_address::<E>(&streamed.k_tiles);
    let v_base = shared_address::<E>(&streamed.v_tiles);
    let used_base = shared_address::<u32>(&used);
    let q_at = wgmma::descriptor(q_base + warpgroup * 8192, 16u32, 1024u32);
    let do_at = wgmma::descriptor(do_base + warpgroup * 8192, 16u32, 1024u32);
    let k_at = wgmma::descriptor(k_base, comptime!((tiles.streamed_rows * 128) as u32), 1024u32);
    let v_at = wgmma::descriptor(v_base, comptime!((tiles.streamed_rows * 128) as u32), 1024u32);
    let block = QueriesBlock::<E> {
        work,
        first_query,
        kv_head,
        stationary,
        streamed,
        q_base,
        do_base,
        used_base,
        q_at,
        do_at,
        k_at,
        v_at,
        warpgroup,
        thread,
        lane,
        row,
        of_tile,
        offset_0,
        offset_1,
        scale_log2: problem.scale_log2,
    };

    let first = first_tile::<E, NS, NG, NP, NA, NB>(
        &block,
        mask,
        &row_fragment,
        &mut statistics.delta,
        lse_at,
        of_row,
        tiles,
    );
    let q_sum = mainloop::<E, NS, NG, NP, NA, NB>(&block, mask, &first, tiles);
    let q_sum = wgmma::wait::<NG>(q_sum, comptime!(tiles.weighted()), 0usize);

    store_gradient::<E, NG>(&block, &mut maps.dq, q_sum, problem.scale, tiles);
}
