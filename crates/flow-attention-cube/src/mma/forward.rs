//! The forward kernel: FlashAttention-2 (Dao 2023, arXiv:2307.08691, algorithm 1), a warp for 16 queries.

use super::ForwardTiles;
use super::arguments::{AttentionInputs, AttentionSizes, BlockMaskBuffers, ForwardProblem};
use super::copy::{HeadRows, copy_tile, rows_of_head, store_rows};
use super::stream::{
    MaskedTile, QueryBlock, StageRing, ThreadPosition, advance_stream, kv_stream, mask_scores, masked_tile,
    query_block, start_stream, thread_position,
};
use crate::block_mask::NONE;
use crate::delta::Eight;
use crate::softmax::*;
use cubecl::prelude::*;
use flow_cube::mma::{lane_by_columns, lane_by_rows, multiply, multiply_registers};
use flow_cube::register::{exp2_approximate, shared_address};

/// The softmax so far of a thread's two rows. Sums are of this thread's part of a row, a fourth.
#[derive(CubeType)]
struct RowSoftmax {
    max_0: f32,
    max_1: f32,
    sum_0: f32,
    sum_1: f32,
}

#[cube]
impl RowSoftmax {
    /// Before the first tile.
    fn new() -> Self {
        RowSoftmax {
            max_0: f32::NEG_INFINITY.runtime(),
            max_1: f32::NEG_INFINITY.runtime(),
            sum_0: 0.0f32.runtime(),
            sum_1: 0.0f32.runtime(),
        }
    }

    /// With the scores of a tile: its probabilities, and what the output of both rows is to be scaled by.
    fn update<N: Size>(
        &mut self,
        scores: Vector<f32, N>,
        scale_log2: f32,
        #[comptime] keys: usize,
    ) -> (Vector<f32, N>, f32, f32) {
        let new_0 = row_maximum::<N>(scores, self.max_0, 0usize, keys);
        let new_1 = row_maximum::<N>(scores, self.max_1, 1usize, keys);
        let scaled_max_0 = scaled_row_max(new_0, scale_log2);
        let scaled_max_1 = scaled_row_max(new_1, scale_log2);
        let rescale_0 = exp2_approximate(self.max_0 * scale_log2 - scaled_max_0);
        let rescale_1 = exp2_approximate(self.max_1 * scale_log2 - scaled_max_1);
        self.max_0 = new_0;
        self.max_1 = new_1;
        let probabilities = exponentiate::<N>(scores, scale_log2, scaled_max_0, scaled_max_1, keys);
        self.sum_0 = self.sum_0 * rescale_0 + row_sum::<N>(probabilities, 0usize, keys);
        self.sum_1 = self.sum_1 * rescale_1 + row_sum::<N>(probabilities, 1usize, keys);
        (probabilities, rescale_0, rescale_1)
    }

    /// Sums up over the four threads of a row: what the output of both rows is to be scaled by.
    fn finish(&mut self) -> (f32, f32) {
        self.sum_0 += plane_shuffle_xor(self.sum_0, 1);
        self.sum_0 += plane_shuffle_xor(self.sum_0, 2);
        self.sum_1 += plane_shuffle_xor(self.sum_1, 1);
        self.sum_1 += plane_shuffle_xor(self.sum_1, 2);
        let scale_0 = select(self.sum_0 > 0.0f32, 1.0f32 / self.sum_0, 0.0f32);
        let scale_1 = select(self.sum_1 > 0.0f32, 1.0f32 / self.sum_1, 0.0f32);
        (scale_0, scale_1)
    }
}

/// Where the biases of key 0 are, for this thread's two queries; those of no query are read as the last one's.
#[cube]
fn bias_starts(block: &QueryBlock, position: &ThreadPosition, sizes: &AttentionSizes) -> (u32, u32) {
    let last_query = sizes.queries - 1;
    let query = block.first_query + position.warp_row + position.lane / 4;
    let of_head = block.head * (sizes.queries + sizes.first_keys - 1) + last_query;
    let bias_0 = of_head - select(query < last_query, query, last_query);
    let bias_1 = of_head - select(query + 8 < last_query, query + 8, last_query);
    (bias_0, bias_1)
}

/// What this thread reads for the scores of any tile: the byte address of its queries, and where its two rows' biases begin.
#[derive(CubeType)]
struct ScoreRows {
    q_at: u32,
    lane: u32,
    bias_0: u32,
    bias_1: u32,
}

/// The scores of a tile, whose keys this thread reads at the byte address `k_at`: biased, and masked.
#[cube]
fn tile_scores<N: Size>(
    rows: &ScoreRows,
    k_at: u32,
    tile: &MaskedTile,
    bias: &[f32],
    problem: &ForwardProblem,
    #[comptime] tiles: ForwardTiles,
) -> Vector<f32, N> {
    let mut scores = multiply::<N>(rows.q_at, k_at, comptime!(tiles.scores()));
    if comptime!(tiles.biased) {
        scores = add_bias::<N>(
            scores,
            bias,
            rows.bias_0,
            rows.bias_1,
            tile.tile * comptime!(tiles.keys as u32) + (rows.lane % 4) * 2,
            problem.sizes.first_keys - 1,
            problem.inverse_scale,
            comptime!(tiles.keys),
        );
    }
    mask_scores::<N>(
        scores,
        tile,
        rows.lane,
        &problem.sizes,
        comptime!(tiles.streaming()),
    )
}

