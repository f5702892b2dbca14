//! Gradients of keys and values: a tile of keys is stationary in a block, queries are streamed.
//!
//! With `P = exp(scale Q Kᵀ - lse)`: `dV = Pᵀ dO`, `dS = P ∘ (dO Vᵀ - delta)`, `dK = scale dSᵀ Q` (Dao 2023,
//! arXiv:2307.08691, algorithm 2). Products are transposed, so that `Pᵀ` and `dSᵀ` are in the registers that the next
//! product wants them in. A row of the sum over queries is summed in one thread, in order.

use super::BackwardTiles;
use super::arguments::{BackwardKeysInputs, BackwardKeysProblem, BlockMaskBuffers, StatisticsBuffers};
use super::copy::{HeadRows, Rows, copy_stationary, copy_tile, head_offset, rows_of_head, store_rows};
use super::stream::{StageRing, thread_position};
use super::tiles::Streaming;
use crate::block_mask::{NONE, apply_mask, mask_bits, partial_mask_at, tile_at, work_tile_of};
use crate::delta::Eight;
use crate::softmax::pack;
use crate::softmax_by_columns::{Pair, probabilities, score_gradients};
use cubecl::prelude::*;
use flow_cube::cp_async::{commit, copy_16, wait};
use flow_cube::mma::{lane_by_columns, lane_by_rows, multiply, multiply_registers};
use flow_cube::register::shared_address;

/// Starts copying the statistics of `rows` queries from `from` (in pairs) on.
#[cube]
fn copy_statistics(
    lse: &[Pair],
    delta: &[Pair],
    from: u32,
    lse_to: u32,
    delta_to: u32,
    #[comptime] rows: usize,
) {
    let chunks = comptime!((rows / 4) as u32);
    if UNIT_POS < chunks {
        let at = (from + UNIT_POS * 2) as usize;
        copy_16::<Pair>(
            lse_to + UNIT_POS * 16,
            // SAFETY: rows of statistics are padded to a multiple of 128 (`lse_rows`), and a tile of queries
            // begins within them.
            unsafe { lse[at..at + 2].as_ptr_unchecked() },
            16u32.runtime(),
        );
        copy_16::<Pair>(
            delta_to + UNIT_POS * 16,
            // SAFETY: rows of statistics are padded to a multiple of 128 (`lse_rows`), and a tile of queries
            // begins within them.
            unsafe { delta[at..at + 2].as_ptr_unchecked() },
            16u32.runtime(),
        );
    }
}

/// A block's keys, and the tiles of queries that they meet: those of its list, for one head of queries after the other.
#[derive(CubeType)]
struct KeyBlock {
    /// Heads of queries of a sample.
    heads: u32,
    /// Sample of the batch.
    batch: u32,
    /// Head of the keys.
    kv_head: u32,
    /// The first key.
    first_key: u32,
    /// First entry of the list.
    begin: u32,
    /// Tiles of the list.
    tiles_per_head: u32,
    /// Tiles of all heads.
    tile_count: u32,
}

/// This block's keys and its list.
#[cube]
fn key_block(
    mask: &BlockMaskBuffers,
    problem: &BackwardKeysProblem,
    #[comptime] rows: usize,
    #[comptime] streaming: Streaming,
) -> KeyBlock {
    let heads = CUBE_COUNT_Y * problem.group;
    let all = problem.queries.div_ceil(comptime!(streaming.rows as u32));
    let work_tile = work_tile_of(mask.work_tiles, all, comptime!(streaming.shape));
    let first_key = work_tile.block * comptime!(rows as u32);
    let tile_count = work_tile.tiles * problem.group;
    KeyBlock {
        heads,
        batch: work_tile.sample,
        kv_head: work_tile.head,
        first_key,
        begin: work_tile.begin,
        tiles_per_head: work_tile.tiles,
        tile_count,
    }
}

/// The queries of a sample as a thread copies them, and the byte addresses of their stages.
#[derive(CubeType)]
struct QueryStream {
    q: Rows,
    d_o: Rows,
    q_base: u32,
    do_base: u32,
    lse_base: u32,
    delta_base: u32,
}

/// A tile of queries: its head, and its first row.
#[derive(CubeType)]
struct QueryTile {
    head: u32,
    row: u32,
}

