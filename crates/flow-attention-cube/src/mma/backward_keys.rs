//! Gradients of keys and values: a block keeps a tile of keys, queries pass.
//!
//! With `P = exp(scale Q Kᵀ - lse)`: `dV = Pᵀ dO`, `dS = P ∘ (dO Vᵀ - delta)`, `dK = scale dSᵀ Q` (Dao 2023,
//! arXiv:2307.08691, algorithm 2). Products are transposed, so that `Pᵀ` and `dSᵀ` are in the registers that the next
//! product wants them in. A row of the sum over queries is added up in one thread, in order.

use super::BackwardTiles;
use super::copy::{copy_tile, further, rows_of_head, store_rows};
use crate::columns::{Pair, probabilities, score_gradients};
use crate::passing::{Entry, ListShape, NONE, TurnHalf, Word, bits_of, hide, pattern_at, tile_at, turn_of};
use crate::softmax::pack;
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::generic_to_shared;
use flow_cube::copy::{commit, copy_16, wait};
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

/// `dk` and `dv`. One block for `tiles.resident()` keys of a key head; `lse` and `delta` are `[B, H, lse_rows]`. Tensors as in
/// [`mma_forward`](super::forward::mma_forward). The mask's list is of passing queries, its rows are keys; see
/// [`passing`](crate::passing).
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
    turns: &[TurnHalf],
    entries: &[Entry],
    patterns: &[Word],
    queries: u32,
    keys: u32,
    lse_rows: u32,
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
    let element = comptime!(tiles.factor);
    let words = comptime!(32 * tiles.panels());
    let tile_bytes = comptime!((tiles.passing * 128 * tiles.panels()) as u32);
    let per_tile = comptime!(tiles.passing as u32);
    let shape = comptime!(ListShape {
        masked: tiles.masked,
        units: tiles.units,
        columns: tiles.passing
    });

    let k_tile: Shared<[u32]> = Shared::new_aligned_slice(comptime!(resident * words), 1024usize);
    let v_tile: Shared<[u32]> = Shared::new_aligned_slice(comptime!(resident * words), 1024usize);
    let q_tiles: Shared<[u32]> = Shared::new_aligned_slice(comptime!(passing * words * stages), 1024usize);
    let do_tiles: Shared<[u32]> = Shared::new_aligned_slice(comptime!(passing * words * stages), 1024usize);
    let lse_tiles: Shared<[Pair]> = Shared::new_aligned_slice(comptime!(passing / 2 * stages), 16usize);
    let delta_tiles: Shared<[Pair]> = Shared::new_aligned_slice(comptime!(passing / 2 * stages), 16usize);
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
    let turn = turn_of(turns, all, shape);
    let (batch, kv_head, block) = (turn.sample, turn.head, turn.block);
    let (begin, per_head) = (turn.begin, turn.tiles);
    let first_key = block * comptime!(resident as u32);
    let tile_count = per_head * group;

    let of_q = rows_of_head(q, batch, 0u32.runtime());
    let of_do = rows_of_head(d_o, batch, 0u32.runtime());
    copy_tile(
        k,
        rows_of_head(k, batch, kv_head),
        first_key,
        keys - first_key,
        k_base,
        resident,
        head_dim,
        threads,
    );
    copy_tile(
        v,
        rows_of_head(v, batch, kv_head),
        first_key,
        keys - first_key,
        v_base,
        resident,
        head_dim,
        threads,
    );
    #[unroll]
    for s in 0..comptime!(stages - 1) {
        let tile = comptime!(s as u32).runtime();
        if tile < tile_count {
            let head = kv_head * group + tile / per_head;
            let row = tile_at(entries, begin + tile % per_head, shape) * per_tile;
            let from = ((batch * heads + head) * lse_rows + row) / 2;
            copy_tile(
                q,
                further(of_q, head),
                row,
                queries - row,
                q_base + tile * tile_bytes,
                passing,
                head_dim,
                threads,
            );
            copy_tile(
                d_o,
                further(of_do, head),
                row,
                queries - row,
                do_base + tile * tile_bytes,
                passing,
                head_dim,
                threads,
            );
            let at = tile * comptime!((passing * 4) as u32);
            copy_statistics(lse, delta, from, lse_base + at, delta_base + at, passing);
        }
        commit();
    }

    let unit = UNIT_POS / 128;
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
        let entry = begin + at % per_head;
        let pattern = pattern_at(entries, entry, unit, shape);
        let bits = bits_of::<Const<1>>(patterns, pattern, thread, shape);
        wait(comptime!(stages - 2));
        sync_cube();
        let next = at + comptime!(stages as u32 - 1);
        if next < tile_count {
            let head = kv_head * group + next / per_head;
            let row = tile_at(entries, begin + next % per_head, shape) * per_tile;
            let from = ((batch * heads + head) * lse_rows + row) / 2;
            copy_tile(
                q,
                further(of_q, head),
                row,
                queries - row,
                q_base + free * tile_bytes,
                passing,
                head_dim,
                threads,
            );
            copy_tile(
                d_o,
                further(of_do, head),
                row,
                queries - row,
                do_base + free * tile_bytes,
                passing,
                head_dim,
                threads,
            );
            let to = free * comptime!((passing * 4) as u32);
            copy_statistics(lse, delta, from, lse_base + to, delta_base + to, passing);
        }
        commit();
        if pattern != NONE {
            let q_now = q_base + stage * tile_bytes;
            let do_now = do_base + stage * tile_bytes;
            let pairs = stage as usize * comptime!(passing / 2) + column;
            let scores = multiply::<NS>(k_at, q_now + by_columns, comptime!(tiles.scores()));
            let scores = hide::<NS>(scores, pattern, bits, shape);
            let p = probabilities::<NS>(scores, &lse_tiles, pairs, factor, passing);
            if comptime!(tiles.sums.values()) {
                let weights = pack::<NS, NP>(p, passing, element);
                v_sum = multiply_registers::<NG, NP>(
                    v_sum,
                    weights,
                    do_now + by_rows,
                    comptime!(tiles.weighted()),
                );
            }
            if comptime!(tiles.sums.keys()) {
                let gradients = multiply::<NS>(v_at, do_now + by_columns, comptime!(tiles.scores()));
                let ds = score_gradients::<NS>(p, gradients, &delta_tiles, pairs, passing);
                let weights = pack::<NS, NP>(ds, passing, element);
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
    let first = first_key + warp_row;
    if comptime!(tiles.sums.values()) {
        store_rows::<NG>(
            dv,
            batch,
            kv_head,
            first,
            keys,
            v_sum,
            1.0f32,
            1.0f32,
            v_base + warp_row * 128,
            lane,
            resident,
            head_dim,
            element,
        );
    }
    if comptime!(tiles.sums.keys()) {
        store_rows::<NG>(
            dk,
            batch,
            kv_head,
            first,
            keys,
            k_sum,
            scale,
            scale,
            k_base + warp_row * 128,
            lane,
            resident,
            head_dim,
            element,
        );
    }
}