/// Writes the log-sum-exp of this thread's two rows.
#[cube]
fn write_log_sums(
    lse: &mut [f32],
    softmax: &RowSoftmax,
    block: &QueryBlock,
    position: &ThreadPosition,
    problem: &ForwardProblem,
) {
    let row = position.warp_row + position.lane / 4;
    if position.lane.is_multiple_of(4) {
        let at = (block.batch * CUBE_COUNT_Y + block.head) * problem.sizes.lse_rows;
        let query = block.first_query + row;
        if query < problem.sizes.lse_rows {
            lse[(at + query) as usize] = log_sum(
                softmax.max_0 * problem.scale_log2,
                softmax.sum_0,
                query < problem.sizes.queries,
            );
            lse[(at + query + 8) as usize] = log_sum(
                softmax.max_1 * problem.scale_log2,
                softmax.sum_1,
                query + 8 < problem.sizes.queries,
            );
        }
    }
}

/// `o = softmax(q kᵀ scale) v` and the log-sum-exp of each row, `lse [B, H, lse_rows]`. One block for `tiles.queries()`
/// queries of a head. Where `tiles` are biased, the scaled scores get `bias [H, S + T - 1]`, in which key `j` of query `i` has the
/// place `j - i + S - 1`; keys are in one segment then.
#[cube(launch_unchecked)]
pub fn mma_forward<NS: Size, NO: Size, NP: Size>(
    inputs: &AttentionInputs,
    o: &mut Tensor<Eight>,
    lse: &mut [f32],
    mask: &BlockMaskBuffers,
    bias: &[f32],
    problem: &ForwardProblem,
    #[comptime] tiles: ForwardTiles,
    #[define(NS, NO, NP)] _vectors: [usize; 3],
) {
    let rows = comptime!(tiles.queries());
    let keys = comptime!(tiles.keys);
    let stages = comptime!(tiles.stages);
    let head_dim = comptime!(tiles.head_dim);
    let streaming = comptime!(tiles.streaming());
    let tile_bytes = comptime!(streaming.tile_bytes());

    let q_tile: Shared<[u32]> = Shared::new_aligned_slice(comptime!(rows * 32 * tiles.panels()), 1024usize);
    let k_tiles: Shared<[u32]> =
        Shared::new_aligned_slice(comptime!(keys * 32 * tiles.panels() * stages), 1024usize);
    let v_tiles: Shared<[u32]> =
        Shared::new_aligned_slice(comptime!(keys * 32 * tiles.panels() * stages), 1024usize);
    let q_base = shared_address::<u32>(&q_tile);
    let k_base = shared_address::<u32>(&k_tiles);
    let v_base = shared_address::<u32>(&v_tiles);

    let block = query_block(mask, &problem.sizes, rows, streaming);
    let stream = kv_stream(inputs, &block, k_base, v_base);
    copy_tile(
        inputs.q,
        rows_of_head(inputs.q, block.batch, block.head),
        block.first_query,
        problem.sizes.queries - block.first_query,
        q_base,
        rows,
        head_dim,
        comptime!(tiles.threads()),
    );
    start_stream(inputs, &problem.sizes, mask, &block, &stream, streaming);

    let position = thread_position();
    let q_at = q_base + position.warp_row * 128 + lane_by_rows(position.lane);
    let k_at = k_base + lane_by_columns(position.lane);
    let v_at = v_base + lane_by_rows(position.lane);
    let (bias_0, bias_1) = bias_starts(&block, &position, &problem.sizes);
    let score_rows = ScoreRows {
        q_at,
        lane: position.lane,
        bias_0,
        bias_1,
    };

    let mut softmax = RowSoftmax::new();
    let mut output = Vector::<f32, NO>::new(0.0f32);
    let mut ring = StageRing::new(stages);
    for at in 0..block.tile_count {
        let tile = masked_tile(mask, block.begin + at, &position, comptime!(streaming.shape));
        advance_stream(
            inputs,
            &problem.sizes,
            mask,
            &block,
            &stream,
            at,
            ring.free,
            streaming,
        );
        if tile.partial_mask != NONE {
            let scores = tile_scores::<NS>(
                &score_rows,
                k_at + ring.stage * tile_bytes,
                &tile,
                bias,
                problem,
                tiles,
            );
            let (probabilities, rescale_0, rescale_1) =
                softmax.update::<NS>(scores, problem.scale_log2, keys);
            let rescaled = scale_rows::<NO>(output, rescale_0, rescale_1, head_dim);
            let packed = pack::<NS, NP>(probabilities, keys, comptime!(tiles.operand_type));
            output = multiply_registers::<NO, NP>(
                rescaled,
                packed,
                v_at + ring.stage * tile_bytes,
                comptime!(tiles.values()),
            );
        }
        ring.advance(stages);
    }
    let (scale_0, scale_1) = softmax.finish();
    write_log_sums(lse, &softmax, &block, &position, problem);

    // The output takes the place of this warp's queries.
    let results = HeadRows {
        batch: block.batch,
        head: block.head,
        row: block.first_query + position.warp_row,
        exist: problem.sizes.queries,
    };
    store_rows::<NO>(
        o,
        &results,
        output,
        scale_0,
        scale_1,
        q_base + position.warp_row * 128,
        position.lane,
        comptime!(tiles.staging()),
    );
}