/// The block's tile `number`.
#[cube]
fn query_tile(
    mask: &BlockMaskBuffers,
    problem: &BackwardKeysProblem,
    block: &KeyBlock,
    number: u32,
    #[comptime] streaming: Streaming,
) -> QueryTile {
    let head = block.kv_head * problem.group + number / block.tiles_per_head;
    let row = tile_at(
        mask.entries,
        block.begin + number % block.tiles_per_head,
        comptime!(streaming.shape),
    ) * comptime!(streaming.rows as u32);
    QueryTile { head, row }
}

/// Starts copying the queries of `tile`, the gradients of their output and their statistics to stage `stage`.
#[cube]
fn copy_query_tile(
    inputs: &BackwardKeysInputs,
    statistics: &StatisticsBuffers,
    problem: &BackwardKeysProblem,
    block: &KeyBlock,
    stream: &QueryStream,
    tile: &QueryTile,
    stage: u32,
    #[comptime] streaming: Streaming,
) {
    let rows = comptime!(streaming.rows);
    let head_dim = comptime!(streaming.head_dim);
    let threads = comptime!(streaming.threads);
    let tile_bytes = comptime!(streaming.tile_bytes());
    let from = ((block.batch * block.heads + tile.head) * problem.lse_rows + tile.row) / 2;
    copy_tile(
        inputs.q,
        head_offset(stream.q, tile.head),
        tile.row,
        problem.queries - tile.row,
        stream.q_base + stage * tile_bytes,
        rows,
        head_dim,
        threads,
    );
    copy_tile(
        inputs.d_o,
        head_offset(stream.d_o, tile.head),
        tile.row,
        problem.queries - tile.row,
        stream.do_base + stage * tile_bytes,
        rows,
        head_dim,
        threads,
    );
    let at = stage * comptime!((rows * 4) as u32);
    copy_statistics(
        statistics.lse,
        statistics.delta,
        from,
        stream.lse_base + at,
        stream.delta_base + at,
        rows,
    );
}

/// Starts the copies of the first tiles, one for each stage but the last.
#[cube]
fn start_queries(
    inputs: &BackwardKeysInputs,
    statistics: &StatisticsBuffers,
    mask: &BlockMaskBuffers,
    problem: &BackwardKeysProblem,
    block: &KeyBlock,
    stream: &QueryStream,
    #[comptime] streaming: Streaming,
) {
    #[unroll]
    for s in 0..comptime!(streaming.stages - 1) {
        let number = comptime!(s as u32).runtime();
        if number < block.tile_count {
            let tile = query_tile(mask, problem, block, number, streaming);
            copy_query_tile(
                inputs, statistics, problem, block, stream, &tile, number, streaming,
            );
        }
        commit();
    }
}

