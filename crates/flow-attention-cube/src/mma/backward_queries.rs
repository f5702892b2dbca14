//! Gradient of queries: a tile of queries is stationary in a block, keys are streamed. Also `delta`, the sum over channels of `dO ∘ O`.
//!
//! `dQ = scale dS K` with `dS = P ∘ (dO Vᵀ - delta)` (Dao 2023, arXiv:2307.08691, algorithm 2). Runs before the kernel
//! for keys, which reads `delta`.

use super::BackwardTiles;
use super::arguments::{BackwardQueriesInputs, BackwardQueriesProblem, BlockMaskBuffers};
use super::copy::{HeadRows, copy_stationary, store_rows};
use super::stream::{
    QueryBlock, StageRing, ThreadPosition, advance_stream, kv_stream, mask_scores, masked_tile, query_block,
    start_stream, thread_position,
};
use crate::block_mask::NONE;
use crate::delta::{Eight, read_row, row_product};
use crate::softmax::{exponentiate, pack, score_gradients};
use cubecl::prelude::*;
use flow_cube::mma::{lane_by_columns, lane_by_rows, multiply, multiply_registers};
use flow_cube::register::shared_address;

/// Computes `delta` of the block's rows, two threads a row, and writes it for the block to `deltas`, for the kernel for keys to
/// `delta`. Gives where the statistics of the head begin. For all threads, which meet.
#[cube]
fn write_deltas(
    inputs: &BackwardQueriesInputs,
    problem: &BackwardQueriesProblem,
    block: &QueryBlock,
    deltas: &mut Shared<[f32]>,
    delta: &mut [f32],
    #[comptime] tiles: BackwardTiles,
) -> u32 {
    let head_dim = comptime!(tiles.head_dim);
    let of_row = UNIT_POS / 2;
    let query = block.first_query + of_row;
    let lse_at = (block.batch * CUBE_COUNT_Y + block.head) * problem.sizes.lse_rows;
    let o_from = block.batch as usize * inputs.o.stride(0)
        + block.head as usize * inputs.o.stride(1)
        + query as usize * inputs.o.stride(2);
    let do_from = block.batch as usize * inputs.d_o.stride(0)
        + block.head as usize * inputs.d_o.stride(1)
        + query as usize * inputs.d_o.stride(2);
    let row = read_row(
        inputs.o.as_slice(),
        inputs.d_o.as_slice(),
        o_from as u32,
        do_from as u32,
        query < problem.sizes.queries,
        head_dim,
    );
    let sum = row_product(&row, head_dim, comptime!(tiles.operand_type));
    if UNIT_POS.is_multiple_of(2) {
        deltas[of_row as usize] = sum;
        delta[(lse_at + query) as usize] = sum;
    }
    sync_cube();
    lse_at
}

/// Statistics of a thread's two rows: `delta`, and the log-sum-exp in units of log2.
#[derive(CubeType)]
struct QueryStatistics {
    delta_0: f32,
    delta_1: f32,
    offset_0: f32,
    offset_1: f32,
}

/// The statistics of this thread's rows. Those of the head begin at `lse_at`.
#[cube]
fn query_statistics(
    lse: &[f32],
    deltas: &Shared<[f32]>,
    lse_at: u32,
    block: &QueryBlock,
    position: &ThreadPosition,
) -> QueryStatistics {
    let row = position.warp_row + position.lane / 4;
    let delta_0 = deltas[row as usize];
    let delta_1 = deltas[(row + 8) as usize];
    let offset_0 = lse[(lse_at + block.first_query + row) as usize] * std::f32::consts::LOG2_E;
    let offset_1 = lse[(lse_at + block.first_query + row + 8) as usize] * std::f32::consts::LOG2_E;
    QueryStatistics {
        delta_0,
        delta_1,
        offset_0,
        offset_1,
    }
}

