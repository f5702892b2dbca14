//! Gradient of queries: a block keeps a tile of queries, keys pass. Also `delta`, the sum over channels of `dO ∘ O`.
//!
//! `dQ = scale dS K` with `dS = P ∘ (dO Vᵀ - delta)` (Dao 2023, arXiv:2307.08691, algorithm 2). Runs before the kernel
//! for keys, which reads `delta`.

use super::BackwardTiles;
use super::copy::{copy_passing, copy_tile, rows_of_head, store_rows};
use crate::delta::{read_row, row_product};
use crate::passing::{
    Entry, ListShape, NONE, TurnHalf, Word, bits_of, hide, pattern_at, rows_of, tile_at, turn_of,
};
use crate::softmax::{cut, exponentiate, pack, score_gradients};
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::generic_to_shared;
use flow_cube::copy::{commit, wait};
use flow_cube::mma::{lane_by_columns, lane_by_rows, multiply, multiply_registers};

/// `dq`, and `delta [B, H, lse_rows]`. One block for `tiles.resident()` queries of a head. Tensors, keys, values and the mask
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
    turns: &[TurnHalf],
    entries: &[Entry],
    patterns: &[Word],
    queries: u32,
    lse_rows: u32,
    first_keys: u32,
    second_keys: u32,
    group: u32,
    factor: f32,
    scale: f32,
    #[comptime] tiles: BackwardTiles,
    #[define(NS, NG, NP)] _vectors: [usize; 3],
) {
    let resident = comptime!(tiles.resident());
    let passing = comptime!(tiles.passing);
    let stages = comptime!(tiles.stages);
    let head_dim = comptime!(tiles.head_dim);
    let threads = comptime!(tiles.threads());
    let two_parts = comptime!(tiles.two_parts);
    let element = comptime!(tiles.factor);
    let words = comptime!(32 * tiles.panels());
    let tile_bytes = comptime!((tiles.passing * 128 * tiles.panels()) as u32);
    let shape = comptime!(ListShape {
        masked: tiles.masked,
        units: tiles.units,
        columns: tiles.passing
    });

    let q_tile: Shared<[u32]> = Shared::new_aligned_slice(comptime!(resident * words), 1024usize);
    let do_tile: Shared<[u32]> = Shared::new_aligned_slice(comptime!(resident * words), 1024usize);
    let k_tiles: Shared<[u32]> = Shared::new_aligned_slice(comptime!(passing * words * stages), 1024usize);
    let v_tiles: Shared<[u32]> = Shared::new_aligned_slice(comptime!(passing * words * stages), 1024usize);
    let mut deltas: Shared<[f32]> = Shared::new_slice(resident);
    // SAFETY: the address of the block's own shared memory; by the sizes of the tiles, what is read and
    // written there stays within it.
    let q_base = generic_to_shared::<u32>(unsafe { q_tile.as_ptr_unchecked() });
    // SAFETY: as above.
    let do_base = generic_to_shared::<u32>(unsafe { do_tile.as_ptr_unchecked() });
    // SAFETY: as above.
    let k_base = generic_to_shared::<u32>(unsafe { k_tiles.as_ptr_unchecked() });
    // SAFETY: as above.
    let v_base = generic_to_shared::<u32>(unsafe { v_tiles.as_ptr_unchecked() });

    let per_tile = comptime!(tiles.passing as u32);
    let mut all = first_keys.div_ceil(per_tile);
    if comptime!(tiles.two_parts) {
        all += second_keys.div_ceil(per_tile);
    }
    let turn = turn_of(turns, all, shape);
    let (batch, head, block) = (turn.sample, turn.head, turn.block);
    let (begin, tile_count) = (turn.begin, turn.tiles);
    let kv_head = head / group;
    let first_query = block * comptime!(resident as u32);

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
        resident,
        head_dim,
        threads,
    );
    copy_tile(
        d_o,
        rows_of_head(d_o, batch, head),
        first_query,
        queries - first_query,
        do_base,
        resident,
        head_dim,
        threads,
    );
    #[unroll]
    for s in 0..comptime!(stages - 1) {
        if comptime!(s as u32) < tile_count {
            let tile = tile_at(entries, begin + comptime!(s as u32), shape);
            let at = comptime!(s as u32) * tile_bytes;
            copy_passing(
                k,
                k_2,
                of_k,
                of_k_2,
                tile,
                first_keys,
                second_keys,
                k_base + at,
                passing,
                head_dim,
                threads,
                two_parts,
            );
            copy_passing(
                v,
                v_2,
                of_v,
                of_v_2,
                tile,
                first_keys,
                second_keys,
                v_base + at,
                passing,
                head_dim,
                threads,
                two_parts,
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

    let unit = UNIT_POS / 128;
    let thread = UNIT_POS % 128;
    let lane = thread % 32;
    let warp_row = (UNIT_POS / 32) * 16;
    let row = warp_row + lane / 4;
    let delta_0 = deltas[row as usize];
    let delta_1 = deltas[(row + 8) as usize];
    let shift_0 = lse[(lse_at + first_query + row) as usize] * std::f32::consts::LOG2_E;
    let shift_1 = lse[(lse_at + first_query + row + 8) as usize] * std::f32::consts::LOG2_E;

    let q_at = q_base + warp_row * 128 + lane_by_rows(lane);
    let do_at = do_base + warp_row * 128 + lane_by_rows(lane);
    let by_columns = lane_by_columns(lane);
    let by_rows = lane_by_rows(lane);

    let mut q_sum = Vector::<f32, NG>::new(0.0f32);
    let mut stage = 0u32;
    let mut free = comptime!(stages as u32 - 1).runtime();
    for at in 0..tile_count {
        let tile = tile_at(entries, begin + at, shape);
        let pattern = pattern_at(entries, begin + at, unit, shape);
        let bits = bits_of::<Const<1>>(patterns, pattern, thread, shape);
        wait(comptime!(stages - 2));
        sync_cube();
        let next = at + comptime!(stages as u32 - 1);
        if next < tile_count {
            let tile = tile_at(entries, begin + next, shape);
            let to = free * tile_bytes;
            copy_passing(
                k,
                k_2,
                of_k,
                of_k_2,
                tile,
                first_keys,
                second_keys,
                k_base + to,
                passing,
                head_dim,
                threads,
                two_parts,
            );
            copy_passing(
                v,
                v_2,
                of_v,
                of_v_2,
                tile,
                first_keys,
                second_keys,
                v_base + to,
                passing,
                head_dim,
                threads,
                two_parts,
            );
        }
        commit();
        if pattern != NONE {
            let k_now = k_base + stage * tile_bytes;
            let v_now = v_base + stage * tile_bytes;
            let mut scores = multiply::<NS>(q_at, k_now + by_columns, comptime!(tiles.scores()));
            scores = hide::<NS>(scores, pattern, bits, shape);
            let (exist, _) = rows_of(tile, first_keys, second_keys, passing, two_parts);
            if comptime!(!tiles.masked) && exist < per_tile {
                scores = cut::<NS>(scores, (lane % 4) * 2, exist, passing);
            }
            let p = exponentiate::<NS>(scores, factor, shift_0, shift_1, passing);
            let gradients = multiply::<NS>(do_at, v_now + by_columns, comptime!(tiles.scores()));
            let ds = score_gradients::<NS>(p, gradients, delta_0, delta_1, passing);
            let weights = pack::<NS, NP>(ds, passing, element);
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
    store_rows::<NG>(
        dq,
        batch,
        head,
        first_query + warp_row,
        queries,
        q_sum,
        scale,
        scale,
        q_base + warp_row * 128,
        lane,
        resident,
        head_dim,
        element,
    );
}
