//! Gradients of keys, values and queries at once, with five products where two kernels have seven: a block keeps a tile of
//! keys, queries pass, and what a passing tile's gradient gets from these keys is added to its sum in memory.
//!
//! `dQ = scale Σ dS K` over blocks of keys. The order of that sum is fixed, so its bits are: the block of keys `j` adds to a tile
//! of queries when block `j - 1` has said that it did ([`flow_cube::queue`]). Blocks walk through the queries in the same order, each
//! behind the one before it. A block takes its place in the order of heads and keys from a ticket when it starts; so the
//! blocks it waits for have started already, the first of them waits for none, and all come to an end however the device
//! starts blocks. Which block does what changes no bits.
//!
//! Products but the last are those of [`backward_keys`](super::backward_keys); `dS` goes to shared memory for the last,
//! where each warpgroup makes all queries by its share of the channels. The accelerator of copies adds the result up, so
//! that no warp waits for memory.
//!
//! What keeps the tensor cores busy is the order of issue. In the turn of tile `i`: values' gradients; while they run, the
//! queries' gradient of tile `i - 1` goes to shared memory and its addition starts; gradients of probabilities; the scores of
//! tile `i + 1`, over which the gradients of scores of tile `i` are made; keys' gradients and queries' gradient of tile `i`,
//! over which the exponentials of tile `i + 1` are. Nothing that is read crosses the loop's end in flight (C7514).

use super::BackwardTiles;
use super::copy::store_rows;
use super::keep_keys::{load_resident, next_half, stage_gradient};
use crate::columns::{Pair, cut_rows, probabilities, score_gradients, stage_packed, swizzled};
use crate::softmax::pack;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::generic_to_shared;
use flow_cube::barrier::{self, count_warp, named_sync, wait};
use flow_cube::register::{lane_again, store_shared_16, unit_again};
use flow_cube::{queue, tma, wgmma};

/// Four values of a sum in memory.
pub(super) type Four = Vector<f32, Const<4>>;

/// Counters before those of the turns: tickets, one for each part of the keys.
pub(super) const TICKETS: usize = 8;

/// Tiles of queries that shared memory holds: one whose keys' gradients are made, one whose scores are, one on its way.
const QUERY_STAGES: usize = 3;

/// Tiles of the output's gradient that shared memory holds.
const GRADIENT_STAGES: usize = 2;

/// Barrier at which warpgroups wait for one another's `dS`; those below are of one warpgroup.
const EXCHANGE: u32 = 3;

/// The block of keys and the head (of all samples) that come at `ticket`: blocks of `together` heads take turns, so that
/// those that wait for one another are few.
#[cube]
fn place_of(ticket: u32, blocks: u32, heads: u32, together: u32) -> (u32, u32) {
    let first = ticket / (blocks * together) * together;
    let rest = ticket - first * blocks;
    let left = heads - first;
    let side_by_side = select(left < together, left, together);
    (rest / side_by_side, first + rest % side_by_side)
}

/// Writes a thread's share of a tile's gradient to shared memory, where the accelerator finds it as it is in the sums. A chunk
/// is eight channels.
#[cube]
fn stage_part<N: Size>(to: u32, values: Vector<f32, N>, #[comptime] chunks: usize) {
    #[unroll]
    for c in 0..chunks {
        let x = values.extract(comptime!(4 * c));
        let y = values.extract(comptime!(4 * c + 1));
        let z = values.extract(comptime!(4 * c + 2));
        let w = values.extract(comptime!(4 * c + 3));
        store_shared_16(to, comptime!((c * 2048) as u32), x, y, z, w);
    }
}

/// Starts adding a warpgroup's share of a tile's gradient, of `chunks` chunks, to its sum from `at` on, or begins the sum with it.
/// For one thread, when it is its turn.
#[cube]
fn add_up(sums: &mut [Four], at: u32, from: u32, begin: bool, #[comptime] chunks: usize) {
    let at = at as usize;
    let to = unsafe { sums[at..at + comptime!(chunks * 128)].as_ptr_unchecked() };
    if begin {
        queue::bulk_store::<Four>(to, from, comptime!((chunks * 2048) as u32));
    } else {
        queue::bulk_add::<Four>(to, from, comptime!((chunks * 2048) as u32));
    }
    tma::commit();
}