/// `dq`, and `delta [B, H, lse_rows]`. One block for `tiles.stationary_rows()` queries of a head; `lse` as
/// [`mma_forward`](super::forward::mma_forward) writes it.
#[cube(launch_unchecked)]
pub fn mma_backward_queries<NS: Size, NG: Size, NP: Size>(
    inputs: &BackwardQueriesInputs,
    dq: &mut Tensor<Eight>,
    lse: &[f32],
    delta: &mut [f32],
    mask: &BlockMaskBuffers,
    problem: &BackwardQueriesProblem,
    #[comptime] tiles: BackwardTiles,
    #[define(NS, NG, NP)] _vectors: [usize; 3],
) {
    let stationary_rows = comptime!(tiles.stationary_rows());
    let streamed_rows = comptime!(tiles.streamed_rows);
    let stages = comptime!(tiles.stages);
    let words = comptime!(32 * tiles.panels());
    let streaming = comptime!(tiles.streaming());
    let tile_bytes = comptime!(streaming.tile_bytes());

    let q_tile: Shared<[u32]> = Shared::new_aligned_slice(comptime!(stationary_rows * words), 1024usize);
    let do_tile: Shared<[u32]> = Shared::new_aligned_slice(comptime!(stationary_rows * words), 1024usize);
    let k_tiles: Shared<[u32]> =
        Shared::new_aligned_slice(comptime!(streamed_rows * words * stages), 1024usize);
    let v_tiles: Shared<[u32]> =
        Shared::new_aligned_slice(comptime!(streamed_rows * words * stages), 1024usize);
    let mut deltas: Shared<[f32]> = Shared::new_slice(stationary_rows);
    let q_base = shared_address::<u32>(&q_tile);
    let do_base = shared_address::<u32>(&do_tile);
    let k_base = shared_address::<u32>(&k_tiles);
    let v_base = shared_address::<u32>(&v_tiles);

    let block = query_block(mask, &problem.sizes, stationary_rows, streaming);
    let stream = kv_stream(&inputs.attention, &block, k_base, v_base);
    let stationary = HeadRows {
        batch: block.batch,
        head: block.head,
        row: block.first_query,
        exist: problem.sizes.queries,
    };
    copy_stationary(
        inputs.attention.q,
        inputs.d_o,
        &stationary,
        q_base,
        do_base,
        tiles,
    );
    start_stream(
        &inputs.attention,
        &problem.sizes,
        mask,
        &block,
        &stream,
        streaming,
    );

    let lse_at = write_deltas(inputs, problem, &block, &mut deltas, delta, tiles);
    let position = thread_position();
    let statistics = query_statistics(lse, &deltas, lse_at, &block, &position);
    let q_at = q_base + position.warp_row * 128 + lane_by_rows(position.lane);
    let do_at = do_base + position.warp_row * 128 + lane_by_rows(position.lane);
    let by_columns = lane_by_columns(position.lane);
    let by_rows = lane_by_rows(position.lane);

    let mut q_sum = Vector::<f32, NG>::new(0.0f32);
    let mut ring = StageRing::new(stages);
    for at in 0..block.tile_count {
        let tile = masked_tile(mask, block.begin + at, &position, comptime!(streaming.shape));
        advance_stream(
            &inputs.attention,
            &problem.sizes,
            mask,
            &block,
            &stream,
            at,
            ring.free,
            streaming,
        );
        if tile.partial_mask != NONE {
            let k_now = k_base + ring.stage * tile_bytes;
            let v_now = v_base + ring.stage * tile_bytes;
            let scores = multiply::<NS>(q_at, k_now + by_columns, comptime!(tiles.scores()));
            let scores = mask_scores::<NS>(scores, &tile, position.lane, &problem.sizes, streaming);
            let p = exponentiate::<NS>(
                scores,
                problem.scale_log2,
                statistics.offset_0,
                statistics.offset_1,
                streamed_rows,
            );
            let gradients = multiply::<NS>(do_at, v_now + by_columns, comptime!(tiles.scores()));
            let ds = score_gradients::<NS>(
                p,
                gradients,
                statistics.delta_0,
                statistics.delta_1,
                streamed_rows,
            );
            let weights = pack::<NS, NP>(ds, streamed_rows, comptime!(tiles.operand_type));
            q_sum =
                multiply_registers::<NG, NP>(q_sum, weights, k_now + by_rows, comptime!(tiles.weighted()));
        }
        ring.advance(stages);
    }

    // The gradient takes the place of this warp's queries.
    let results = HeadRows {
        batch: block.batch,
        head: block.head,
        row: block.first_query + position.warp_row,
        exist: problem.sizes.queries,
    };
    store_rows::<NG>(
        dq,
        &results,
        q_sum,
        problem.scale,
        problem.scale,
        q_base + position.warp_row * 128,
        position.lane,
        comptime!(tiles.staging()),
    );
}