/// `dk` and `dv`. One block for `tiles.stationary_rows()` keys of a key head; `lse` and `delta` are `[B, H, lse_rows]`. The mask's list
/// is of streamed queries, its rows are keys; see [`block_mask`](crate::block_mask).
#[cube(launch_unchecked)]
pub fn mma_backward_keys<NS: Size, NG: Size, NP: Size>(
    inputs: &BackwardKeysInputs,
    dk: &mut Tensor<Eight>,
    dv: &mut Tensor<Eight>,
    statistics: &StatisticsBuffers,
    mask: &BlockMaskBuffers,
    problem: &BackwardKeysProblem,
    #[comptime] tiles: BackwardTiles,
    #[define(NS, NG, NP)] _vectors: [usize; 3],
) {
    let stationary_rows = comptime!(tiles.stationary_rows());
    let streamed_rows = comptime!(tiles.streamed_rows);
    let stages = comptime!(tiles.stages);
    let element = comptime!(tiles.operand_type);
    let words = comptime!(32 * tiles.panels());
    let streaming = comptime!(tiles.streaming());
    let tile_bytes = comptime!(streaming.tile_bytes());

    let k_tile: Shared<[u32]> = Shared::new_aligned_slice(comptime!(stationary_rows * words), 1024usize);
    let v_tile: Shared<[u32]> = Shared::new_aligned_slice(comptime!(stationary_rows * words), 1024usize);
    let q_tiles: Shared<[u32]> =
        Shared::new_aligned_slice(comptime!(streamed_rows * words * stages), 1024usize);
    let do_tiles: Shared<[u32]> =
        Shared::new_aligned_slice(comptime!(streamed_rows * words * stages), 1024usize);
    let lse_tiles: Shared<[Pair]> = Shared::new_aligned_slice(comptime!(streamed_rows / 2 * stages), 16usize);
    let delta_tiles: Shared<[Pair]> =
        Shared::new_aligned_slice(comptime!(streamed_rows / 2 * stages), 16usize);
    let k_base = shared_address::<u32>(&k_tile);
    let v_base = shared_address::<u32>(&v_tile);
    let q_base = shared_address::<u32>(&q_tiles);
    let do_base = shared_address::<u32>(&do_tiles);
    let lse_base = shared_address::<Pair>(&lse_tiles);
    let delta_base = shared_address::<Pair>(&delta_tiles);

    let block = key_block(mask, problem, stationary_rows, streaming);
    let stream = QueryStream {
        q: rows_of_head(inputs.q, block.batch, 0u32.runtime()),
        d_o: rows_of_head(inputs.d_o, block.batch, 0u32.runtime()),
        q_base,
        do_base,
        lse_base,
        delta_base,
    };
    let stationary = HeadRows {
        batch: block.batch,
        head: block.kv_head,
        row: block.first_key,
        exist: problem.keys,
    };
    copy_stationary(inputs.k, inputs.v, &stationary, k_base, v_base, tiles);
    start_queries(inputs, statistics, mask, problem, &block, &stream, streaming);

    let position = thread_position();
    let column = (position.lane % 4) as usize;
    let k_at = k_base + position.warp_row * 128 + lane_by_rows(position.lane);
    let v_at = v_base + position.warp_row * 128 + lane_by_rows(position.lane);
    let by_columns = lane_by_columns(position.lane);
    let by_rows = lane_by_rows(position.lane);

    let mut k_sum = Vector::<f32, NG>::new(0.0f32);
    let mut v_sum = Vector::<f32, NG>::new(0.0f32);
    let mut ring = StageRing::new(stages);
    for at in 0..block.tile_count {
        let entry = block.begin + at % block.tiles_per_head;
        let partial_mask = partial_mask_at(
            mask.entries,
            entry,
            position.row_group,
            comptime!(streaming.shape),
        );
        let bits = mask_bits::<Const<1>>(
            mask.partial_masks,
            partial_mask,
            position.thread,
            comptime!(streaming.shape),
        );
        wait(comptime!(stages - 2));
        sync_cube();
        let next = at + comptime!(stages as u32 - 1);
        if next < block.tile_count {
            let tile = query_tile(mask, problem, &block, next, streaming);
            copy_query_tile(
                inputs, statistics, problem, &block, &stream, &tile, ring.free, streaming,
            );
        }
        commit();
        if partial_mask != NONE {
            let q_now = q_base + ring.stage * tile_bytes;
            let do_now = do_base + ring.stage * tile_bytes;
            let pairs = ring.stage as usize * comptime!(streamed_rows / 2) + column;
            let scores = multiply::<NS>(k_at, q_now + by_columns, comptime!(tiles.scores()));
            let scores = apply_mask::<NS>(scores, partial_mask, bits, comptime!(streaming.shape));
            let p = probabilities::<NS>(scores, &lse_tiles, pairs, problem.scale_log2, streamed_rows);
            if comptime!(tiles.sums.values()) {
                let weights = pack::<NS, NP>(p, streamed_rows, element);
                v_sum = multiply_registers::<NG, NP>(
                    v_sum,
                    weights,
                    do_now + by_rows,
                    comptime!(tiles.weighted()),
                );
            }
            if comptime!(tiles.sums.keys()) {
                let gradients = multiply::<NS>(v_at, do_now + by_columns, comptime!(tiles.scores()));
                let ds = score_gradients::<NS>(p, gradients, &delta_tiles, pairs, streamed_rows);
                let weights = pack::<NS, NP>(ds, streamed_rows, element);
                k_sum = multiply_registers::<NG, NP>(
                    k_sum,
                    weights,
                    q_now + by_rows,
                    comptime!(tiles.weighted()),
                );
            }
        }
        ring.advance(stages);
    }

    // Gradients take the places of this warp's keys and values.
    let results = HeadRows {
        batch: block.batch,
        head: block.kv_head,
        row: block.first_key + position.warp_row,
        exist: problem.keys,
    };
    if comptime!(tiles.sums.values()) {
        store_rows::<NG>(
            dv,
            &results,
            v_sum,
            1.0f32,
            1.0f32,
            v_base + position.warp_row * 128,
            position.lane,
            comptime!(tiles.staging()),
        );
    }
    if comptime!(tiles.sums.keys()) {
        store_rows::<NG>(
            dk,
            &results,
            k_sum,
            problem.scale,
            problem.scale,
            k_base + position.warp_row * 128,
            position.lane,
            comptime!(tiles.staging()),
        );
    }
}
