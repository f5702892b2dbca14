//! Gradients of keys and values: a tile of keys is stationary in a block, queries are streamed.
//!
//! With `P = exp(scale Q Kᵀ - lse)`: `dV = Pᵀ dO`, `dS = P ∘ (dO Vᵀ - delta)`, `dK = scale dSᵀ Q` (Dao 2023,
//! arXiv:2307.08691, algorithm 2). Products are transposed, so that `Pᵀ` and `dSᵀ` are in the registers that the next
//! product wants them in. A row of the sum over queries is summed in one thread, in order.

use super::BackwardTiles;
use super::copy::{ResultRows, copy_tile, head_offset, rows_of_head, store_rows};
use crate::block_mask::{
    BlockMaskEntry, BlockMaskShape, MaskWord, NONE, WorkTileHalf, apply_mask, mask_bits, partial_mask_at,
    tile_at, work_tile_of,
};
use crate::softmax::pack;
use crate::softmax_by_columns::{Pair, probabilities, score_gradients};
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::generic_to_shared;
use flow_cube::cp_async::{commit, copy_16, wait};
use flow_cube::mma::{lane_by_columns, lane_by_rows, multiply, multiply_registers};

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

/// `dk` and `dv`. One block for `tiles.stationary_rows()` keys of a key head; `lse` and `delta` are `[B, H, lse_rows]`. Tensors as in
/// [`mma_forward`](super::forward::mma_forward). The mask's list is of streamed queries, its rows are keys; see
/// [`block_mask`](crate::block_mask).
#[cube(launch_unchecked)]
pub fn mma_backward_keys<NS: Size, NG: Size, NP: Size>(
    q: &Tensor<Vector<u32, Const<4>>>,
    k: &Tensor<Vector<u32, Const<4>>>,
    v: &Tensor<Vector<u32, Const<4>>>,
    d_o: &Tensor<Vector<u32, Const<4>>>,
    dk: &mut Tensor<Vector<u32, Const<4>>>,
    dv: &mut Tensor<Vector<u32, Const<4>>>,
    lse: &[Vector<f32, Const<2>>],
    delta: &[Vector<f32, Const<2>>],
    work_tiles: &[WorkTileHalf],
    entries: &[BlockMaskEntry],
    partial_masks: &[MaskWord],
    queries: u32,
    keys: u32,
    lse_rows: u32,
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
    let element = comptime!(tiles.operand_type);
    let words = comptime!(32 * tiles.panels());
    let tile_bytes = comptime!((tiles.streamed_rows * 128 * tiles.panels()) as u32);
    let per_tile = comptime!(tiles.streamed_rows as u32);
    let shape = comptime!(BlockMaskShape {
        masked: tiles.masked,
        row_groups: tiles.row_groups,
        columns: tiles.streamed_rows
    });

    let k_tile: Shared<[u32]> = Shared::new_aligned_slice(comptime!(stationary_rows * words), 1024usize);
    let v_tile: Shared<[u32]> = Shared::new_aligned_slice(comptime!(stationary_rows * words), 1024usize);
    let q_tiles: Shared<[u32]> =
        Shared::new_aligned_slice(comptime!(streamed_rows * words * stages), 1024usize);
    let do_tiles: Shared<[u32]> =
        Shared::new_aligned_slice(comptime!(streamed_rows * words * stages), 1024usize);
    let lse_tiles: Shared<[Pair]> = Shared::new_aligned_slice(comptime!(streamed_rows / 2 * stages), 16usize);
    let delta_tiles: Shared<[Pair]> =
        Shared::new_aligned_slice(comptime!(streamed_rows / 2 * stages), 16usize);
    // SAFETY: the address of the block's own shared memory; by the sizes of the tiles, what is read and
    // written there stays within it.
    let k_base = generic_to_shared::<u32>(unsafe { k_tile.as_ptr_unchecked() });
    // SAFETY: as above.
    let v_base = generic_to_shared::<u32>(unsafe { v_tile.as_ptr_unchecked() });
    // SAFETY: as above.
    let q_base = generic_to_shared::<u32>(unsafe { q_tiles.as_ptr_unchecked() });
    // SAFETY: as above.
    let do_base = generic_to_shared::<u32>(unsafe { do_tiles.as_ptr_unchecked() });
    // SAFETY: as above.
    let lse_base = generic_to_shared::<Pair>(unsafe { lse_tiles.as_ptr_unchecked() });
    // SAFETY: as above.
    let delta_base = generic_to_shared::<Pair>(unsafe { delta_tiles.as_ptr_unchecked() });

    let heads = CUBE_COUNT_Y * group;
    let all = queries.div_ceil(per_tile);
    let work_tile = work_tile_of(work_tiles, all, shape);
    let (batch, kv_head, block) = (work_tile.sample, work_tile.head, work_tile.block);
    let (begin, tiles_per_head) = (work_tile.begin, work_tile.tiles);
    let first_key = block * comptime!(stationary_rows as u32);
    let tile_count = tiles_per_head * group;

    let of_q = rows_of_head(q, batch, 0u32.runtime());
    let of_do = rows_of_head(d_o, batch, 0u32.runtime());
    copy_tile(
        k,
        rows_of_head(k, batch, kv_head),
        first_key,
        keys - first_key,
        k_base,
        stationary_rows,
        head_dim,
        threads,
    );
    copy_tile(
        v,
        rows_of_head(v, batch, kv_head),
        first_key,
        keys - first_key,
        v_base,
        stationary_rows,
        head_dim,
        threads,
    );
    #[unroll]
    for s in 0..comptime!(stages - 1) {
        let tile = comptime!(s as u32).runtime();
        if tile < tile_count {
            let head = kv_head * group + tile / tiles_per_head;
            let row = tile_at(entries, begin + tile % tiles_per_head, shape) * per_tile;
            let from = ((batch * heads + head) * lse_rows + row) / 2;
            copy_tile(
                q,
                head_offset(of_q, head),
                row,
                queries - row,
                q_base + tile * tile_bytes,
                streamed_rows,
                head_dim,
                threads,
            );
            copy_tile(
                d_o,
                head_offset(of_do, head),
                row,
                queries - row,
                do_base + tile * tile_bytes,
                streamed_rows,
                head_dim,
                threads,
            );
            let at = tile * comptime!((streamed_rows * 4) as u32);
            copy_statistics(lse, delta, from, lse_base + at, delta_base + at, streamed_rows);
        }
        commit();
    }

    let row_group = UNIT_POS / 128;
    let thread = UNIT_POS % 128;
    let lane = thread % 32;
    let warp_row = (UNIT_POS / 32) * 16;
    let column = (lane % 4) as usize;
    let k_at = k_base + warp_row * 128 + lane_by_rows(lane);
    let v_at = v_base + warp_row * 128 + lane_by_rows(lane);
    let by_columns = lane_by_columns(lane);
    let by_rows = lane_by_rows(lane);

    let mut k_sum = Vector::<f32, NG>::new(0.0f32);
    let mut v_sum = Vector::<f32, NG>::new(0.0f32);
    let mut stage = 0u32;
    let mut free = comptime!(stages as u32 - 1).runtime();
    for at in 0..tile_count {
        let entry = begin + at % tiles_per_head;
        let partial_mask = partial_mask_at(entries, entry, row_group, shape);
        let bits = mask_bits::<Const<1>>(partial_masks, partial_mask, thread, shape);
        wait(comptime!(stages - 2));
        sync_cube();
        let next = at + comptime!(stages as u32 - 1);
        if next < tile_count {
            let head = kv_head * group + next / tiles_per_head;
            let row = tile_at(entries, begin + next % tiles_per_head, shape) * per_tile;
            let from = ((batch * heads + head) * lse_rows + row) / 2;
            copy_tile(
                q,
                head_offset(of_q, head),
                row,
                queries - row,
                q_base + free * tile_bytes,
                streamed_rows,
                head_dim,
                threads,
            );
            copy_tile(
                d_o,
                head_offset(of_do, head),
                row,
                queries - row,
                do_base + free * tile_bytes,
                streamed_rows,
                head_dim,
                threads,
            );
            let to = free * comptime!((streamed_rows * 4) as u32);
            copy_statistics(lse, delta, from, lse_base + to, delta_base + to, streamed_rows);
        }
        commit();
        if partial_mask != NONE {
            let q_now = q_base + stage * tile_bytes;
            let do_now = do_base + stage * tile_bytes;
            let pairs = stage as usize * comptime!(streamed_rows / 2) + column;
            let scores = multiply::<NS>(k_at, q_now + by_columns, comptime!(tiles.scores()));
            let scores = apply_mask::<NS>(scores, partial_mask, bits, shape);
            let p = probabilities::<NS>(scores, &lse_tiles, pairs, scale_log2, streamed_rows);
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
        free = stage;
        stage += 1;
        if stage == comptime!(stages as u32) {
            stage = 0;
        }
    }

    // Gradients take the places of this warp's keys and values.
    let results = ResultRows {
        batch,
        head: kv_head,
        row: first_key + warp_row,
        exist: keys,
    };
    if comptime!(tiles.sums.values()) {
        store_rows::<NG>(
            dv,
            &results,
            v_sum,
            1.0f32,
            1.0f32,
            v_base + warp_row * 128,
            lane,
            comptime!(tiles.staging()),
        );
    }
    if comptime!(tiles.sums.keys()) {
        store_rows::<NG>(
            dk,
            &results,
            k_sum,
            scale,
            scale,
            k_base + warp_row * 128,
            lane,
            comptime!(tiles.staging()),
        );
    }
}
