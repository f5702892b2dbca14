//! Gradient of queries: a tile of queries is stationary in a block, keys are streamed. Also `delta`, the sum over channels of `dO ∘ O`.
//!
//! `dQ = scale dS K` with `dS = P ∘ (dO Vᵀ - delta)` (Dao 2023, arXiv:2307.08691, algorithm 2). Runs before the kernel
//! for keys, which reads `delta`.

use super::BackwardTiles;
use super::copy::{ResultRows, copy_streamed, copy_tile, rows_of_head, store_rows};
use crate::block_mask::{
    BlockMaskEntry, BlockMaskShape, MaskWord, NONE, WorkTileHalf, apply_mask, mask_bits, partial_mask_at,
    tile_at, tile_rows_in_segment, work_tile_of,
};
use crate::delta::{read_row, row_product};
use crate::softmax::{exponentiate, mask_out_of_bounds, pack, score_gradients};
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::generic_to_shared;
use flow_cube::cp_async::{commit, wait};
use flow_cube::mma::{lane_by_columns, lane_by_rows, multiply, multiply_registers};

/// `dq`, and `delta [B, H, lse_rows]`. One block for `tiles.stationary_rows()` queries of a head. Tensors, keys, values and the mask
/// as in [`mma_forward`](super::forward::mma_forward).
#[cube(launch_unchecked)]
pub fn mma_backward_queries<NS: Size, NG: Size, NP: Size>(
    q: &Tensor<Vector<u32, Const<4>>>,
    k: &Tensor<Vector<u32, Const<4>>>,
    v: &Tensor<Vector<u32, Const<4>>>,
    k_2: &Tensor<Vector<u32, Const<4>>>,
    v_2: &Tensor<Vector<u32, Const<4>>>,
    o: &Tensor<Vector<u32, Const<4>>>,
    d_o: &Tensor<Vector<u32, Const<4>>>,
    dq: &mut Tensor<Vector<u32, Const<4>>>,
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
    #[define(NS, NG, NP)] _vectors: [usize; 3],
) {
    let stationary_rows = comptime!(tiles.stationary_rows());
    let streamed_rows = comptime!(tiles.streamed_rows);
    let stages = comptime!(tiles.stages);
    let head_dim = comptime!(tiles.head_dim);
    let threads = comptime!(tiles.threads());
    let two_segments = comptime!(tiles.two_segments);
    let element = comptime!(tiles.operand_type);
    let words = comptime!(32 * tiles.panels());
    let tile_bytes = comptime!((tiles.streamed_rows * 128 * tiles.panels()) as u32);
    let shape = comptime!(BlockMaskShape {
        masked: tiles.masked,
        row_groups: tiles.row_groups,
        columns: tiles.streamed_rows
    });

    let q_tile: Shared<[u32]> = Shared::new_aligned_slice(comptime!(stationary_rows * words), 1024usize);
    let do_tile: Shared<[u32]> = Shared::new_aligned_slice(comptime!(stationary_rows * words), 1024usize);
    let k_tiles: Shared<[u32]> =
        Shared::new_aligned_slice(comptime!(streamed_rows * words * stages), 1024usize);
    let v_tiles: Shared<[u32]> =
        Shared::new_aligned_slice(comptime!(streamed_rows * words * stages), 1024usize);
    let mut deltas: Shared<[f32]> = Shared::new_slice(stationary_rows);
    // SAFETY: the address of the block's own shared memory; by the sizes of the tiles, what is read and
    // written there stays within it.
    let q_base = generic_to_shared::<u32>(unsafe { q_tile.as_ptr_unchecked() });
    // SAFETY: as above.
    let do_base = generic_to_shared::<u32>(unsafe { do_tile.as_ptr_unchecked() });
    // SAFETY: as above.
    let k_base = generic_to_shared::<u32>(unsafe { k_tiles.as_ptr_unchecked() });
    // SAFETY: as above.
    let v_base = generic_to_shared::<u32>(unsafe { v_tiles.as_ptr_unchecked() });

    let per_tile = comptime!(tiles.streamed_rows as u32);
    let mut all = first_keys.div_ceil(per_tile);
    if comptime!(tiles.two_segments) {
        all += second_keys.div_ceil(per_tile);
    }
    let work_tile = work_tile_of(work_tiles, all, shape);
    let (batch, head, block) = (work_tile.sample, work_tile.head, work_tile.block);
    let (begin, tile_count) = (work_tile.begin, work_tile.tiles);
    let kv_head = head / group;
    let first_query = block * comptime!(stationary_rows as u32);

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
        stationary_rows,
        head_dim,
        threads,
    );
    copy_tile(
        d_o,
        rows_of_head(d_o, batch, head),
        first_query,
        queries - first_query,
        do_base,
        stationary_rows,
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
                streamed_rows,
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
                streamed_rows,
                head_dim,
                threads,
                two_segments,
            );
        }
        commit();
    }

    // Two threads a row.
    let of_row = UNIT_POS / 2;
    let query = first_query + of_row;
    let lse_at = (batch * CUBE_COUNT_Y + head) * lse_rows;
    let o_from = batch as usize * o.stride(0) + head as usize * o.stride(1) + query as usize * o.stride(2);
    let do_from =
        batch as usize * d_o.stride(0) + head as usize * d_o.stride(1) + query as usize * d_o.stride(2);
    let row = read_row(
        o.as_slice(),
        d_o.as_slice(),
        o_from as u32,
        do_from as u32,
        query < queries,
        head_dim,
    );
    let sum = row_product(&row, head_dim, element);
    if UNIT_POS.is_multiple_of(2) {
        deltas[of_row as usize] = sum;
        delta[(lse_at + query) as usize] = sum;
    }
    sync_cube();

    let row_group = UNIT_POS / 128;
    let thread = UNIT_POS % 128;
    let lane = thread % 32;
    let warp_row = (UNIT_POS / 32) * 16;
    let row = warp_row + lane / 4;
    let delta_0 = deltas[row as usize];
    let delta_1 = deltas[(row + 8) as usize];
    let offset_0 = lse[(lse_at + first_query + row) as usize] * std::f32::consts::LOG2_E;
    let offset_1 = lse[(lse_at + first_query + row + 8) as usize] * std::f32::consts::LOG2_E;

    let q_at = q_base + warp_row * 128 + lane_by_rows(lane);
    let do_at = do_base + warp_row * 128 + lane_by_rows(lane);
    let by_columns = lane_by_columns(lane);
    let by_rows = lane_by_rows(lane);

    let mut q_sum = Vector::<f32, NG>::new(0.0f32);
    let mut stage = 0u32;
    let mut free = comptime!(stages as u32 - 1).runtime();
    for at in 0..tile_count {
        let tile = tile_at(entries, begin + at, shape);
        let partial_mask = partial_mask_at(entries, begin + at, row_group, shape);
        let bits = mask_bits::<Const<1>>(partial_masks, partial_mask, thread, shape);
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
                streamed_rows,
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
                streamed_rows,
                head_dim,
                threads,
                two_segments,
            );
        }
        commit();
        if partial_mask != NONE {
            let k_now = k_base + stage * tile_bytes;
            let v_now = v_base + stage * tile_bytes;
            let mut scores = multiply::<NS>(q_at, k_now + by_columns, comptime!(tiles.scores()));
            scores = apply_mask::<NS>(scores, partial_mask, bits, shape);
            let (exist, _) = tile_rows_in_segment(tile, first_keys, second_keys, streamed_rows, two_segments);
            if comptime!(!tiles.masked) && exist < per_tile {
                scores = mask_out_of_bounds::<NS>(scores, (lane % 4) * 2, exist, streamed_rows);
            }
            let p = exponentiate::<NS>(scores, scale_log2, offset_0, offset_1, streamed_rows);
            let gradients = multiply::<NS>(do_at, v_now + by_columns, comptime!(tiles.scores()));
            let ds = score_gradients::<NS>(p, gradients, delta_0, delta_1, streamed_rows);
            let weights = pack::<NS, NP>(ds, streamed_rows, element);
            q_sum =
                multiply_registers::<NG, NP>(q_sum, weights, k_now + by_rows, comptime!(tiles.weighted()));
        }
        free = stage;
        stage += 1;
        if stage == comptime!(stages as u32) {
            stage = 0;
        }
    }

    // The gradient takes the place of this warp's queries.
    let results = ResultRows {
        batch,
        head,
        row: first_query + warp_row,
        exist: queries,
    };
    store_rows::<NG>(
        dq,
        &results,
        q_sum,
        scale,
        scale,
        q_base + warp_row * 128,
        lane,
        comptime!(tiles.staging()),
    );
}
