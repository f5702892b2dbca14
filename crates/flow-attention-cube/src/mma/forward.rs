//! The forward kernel: FlashAttention-2 (Dao 2023, arXiv:2307.08691, algorithm 1), a warp for 16 queries.

use super::ForwardTiles;
use super::copy::{copy_streamed, copy_tile, rows_of_head, store_rows};
use crate::block_mask::{
    BlockMaskEntry, BlockMaskShape, MaskWord, NONE, WorkTileHalf, apply_mask, mask_bits, partial_mask_at,
    tile_at, tile_rows_in_segment, work_tile_of,
};
use crate::softmax::*;
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::generic_to_shared;
use flow_cube::cp_async::{commit, wait};
use flow_cube::mma::{lane_by_columns, lane_by_rows, multiply, multiply_registers};
use flow_cube::register::exp2_approximate;

/// `o = softmax(q kᵀ scale) v` and the log-sum-exp of each row, `lse [B, H, lse_rows]`. One block for `tiles.queries()`
/// queries of a head. Tensors are `[B, H, S, D / 8]` of eight values each, of any strides but the last, which is 1. Keys and
/// values have `first_keys` rows in `k` and `v`, and `second_keys` in `k_2` and `v_2`. `scale_log2` is the scale times log2 e.
/// `work_tiles`, `entries` and `partial_masks` are of the mask; see [`block_mask`](crate::block_mask). Where `tiles` are biased, the scaled
/// scores get `bias [H, S + T - 1]`, in which key `j` of query `i` has the place `j - i + S - 1`; keys are in one segment then, and
/// `inverse_scale` is 1 over the scale.
#[cube(launch_unchecked)]
pub fn mma_forward<NS: Size, NO: Size, NP: Size>(
    q: &Tensor<Vector<u32, Const<4>>>,
    k: &Tensor<Vector<u32, Const<4>>>,
    v: &Tensor<Vector<u32, Const<4>>>,
    k_2: &Tensor<Vector<u32, Const<4>>>,
    v_2: &Tensor<Vector<u32, Const<4>>>,
    o: &mut Tensor<Vector<u32, Const<4>>>,
    lse: &mut [f32],
    work_tiles: &[WorkTileHalf],
    entries: &[BlockMaskEntry],
    partial_masks: &[MaskWord],
    bias: &[f32],
    queries: u32,
    lse_rows: u32,
    first_keys: u32,
    second_keys: u32,
    group: u32,
    scale_log2: f32,
    inverse_scale: f32,
    #[comptime] tiles: ForwardTiles,
    #[define(NS, NO, NP)] _vectors: [usize; 3],
) {
    let rows = comptime!(tiles.queries());
    let keys = comptime!(tiles.keys);
    let stages = comptime!(tiles.stages);
    let head_dim = comptime!(tiles.head_dim);
    let threads = comptime!(tiles.threads());
    let two_segments = comptime!(tiles.two_segments);
    let tile_bytes = comptime!((tiles.keys * 128 * tiles.panels()) as u32);
    let shape = comptime!(BlockMaskShape {
        masked: tiles.masked,
        row_groups: tiles.row_groups,
        columns: tiles.keys
    });

    let q_tile: Shared<[u32]> = Shared::new_aligned_slice(comptime!(rows * 32 * tiles.panels()), 1024usize);
    let k_tiles: Shared<[u32]> =
        Shared::new_aligned_slice(comptime!(keys * 32 * tiles.panels() * stages), 1024usize);
    let v_tiles: Shared<[u32]> =
        Shared::new_aligned_slice(comptime!(keys * 32 * tiles.panels() * stages), 1024usize);
    // SAFETY: the address of the block's own shared memory; by the sizes of the tiles, what is read and
    // written there stays within it.
    let q_base = generic_to_shared::<u32>(unsafe { q_tile.as_ptr_unchecked() });
    // SAFETY: as above.
    let k_base = generic_to_shared::<u32>(unsafe { k_tiles.as_ptr_unchecked() });
    // SAFETY: as above.
    let v_base = generic_to_shared::<u32>(unsafe { v_tiles.as_ptr_unchecked() });

    let per_tile = comptime!(tiles.keys as u32);
    let mut all = first_keys.div_ceil(per_tile);
    if comptime!(tiles.two_segments) {
        all += second_keys.div_ceil(per_tile);
    }
    let work_tile = work_tile_of(work_tiles, all, shape);
    let (batch, head, block) = (work_tile.sample, work_tile.head, work_tile.block);
    let (begin, tile_count) = (work_tile.begin, work_tile.tiles);
    let kv_head = head / group;
    let first_query = block * comptime!(rows as u32);

    let of_k = rows_of_head(k, batch, kv_head);
    let of_v = rows_of_head(v, batch, kv_head);
    let of_k_2 = rows_of_head(k_2, batch, kv_head);
    let of_v_2 = rows_of_head(v_2, batch, kv_head);
    copy_tile(
        q,
        rows_of_head(q, batch, head),
        first_query,
        queries - first_query,
        q_base,
        rows,
        head_dim,
        threads,
    );
    #[unroll]
    for s in 0..comptime!(stages - 1) {
        if comptime!(s as u32) < tile_count {
            let tile = tile_at(entries, begin + comptime!(s as u32), shape);
            let at = comptime!(s as u32) * tile_bytes;
            copy_streamed(
                k,
                k_2,
                of_k,
                of_k_2,
                tile,
                first_keys,
                second_keys,
                k_base + at,
                keys,
                head_dim,
                threads,
                two_segments,
            );
            copy_streamed(
                v,
                v_2,
                of_v,
                of_v_2,
                tile,
                first_keys,
                second_keys,
                v_base + at,
                keys,
                head_dim,
                threads,
                two_segments,
            );
        }
        commit();
    }

    let row_group = UNIT_POS / 128;
    let thread = UNIT_POS % 128;
    let lane = thread % 32;
    let warp_row = (UNIT_POS / 32) * 16;
    let q_at = q_base + warp_row * 128 + lane_by_rows(lane);
    let k_at = k_base + lane_by_columns(lane);
    let v_at = v_base + lane_by_rows(lane);

    // Where the biases of key 0 are, for this thread's two queries; those of no query are read as the last one's.
    let last_query = queries - 1;
    let query = first_query + warp_row + lane / 4;
    let of_head = head * (queries + first_keys - 1) + last_query;
    let bias_0 = of_head - select(query < last_query, query, last_query);
    let bias_1 = of_head - select(query + 8 < last_query, query + 8, last_query);

    let mut max_0 = f32::NEG_INFINITY.runtime();
    let mut max_1 = f32::NEG_INFINITY.runtime();
    let mut sum_0 = 0.0f32.runtime();
    let mut sum_1 = 0.0f32.runtime();
    let mut output = Vector::<f32, NO>::new(0.0f32);
    let mut stage = 0u32;
    let mut free = comptime!(stages as u32 - 1).runtime();
    for at in 0..tile_count {
        let tile = tile_at(entries, begin + at, shape);
        let partial_mask = partial_mask_at(entries, begin + at, row_group, shape);
        let bits = mask_bits::<Const<1>>(partial_masks, partial_mask, thread, shape);
        // This thread's part of the tile is here, then everyone's; and everyone is done with the tile before.
        wait(comptime!(stages - 2));
        sync_cube();
        let next = at + comptime!(stages as u32 - 1);
        if next < tile_count {
            let tile = tile_at(entries, begin + next, shape);
            let to = free * tile_bytes;
            copy_streamed(
                k,
                k_2,
                of_k,
                of_k_2,
                tile,
                first_keys,
                second_keys,
                k_base + to,
                keys,
                head_dim,
                threads,
                two_segments,
            );
            copy_streamed(
                v,
                v_2,
                of_v,
                of_v_2,
                tile,
                first_keys,
                second_keys,
                v_base + to,
                keys,
                head_dim,
                threads,
                two_segments,
            );
        }
        commit();
        if partial_mask != NONE {
            let mut scores = multiply::<NS>(q_at, k_at + stage * tile_bytes, comptime!(tiles.scores()));
            if comptime!(tiles.biased) {
                scores = add_bias::<NS>(
                    scores,
                    bias,
                    bias_0,
                    bias_1,
                    tile * per_tile + (lane % 4) * 2,
                    first_keys - 1,
                    inverse_scale,
                    keys,
                );
            }
            scores = apply_mask::<NS>(scores, partial_mask, bits, shape);
            let (exist, _) = tile_rows_in_segment(tile, first_keys, second_keys, keys, two_segments);
            if comptime!(!tiles.masked) && exist < per_tile {
                scores = mask_out_of_bounds::<NS>(scores, (lane % 4) * 2, exist, keys);
            }
            let new_0 = row_maximum::<NS>(scores, max_0, 0usize, keys);
            let new_1 = row_maximum::<NS>(scores, max_1, 1usize, keys);
            let scaled_max_0 = scaled_row_max(new_0, scale_log2);
            let scaled_max_1 = scaled_row_max(new_1, scale_log2);
            let rescale_0 = exp2_approximate(max_0 * scale_log2 - scaled_max_0);
            let rescale_1 = exp2_approximate(max_1 * scale_log2 - scaled_max_1);
            max_0 = new_0;
            max_1 = new_1;
            let scores = exponentiate::<NS>(scores, scale_log2, scaled_max_0, scaled_max_1, keys);
            sum_0 = sum_0 * rescale_0 + row_sum::<NS>(scores, 0usize, keys);
            sum_1 = sum_1 * rescale_1 + row_sum::<NS>(scores, 1usize, keys);
            let rescaled = scale_rows::<NO>(output, rescale_0, rescale_1, head_dim);
            let probabilities = pack::<NS, NP>(scores, keys, comptime!(tiles.operand_type));
            output = multiply_registers::<NO, NP>(
                rescaled,
                probabilities,
                v_at + stage * tile_bytes,
                comptime!(tiles.values()),
            );
        }
        free = stage;
        stage += 1;
        if stage == comptime!(stages as u32) {
            stage = 0;
        }
    }
    sum_0 += plane_shuffle_xor(sum_0, 1);
    sum_0 += plane_shuffle_xor(sum_0, 2);
    sum_1 += plane_shuffle_xor(sum_1, 1);
    sum_1 += plane_shuffle_xor(sum_1, 2);
    let scale_0 = select(sum_0 > 0.0f32, 1.0f32 / sum_0, 0.0f32);
    let scale_1 = select(sum_1 > 0.0f32, 1.0f32 / sum_1, 0.0f32);

    let row = warp_row + lane / 4;
    if lane.is_multiple_of(4) {
        let at = (batch * CUBE_COUNT_Y + head) * lse_rows;
        let query = first_query + row;
        if query < lse_rows {
            lse[(at + query) as usize] = log_sum(max_0 * scale_log2, sum_0, query < queries);
            lse[(at + query + 8) as usize] = log_sum(max_1 * scale_log2, sum_1, query + 8 < queries);
        }
    }

    // The output takes the place of this warp's queries.
    store_rows::<NO>(
        o,
        batch,
        head,
        first_query + warp_row,
        queries,
        output,
        scale_0,
        scale_1,
        q_base + warp_row * 128,
        lane,
        rows,
        head_dim,
        comptime!(tiles.operand_type),
    );
}
