//! Gradient of queries: a block keeps a tile of queries, keys pass. Also `delta`, the sum over channels of `dO ∘ O`.
//!
//! `dQ = scale dS K` with `dS = P ∘ (dO Vᵀ - delta)` (Dao 2023, arXiv:2307.08691, algorithm 2). Runs before the kernel
//! for keys, which reads `delta`.

use super::BackwardTiles;
use super::copy::{copy_tile, store_rows};
use super::softmax::{cut, exponentiate, pack, stage_rows};
use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::{barrier_native_handle, generic_to_shared};
use flow_cube::barrier::{arrive_and_expect, count, named_sync, wait};
use flow_cube::wgmma;
use half::bf16;

/// Eight values of 16 bits.
type Eight = Vector<u32, Const<4>>;

/// Sum of the products of two times eight bf16 values, in order.
#[cube]
fn dot(a: Eight, b: Eight, before: f32) -> f32 {
    let mut sum = before;
    #[unroll]
    for i in 0..4usize {
        let x = a.extract(i);
        let y = b.extract(i);
        sum += f32::reinterpret(x << 16u32) * f32::reinterpret(y << 16u32);
        sum += f32::reinterpret(x & 0xFFFF_0000u32) * f32::reinterpret(y & 0xFFFF_0000u32);
    }
    sum
}

/// `probability · (gradient - delta)`, row by row.
#[cube]
fn score_gradients<N: Size>(
    probabilities: Vector<f32, N>,
    gradients: Vector<f32, N>,
    delta_0: f32,
    delta_1: f32,
    #[comptime] columns: usize,
) -> Vector<f32, N> {
    let mut out = gradients;
    #[unroll]
    for i in 0..comptime!(columns / 2) {
        let delta = if comptime!((i / 2) % 2 == 0) { delta_0 } else { delta_1 };
        out.insert(i, probabilities.extract(i) * (gradients.extract(i) - delta));
    }
    out
}

/// Starts the copies of one passing tile.
#[cube]
fn next_tile(
    full: &Barrier,
    k: &TensorMap<bf16, Tiled>,
    v: &TensorMap<bf16, Tiled>,
    k_tiles: &mut [bf16],
    v_tiles: &mut [bf16],
    stage: usize,
    batch: u32,
    head: u32,
    row: u32,
    #[comptime] tiles: BackwardTiles,
) {
    let rows = comptime!(tiles.passing);
    let panels = comptime!(tiles.panels());
    arrive_and_expect(barrier_native_handle(full), comptime!((2 * rows * 128 * panels) as u32));
    let at = stage * comptime!(rows * 64 * panels);
    copy_tile(full, k, k_tiles, at, batch, head, row, rows, panels);
    copy_tile(full, v, v_tiles, at, batch, head, row, rows, panels);
}