/// Where passing tile `tile` is: sample, head, row, and the row of its statistics.
#[cube]
fn passing_at(
    given: &[u32],
    tile: u32,
    per_head: u32,
    heads: u32,
    lse_rows: u32,
    #[comptime] passing: usize,
) -> (u32, u32, u32, u32) {
    let batch = given[1];
    let head = given[2] + tile / per_head;
    let row = tile % per_head * comptime!(passing as u32);
    (batch, head, row, (batch * heads + head) * lse_rows + row)
}

/// The stage of step `step` of twice as many steps as there are stages.
#[cube]
fn stage_of(step: u32) -> u32 {
    let stages = comptime!(QUERY_STAGES as u32);
    select(step < stages, step, step - stages)
}

/// This thread's first row of the block's.
#[cube]
fn own_row(warp: u32) -> u32 {
    warp * 16 + lane_again() / 4
}

/// Where this thread's first values of a tile of gradients of scores lie, in bytes.
#[cube]
fn own_row_at(warp: u32) -> u32 {
    let row = own_row(warp);
    row * 128 + swizzled(row, lane_again())
}

/// Number of the counter in which the block before this one says how many tiles it has added of this warpgroup's share.
#[cube]
fn counter_before(given: &[u32], warpgroup: u32, #[comptime] warpgroups: usize) -> usize {
    (given[4] + warpgroup - comptime!(warpgroups as u32)) as usize
}

/// Says that this block has added `tiles` tiles of its warpgroup's share, when all that it started has arrived.
#[cube]
fn say_added(counters: &mut [u32], given: &[u32], warpgroup: u32, tiles: u32) {
    queue::bulk_wait();
    let at = (given[4] + warpgroup) as usize;
    queue::say(unsafe { counters[at..at + 1].as_ptr_unchecked() }, tiles);
}