#[cube]
fn body<NS: Size, NP: Size, NG: Size>(
    q: &TensorMap<bf16, Tiled>,
    k: &TensorMap<bf16, Tiled>,
    v: &TensorMap<bf16, Tiled>,
    d_o: &TensorMap<bf16, Tiled>,
    dq: &mut TensorMap<bf16, Tiled>,
    o_rows: &[Eight],
    do_rows: &[Eight],
    o_batch: u32,
    o_head: u32,
    o_row: u32,
    do_batch: u32,
    do_head: u32,
    do_row: u32,
    lse: &[f32],
    delta: &mut [f32],
    queries: u32,
    lse_rows: u32,
    keys: u32,
    group: u32,
    factor: f32,
    scale: f32,
    #[comptime] tiles: BackwardTiles,
) {
    let panels = comptime!(tiles.panels());
    let resident = comptime!(tiles.resident());
    let passing = comptime!(tiles.passing);
    let stages = comptime!(tiles.stages);
    let warps = comptime!(4 * tiles.warpgroups as u32);
    let tile_elements = comptime!(tiles.passing * 64 * tiles.panels());
    let tile_units = comptime!((tiles.passing * 8 * tiles.panels()) as u32);

    let mut q_tile: Shared<[bf16]> = Shared::new_aligned_slice(comptime!(resident * 64 * panels), 1024usize);
    let mut do_tile: Shared<[bf16]> = Shared::new_aligned_slice(comptime!(resident * 64 * panels), 1024usize);
    let mut k_tiles: Shared<[bf16]> = Shared::new_aligned_slice(comptime!(tile_elements * stages), 1024usize);
    let mut v_tiles: Shared<[bf16]> = Shared::new_aligned_slice(comptime!(tile_elements * stages), 1024usize);
    let mut deltas: Shared<[f32]> = Shared::new_slice(resident);
    let q_full: Shared<[Barrier]> = Shared::new_slice(1usize);
    let full: Shared<[Barrier]> = Shared::new_slice(stages);
    let mut used: Shared<[u32]> = Shared::new_slice(stages);

    let head = CUBE_POS_Y;
    let batch = CUBE_POS_Z;
    let kv_head = head / group;
    let first_query = CUBE_POS_X * comptime!(resident as u32);
    let tile_count = (keys + comptime!(passing as u32 - 1)) / comptime!(passing as u32);
    let last = tile_count - 1;

    if UNIT_POS == 0 {
        q_full[0].init_manual(1);
        #[unroll]
        for s in 0..stages {
            full[s].init_manual(1);
            used[s] = 0u32;
        }
        sync_async_proxy_shared();
    }
    sync_cube();

    // The last tile, the one that may be cut, comes first.
    if UNIT_POS == 0 {
        arrive_and_expect(barrier_native_handle(&q_full[0]), comptime!((2 * resident * 128 * panels) as u32));
        copy_tile(&q_full[0], q, &mut q_tile, 0usize, batch, head, first_query, resident, panels);
        copy_tile(&q_full[0], d_o, &mut do_tile, 0usize, batch, head, first_query, resident, panels);
        #[unroll]
        for s in 0..stages {
            if comptime!(s as u32) < tile_count {
                let row = (last - comptime!(s as u32)) * comptime!(passing as u32);
                next_tile(&full[s], k, v, &mut k_tiles, &mut v_tiles, s, batch, kv_head, row, tiles);
            }
        }
    }

    // Two threads a row.
    let of_row = UNIT_POS / 2;
    let query = first_query + of_row;
    let lse_at = (batch * (CUBE_COUNT_Y) + head) * lse_rows;
    let mut sum = 0.0f32;
    if query < queries {
        let half = (UNIT_POS % 2) * comptime!((tiles.head_dim / 16) as u32);
        let o_from = batch * o_batch + head * o_head + query * o_row + half;
        let do_from = batch * do_batch + head * do_head + query * do_row + half;
        #[unroll]
        for i in 0..comptime!((tiles.head_dim / 16) as u32) {
            sum = dot(o_rows[(o_from + i) as usize], do_rows[(do_from + i) as usize], sum);
        }
    }
    sum += plane_shuffle_xor(sum, 1);
    if UNIT_POS % 2 == 0 {
        deltas[of_row as usize] = sum;
        delta[(lse_at + query) as usize] = sum;
    }
    sync_cube();

    let warpgroup = UNIT_POS / 128;
    let thread = UNIT_POS % 128;
    let lane = thread % 32;
    let row = (thread / 32) * 16 + lane / 4;
    let of_tile = warpgroup * 64 + row;
    let delta_0 = deltas[of_tile as usize];
    let delta_1 = deltas[(of_tile + 8) as usize];
    let shift_0 = lse[(lse_at + first_query + of_tile) as usize] * 1.442_695_04f32;
    let shift_1 = lse[(lse_at + first_query + of_tile + 8) as usize] * 1.442_695_04f32;

    let q_base = generic_to_shared::<bf16>(unsafe { q_tile.as_ptr_unchecked() });
    let do_base = generic_to_shared::<bf16>(unsafe { do_tile.as_ptr_unchecked() });
    let k_base = generic_to_shared::<bf16>(unsafe { k_tiles.as_ptr_unchecked() });
    let v_base = generic_to_shared::<bf16>(unsafe { v_tiles.as_ptr_unchecked() });
    let used_base = generic_to_shared::<u32>(unsafe { used.as_ptr_unchecked() });
    let q_at = wgmma::descriptor(q_base + warpgroup * 8192, 16u32, 1024u32);
    let do_at = wgmma::descriptor(do_base + warpgroup * 8192, 16u32, 1024u32);
    let k_at = wgmma::descriptor(k_base, comptime!((passing * 128) as u32), 1024u32);
    let v_at = wgmma::descriptor(v_base, comptime!((passing * 128) as u32), 1024u32);

    wait(barrier_native_handle(&q_full[0]), 0u32);
    wait(barrier_native_handle(&full[0]), 0u32);
    let scores = wgmma::issue_from_zero::<NS>(q_at, k_at, comptime!(tiles.scores()));
    let gradients = wgmma::issue_from_zero::<NS>(do_at, v_at, comptime!(tiles.scores()));
    let mut scores = wgmma::wait::<NS>(scores, comptime!(tiles.scores()), 1usize);
    if keys % comptime!(passing as u32) != 0 {
        scores = cut::<NS>(scores, (lane % 4) * 2, keys - last * comptime!(passing as u32), passing);
    }
    let p = exponentiate::<NS>(scores, factor, shift_0, shift_1, passing);
    let gradients = wgmma::wait::<NS>(gradients, comptime!(tiles.scores()), 0usize);
    let ds = score_gradients::<NS>(p, gradients, delta_0, delta_1, passing);
    let mut q_sum = wgmma::issue_registers_from_zero::<NG, NP>(pack::<NS, NP>(ds, passing), k_at, comptime!(tiles.weighted()));

    let mut stage = 0u32;
    let mut phase = 0u32;
    for tile in 1..tile_count {
        let before = stage;
        stage += 1;
        if stage == comptime!(stages as u32) {
            stage = 0;
            phase ^= 1;
        }
        let k_now = k_at + u64::cast_from(stage * tile_units);
        let v_now = v_at + u64::cast_from(stage * tile_units);
        wait(barrier_native_handle(&full[stage as usize]), phase);
        let scores = wgmma::issue_from_zero::<NS>(q_at, k_now, comptime!(tiles.scores()));
        let gradients = wgmma::issue_from_zero::<NS>(do_at, v_now, comptime!(tiles.scores()));
        let scores = wgmma::wait::<NS>(scores, comptime!(tiles.scores()), 1usize);
        // The sum over the tile before is done, too.
        if lane == 0 {
            if count(used_base + before * 4) % warps == warps - 1 {
                let next = tile - 1 + comptime!(stages as u32);
                if next < tile_count {
                    let row = (last - next) * comptime!(passing as u32);
                    let at = before as usize;
                    next_tile(&full[at], k, v, &mut k_tiles, &mut v_tiles, at, batch, kv_head, row, tiles);
                }
            }
        }
        let p = exponentiate::<NS>(scores, factor, shift_0, shift_1, passing);
        let gradients = wgmma::wait::<NS>(gradients, comptime!(tiles.scores()), 0usize);
        let ds = score_gradients::<NS>(p, gradients, delta_0, delta_1, passing);
        q_sum = wgmma::issue_registers::<NG, NP>(q_sum, pack::<NS, NP>(ds, passing), k_now, comptime!(tiles.weighted()));
    }
    let q_sum = wgmma::wait::<NG>(q_sum, comptime!(tiles.weighted()), 0usize);

    // The gradient takes the place of this warpgroup's queries.
    stage_rows::<NG>(q_base + of_tile * 128, row, lane, q_sum, scale, scale, comptime!(tiles.head_dim), resident);
    sync_async_proxy_shared();
    named_sync(warpgroup + 1, 128u32);
    if thread == 0 {
        store_rows(&q_tile, dq, warpgroup, batch, head, first_query + warpgroup * 64, resident, panels);
    }
}