/// `dk`, `dv`, and the sums of which [`finish`](super::joint_ends::finish) makes `dq`. One block for `tiles.resident()` keys
/// of a key head, `blocks` for each of `kv_heads` heads of each sample. `lse` and `delta` are `[B, H, lse_rows]`, `sums` as
/// [`joint_ends`](super::joint_ends) says. `counters` are zeros: [`TICKETS`], of which this launch takes number `part`, then one for
/// each warpgroup of each of `all_blocks` blocks of a head, in which it says how many tiles it has added. `turns_before` blocks of
/// keys of earlier launches have added to each sum.
#[cube(launch_unchecked)]
pub fn joint<E: Numeric, NS: Size, NG: Size, NP: Size, NQ: Size>(
    q: &TensorMap<E, Tiled>,
    k: &TensorMap<E, Tiled>,
    v: &TensorMap<E, Tiled>,
    d_o: &TensorMap<E, Tiled>,
    dk: &mut TensorMap<E, Tiled>,
    dv: &mut TensorMap<E, Tiled>,
    lse: &[Vector<f32, Const<2>>],
    delta: &[Vector<f32, Const<2>>],
    sums: &mut [Vector<f32, Const<4>>],
    counters: &mut [u32],
    part: u32,
    turns_before: u32,
    all_blocks: u32,
    blocks: u32,
    kv_heads: u32,
    samples: u32,
    together: u32,
    queries: u32,
    keys: u32,
    lse_rows: u32,
    group: u32,
    factor: f32,
    scale: f32,
    #[comptime] tiles: BackwardTiles,
    #[define(E)] _element: ElemType,
    #[define(NS, NG, NP, NQ)] _vectors: [usize; 4],
) {
    let panels = comptime!(tiles.panels());
    let resident = comptime!(tiles.resident());
    let passing = comptime!(tiles.passing);
    let last_warp = comptime!(4 * tiles.warpgroups as u32 - 1);
    let tile_elements = comptime!(tiles.passing * 64 * tiles.panels());
    let tile_units = comptime!((tiles.passing * 8 * tiles.panels()) as u32);
    let element = comptime!(tiles.factor);
    // Channels of a warpgroup's share of the gradient of queries, eight by eight.
    let chunks = comptime!(tiles.head_dim / tiles.warpgroups / 8);

    let mut k_tile: Shared<[E]> = Shared::new_aligned_slice(comptime!(resident * 64 * panels), 1024usize);
    let mut v_tile: Shared<[E]> = Shared::new_aligned_slice(comptime!(resident * 64 * panels), 1024usize);
    let mut q_tiles: Shared<[E]> =
        Shared::new_aligned_slice(comptime!(tile_elements * QUERY_STAGES), 1024usize);
    let mut do_tiles: Shared<[E]> =
        Shared::new_aligned_slice(comptime!(tile_elements * GRADIENT_STAGES), 1024usize);
    // Two, so that one meeting of the warpgroups a tile is enough.
    let ds_tiles: Shared<[E]> = Shared::new_aligned_slice(comptime!(2 * resident * 64), 1024usize);
    let parts: Shared<[Four]> =
        Shared::new_aligned_slice(comptime!(tiles.warpgroups * chunks * 128), 128usize);
    // `lse` of the tiles of queries, then `delta` of those of the output's gradient: one address leads to both.
    let mut statistics: Shared<[Pair]> =
        Shared::new_aligned_slice(comptime!(passing / 2 * (QUERY_STAGES + GRADIENT_STAGES)), 16usize);
    let kv_full: Shared<[u64]> = Shared::new_slice(1usize);
    let kv_full = barrier::first(&kv_full);
    let q_full: Shared<[u64]> = Shared::new_slice(QUERY_STAGES);
    let q_full = barrier::first(&q_full);
    let do_full: Shared<[u64]> = Shared::new_slice(GRADIENT_STAGES);
    let do_full = barrier::first(&do_full);
    let mut used: Shared<[u32]> = Shared::new_slice(QUERY_STAGES);
    // Ticket, sample, first head of queries, turn, number of the first counter, and keys from the first one on: what single
    // threads want to know now and then takes no registers here.
    let mut given: Shared<[u32]> = Shared::new_slice(6usize);

    if UNIT_POS == 0 {
        let at = part as usize;
        given[0] = queue::take_ticket(unsafe { counters[at..at + 1].as_ptr_unchecked() });
        barrier::init(kv_full);
        #[unroll]
        for s in 0..QUERY_STAGES {
            barrier::init(barrier::at(q_full, s));
            used[s] = 0u32;
        }
        #[unroll]
        for s in 0..GRADIENT_STAGES {
            barrier::init(barrier::at(do_full, s));
        }
        tma::fence();
    }
    sync_cube();

    // Broadcasts tell the compiler that a warp's threads have the same value, which then takes none of their registers.
    let ticket = plane_broadcast(given[0], 0u32);
    let (block, of_all) = place_of(ticket, blocks, kv_heads * samples, together);
    let batch = of_all / kv_heads;
    let kv_head = of_all % kv_heads;
    let heads = kv_heads * group;
    let first_head = kv_head * group;
    let first_key = block * comptime!(resident as u32);
    let turn = turns_before + block;
    if UNIT_POS == 0 {
        given[1] = batch;
        given[2] = first_head;
        given[3] = turn;
        given[4] =
            comptime!(TICKETS as u32) + (of_all * all_blocks + turn) * comptime!(tiles.warpgroups as u32);
        given[5] = keys - first_key;
    }
    let per_head = queries.div_ceil(comptime!(passing as u32));
    let tile_count = per_head * group;

    if UNIT_POS == 0 {
        load_resident::<E>(
            kv_full,
            k,
            v,
            &mut k_tile,
            &mut v_tile,
            batch,
            kv_head,
            first_key,
            tiles,
        );
        #[unroll]
        for s in 0..QUERY_STAGES {
            let tile = comptime!(s as u32).runtime();
            if tile < tile_count {
                let (batch, head, row, statistic) =
                    passing_at(&given, tile, per_head, heads, lse_rows, passing);
                next_half::<E>(
                    barrier::at(q_full, s),
                    q,
                    lse,
                    &mut q_tiles,
                    &mut statistics,
                    s,
                    batch,
                    head,
                    row,
                    statistic,
                    0usize,
                    tiles,
                );
                if comptime!(s < GRADIENT_STAGES) {
                    next_half::<E>(
                        barrier::at(do_full, s),
                        d_o,
                        delta,
                        &mut do_tiles,
                        &mut statistics,
                        s,
                        batch,
                        head,
                        row,
                        statistic,
                        QUERY_STAGES,
                        tiles,
                    );
                }
            }
        }
    }

    let warp = plane_broadcast(UNIT_POS / 32, 0u32);
    let warpgroup = warp / 4;
    let thread = UNIT_POS % 128;
    let lane = thread % 32;
    let column = (lane % 4) as usize;
    let of_delta = comptime!(passing / 2 * QUERY_STAGES);
    let k_base = generic_to_shared::<E>(unsafe { k_tile.as_ptr_unchecked() });
    let v_base = generic_to_shared::<E>(unsafe { v_tile.as_ptr_unchecked() });
    let q_base = generic_to_shared::<E>(unsafe { q_tiles.as_ptr_unchecked() });
    let do_base = generic_to_shared::<E>(unsafe { do_tiles.as_ptr_unchecked() });
    let ds_base = generic_to_shared::<E>(unsafe { ds_tiles.as_ptr_unchecked() });
    let used_base = generic_to_shared::<u32>(unsafe { used.as_ptr_unchecked() });
    let part_base = generic_to_shared::<Four>(unsafe { parts.as_ptr_unchecked() })
        + warpgroup * comptime!((chunks * 2048) as u32);
    let k_at = wgmma::descriptor(k_base + warpgroup * 8192, 16u32, 1024u32);
    let v_at = wgmma::descriptor(v_base + warpgroup * 8192, 16u32, 1024u32);
    let q_at = wgmma::descriptor(q_base, comptime!((passing * 128) as u32), 1024u32);
    let do_at = wgmma::descriptor(do_base, comptime!((passing * 128) as u32), 1024u32);
    let ds_at = wgmma::descriptor(ds_base, comptime!((resident * 128) as u32), 1024u32);
    // This warpgroup's channels of all keys.
    let channel = warpgroup * comptime!((chunks * 8) as u32);
    let across_at = wgmma::descriptor(
        k_base + channel / 64 * comptime!((resident * 128) as u32) + channel % 64 * 2,
        comptime!((resident * 128) as u32),
        1024u32,
    );

    // Fours of the sum of a tile, and where this warpgroup's share begins.
    let fours = comptime!((passing * tiles.head_dim / 4) as u32);
    let share = warpgroup * comptime!((chunks * 128) as u32);

    sync_cube();
    wait(kv_full, 0u32);
    wait(q_full, 0u32);
    wait(do_full, 0u32);

    // The first tile is peeled: sums that enter a loop as zeros make ptxas wait after each product.
    let scores = wgmma::issue_from_zero::<NS>(k_at, q_at, comptime!(tiles.scores()));
    let scores = wgmma::wait::<NS>(scores, comptime!(tiles.scores()), 0usize);
    let mut p = probabilities::<NS>(scores, &statistics, column, factor, passing);
    if given[5] < comptime!(resident as u32) {
        p = cut_rows::<NS>(p, own_row(warp), given[5], passing);
    }
    let mut p_weights = pack::<NS, NP>(p, passing, element);
    let mut v_sum = wgmma::issue_registers_from_zero::<NG, NP>(p_weights, do_at, comptime!(tiles.weighted()));
    let gradients = wgmma::issue_from_zero::<NS>(v_at, do_at, comptime!(tiles.scores()));
    // Of the tile of queries whose scores come next: its stage, and from the number of stages on the same with the other parity.
    let mut step = select(tile_count > 1, 1u32, 0u32);
    let stage = step;
    wait(barrier::at(q_full, stage as usize), 0u32);
    wgmma::wait_for_reads(1usize);
    let scores = wgmma::issue_from_zero::<NS>(
        k_at,
        q_at + u64::cast_from(stage * tile_units),
        comptime!(tiles.scores()),
    );
    let gradients = wgmma::wait::<NS>(gradients, comptime!(tiles.scores()), 1usize);
    let ds = score_gradients::<NS>(p, gradients, &statistics, of_delta + column, passing);
    let weights = pack::<NS, NP>(ds, passing, element);
    let mut k_sum = wgmma::issue_registers_from_zero::<NG, NP>(weights, q_at, comptime!(tiles.weighted()));
    stage_packed::<NP>(ds_base + own_row_at(warp), weights, passing);
    tma::fence();
    named_sync(EXCHANGE, comptime!(tiles.threads()));
    if UNIT_POS == 0 && tile_count > comptime!(GRADIENT_STAGES as u32) {
        let ahead = comptime!(GRADIENT_STAGES as u32).runtime();
        let (batch, head, row, statistic) = passing_at(&given, ahead, per_head, heads, lse_rows, passing);
        next_half::<E>(
            do_full,
            d_o,
            delta,
            &mut do_tiles,
            &mut statistics,
            0usize,
            batch,
            head,
            row,
            statistic,
            QUERY_STAGES,
            tiles,
        );
    }
    let q_part = wgmma::issue_from_zero::<NQ>(ds_at, across_at, comptime!(tiles.across()));
    // How many tiles the block before this one has added, as it last said; the first of a launch waits for none.
    let mut seen = select(block == 0, tile_count, 0u32);
    let scores = wgmma::wait::<NS>(scores, comptime!(tiles.scores()), 2usize);
    p = probabilities::<NS>(
        scores,
        &statistics,
        stage as usize * comptime!(passing / 2) + column,
        factor,
        passing,
    );
    if given[5] < comptime!(resident as u32) {
        p = cut_rows::<NS>(p, own_row(warp), given[5], passing);
    }
    p_weights = pack::<NS, NP>(p, passing, element);
    let mut part = wgmma::wait::<NQ>(q_part, comptime!(tiles.across()), 0usize);

    for tile in 1..tile_count {
        let q_now = q_at + u64::cast_from(stage_of(step) * tile_units);
        let do_stage = tile % 2;
        let do_now = do_at + u64::cast_from(do_stage * tile_units);
        wait(barrier::at(do_full, do_stage as usize), tile / 2 % 2);
        v_sum = wgmma::issue_registers::<NG, NP>(v_sum, p_weights, do_now, comptime!(tiles.weighted()));
        stage_part::<NQ>(part_base + unit_again() % 128 * 16, part, chunks);
        tma::fence();
        let gradients = wgmma::issue_from_zero::<NS>(v_at, do_now, comptime!(tiles.scores()));

        // The scores of the next tile; in the last turn those of this one once more, which nothing reads.
        if tile + 1 < tile_count {
            step = select(step == comptime!(2 * QUERY_STAGES as u32 - 1), 0u32, step + 1);
        }
        let stage = stage_of(step);
        wait(
            barrier::at(q_full, stage as usize),
            step / comptime!(QUERY_STAGES as u32),
        );
        wgmma::wait_for_reads(1usize);
        let scores = wgmma::issue_from_zero::<NS>(
            k_at,
            q_at + u64::cast_from(stage * tile_units),
            comptime!(tiles.scores()),
        );

        named_sync(warpgroup + 1, 128u32);
        if unit_again().is_multiple_of(128) {
            if tile > 1 {
                say_added(counters, &given, warpgroup, tile - 1);
            }
            if seen < tile {
                let at = counter_before(&given, warpgroup, tiles.warpgroups);
                seen = queue::wait_for(unsafe { counters[at..at + 1].as_ptr_unchecked() }, tile);
            }
            let (_, _, _, statistic) = passing_at(&given, tile - 1, per_head, heads, lse_rows, passing);
            add_up(
                sums,
                statistic / comptime!(passing as u32) * fours + share,
                part_base,
                given[3] == 0,
                chunks,
            );
        }
        // All products of the tile before are done. Its queries are in the stage that is neither this tile's nor the next one's.
        let before = select(stage == comptime!(QUERY_STAGES as u32 - 1), 0u32, stage + 1);
        let users = count_warp(lane_again(), used_base + before * 4, last_warp);
        if users == last_warp && tile - 1 + comptime!(QUERY_STAGES as u32) < tile_count {
            let ahead = tile - 1 + comptime!(QUERY_STAGES as u32);
            let (batch, head, row, statistic) = passing_at(&given, ahead, per_head, heads, lse_rows, passing);
            next_half::<E>(
                barrier::at(q_full, before as usize),
                q,
                lse,
                &mut q_tiles,
                &mut statistics,
                before as usize,
                batch,
                head,
                row,
                statistic,
                0usize,
                tiles,
            );
        }

        let gradients = wgmma::wait::<NS>(gradients, comptime!(tiles.scores()), 1usize);
        let pairs = of_delta + do_stage as usize * comptime!(passing / 2) + (lane_again() % 4) as usize;
        let ds = score_gradients::<NS>(p, gradients, &statistics, pairs, passing);
        let weights = pack::<NS, NP>(ds, passing, element);
        k_sum = wgmma::issue_registers::<NG, NP>(k_sum, weights, q_now, comptime!(tiles.weighted()));
        let odd = tile % 2;
        stage_packed::<NP>(
            ds_base + own_row_at(warp) + odd * comptime!((resident * 128) as u32),
            weights,
            passing,
        );
        tma::fence();
        if unit_again().is_multiple_of(128) {
            // Before others write there in the next turn.
            tma::wait_read(0usize);
        }
        named_sync(EXCHANGE, comptime!(tiles.threads()));
        let ahead = tile + comptime!(GRADIENT_STAGES as u32);
        if unit_again() == 32 && ahead < tile_count {
            let (batch, head, row, statistic) = passing_at(&given, ahead, per_head, heads, lse_rows, passing);
            next_half::<E>(
                barrier::at(do_full, do_stage as usize),
                d_o,
                delta,
                &mut do_tiles,
                &mut statistics,
                do_stage as usize,
                batch,
                head,
                row,
                statistic,
                QUERY_STAGES,
                tiles,
            );
        }
        let q_part = wgmma::issue_from_zero::<NQ>(
            ds_at + u64::cast_from(odd * comptime!((resident * 8) as u32)),
            across_at,
            comptime!(tiles.across()),
        );
        if unit_again().is_multiple_of(128) && seen < tile_count {
            let at = counter_before(&given, warpgroup, tiles.warpgroups);
            seen = queue::peek(unsafe { counters[at..at + 1].as_ptr_unchecked() });
        }
        let scores = wgmma::wait::<NS>(scores, comptime!(tiles.scores()), 2usize);
        p = probabilities::<NS>(
            scores,
            &statistics,
            stage as usize * comptime!(passing / 2) + column,
            factor,
            passing,
        );
        if given[5] < comptime!(resident as u32) {
            p = cut_rows::<NS>(p, own_row(warp), given[5], passing);
        }
        p_weights = pack::<NS, NP>(p, passing, element);
        part = wgmma::wait::<NQ>(q_part, comptime!(tiles.across()), 0usize);
    }

    stage_part::<NQ>(part_base + unit_again() % 128 * 16, part, chunks);
    // Gradients take the places of keys and values, when the other warpgroup has read them, too.
    let sum_of_values = wgmma::wait::<NG>(v_sum, comptime!(tiles.weighted()), 0usize);
    let sum_of_keys = wgmma::wait::<NG>(k_sum, comptime!(tiles.weighted()), 0usize);
    tma::fence();
    sync_cube();
    if thread == 0 {
        if seen < tile_count {
            let at = counter_before(&given, warpgroup, tiles.warpgroups);
            queue::wait_for(unsafe { counters[at..at + 1].as_ptr_unchecked() }, tile_count);
        }
        let (_, _, _, statistic) = passing_at(&given, tile_count - 1, per_head, heads, lse_rows, passing);
        add_up(
            sums,
            statistic / comptime!(passing as u32) * fours + share,
            part_base,
            given[3] == 0,
            chunks,
        );
    }
    stage_gradient::<NG>(v_base, warpgroup, thread, sum_of_values, 1.0f32, tiles);
    stage_gradient::<NG>(k_base, warpgroup, thread, sum_of_keys, scale, tiles);
    tma::fence();
    named_sync(warpgroup + 1, 128u32);
    if thread == 0 {
        say_added(counters, &given, warpgroup, tile_count);
        let (batch, kv_head) = (given[1], given[2] / group);
        let from = (given[3] - turns_before) * comptime!(resident as u32) + warpgroup * 64;
        store_rows::<E>(&v_tile, dv, warpgroup, batch, kv_head, from, resident, panels);
        store_rows::<E>(&k_tile, dk, warpgroup, batch, kv_head, from, resident, panels);
    }
}