/// `dq`, and `delta [B, H, lse_rows]`. One block for `tiles.resident()` queries of a head. `o_rows` and `do_rows` are the
/// buffers of `o` and `d_o` in units of eight values, as their strides (batch, head, row) are.
#[cube(launch_unchecked)]
pub fn backward_queries(
    q: &TensorMap<bf16, Tiled>,
    k: &TensorMap<bf16, Tiled>,
    v: &TensorMap<bf16, Tiled>,
    d_o: &TensorMap<bf16, Tiled>,
    dq: &mut TensorMap<bf16, Tiled>,
    o_rows: &[Vector<u32, Const<4>>],
    do_rows: &[Vector<u32, Const<4>>],
    o_batch: u32,
    o_head: u32,
    o_row: u32,
    do_batch: u32,
    do_head: u32,
    do_row: u32,
    lse: &[f32],
    delta: &mut [f32],
    queries: u32,
    lse_rows: u32,
    keys: u32,
    group: u32,
    factor: f32,
    scale: f32,
    #[comptime] tiles: BackwardTiles,
) {
    if comptime!(tiles.head_dim == 64 && tiles.score_vector() == 32) {
        body::<Const<32>, Const<16>, Const<32>>(q, k, v, d_o, dq, o_rows, do_rows, o_batch, o_head, o_row, do_batch, do_head, do_row, lse, delta, queries, lse_rows, keys, group, factor, scale, tiles);
    } else if comptime!(tiles.head_dim == 64) {
        body::<Const<64>, Const<32>, Const<32>>(q, k, v, d_o, dq, o_rows, do_rows, o_batch, o_head, o_row, do_batch, do_head, do_row, lse, delta, queries, lse_rows, keys, group, factor, scale, tiles);
    } else if comptime!(tiles.score_vector() == 32) {
        body::<Const<32>, Const<16>, Const<64>>(q, k, v, d_o, dq, o_rows, do_rows, o_batch, o_head, o_row, do_batch, do_head, do_row, lse, delta, queries, lse_rows, keys, group, factor, scale, tiles);
    } else {
        body::<Const<64>, Const<32>, Const<64>>(q, k, v, d_o, dq, o_rows, do_rows, o_batch, o_head, o_row, do_batch, do_head, do_row, lse, delta, queries, lse_rows, keys, group, factor, scale, tiles);
    }
}
