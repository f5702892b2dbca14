//! A persistent block of the forward kernel: its shared memory, a thread's place in it, how far it is, and the copies of its queries.

use super::ForwardTiles;
use super::arguments::{QkvMaps, WorkSchedule};
use super::copy::load_fragment;
use super::kv_stages::{KvStages, init_barriers};
use super::scheduled_tiles::{WorkItem, fill_queries, fill_record, work_item_at};
use crate::tile_scheduler::MAX_WORK_ITEMS;
use cubecl::prelude::*;
use flow_cube::barrier::{
    self, COUNTER_WORDS, came_last, count_warp_by_lanes, counter_at, reset_counters, wait,
};
use flow_cube::register::shared_address;
use flow_cube::tma;
use flow_cube::warpgroup::warpgroup_and_thread;
use flow_cube::wgmma;

/// Stages of keys, and of values.
pub(super) const STAGES: usize = 2;

/// A block's work and shared memory, and a thread's place in it. `_base` are byte addresses of shared memory, `_at` descriptors.
#[derive(CubeType)]
pub(super) struct PersistentBlock<E: Numeric> {
    /// The block's first item, and how many it has; the same of its records.
    pub first_item: u32,
    pub items: u32,
    pub first_record: u32,
    pub records: u32,
    pub q: TensorMap<E, Tiled>,
    pub q_tile: Shared<[E]>,
    /// Barrier of the queries.
    pub q_full: u32,
    pub o_tile: Shared<[E]>,
    pub keys: KvStages<E>,
    pub values: KvStages<E>,
    pub q_base: u32,
    pub o_base: u32,
    /// Counters of the stages that warps are done with: of keys, of values, and of the queries.
    pub used_base: u32,
    pub queries_counter: u32,
    /// Whether an item has an overflowed row; behind the last one, whether any has.
    pub overflowed_items: Shared<[u32]>,
    /// This thread's word of [`OnlineSoftmax`](super::online_softmax::OnlineSoftmax).
    pub overflow_address: u32,
    /// What this thread's two rows of the output before are multiplied by.
    pub scale_address: u32,
    pub q_at: u64,
    pub k_at: u64,
    pub v_at: u64,
    pub warpgroup: u32,
    /// Of the warpgroup.
    pub thread: u32,
    pub lane: u32,
    /// Whether it is of the warp that starts the first copies.
    pub first_warp: bool,
    pub scale_log2: f32,
}

/// How far a block is.
#[derive(CubeType)]
pub(super) struct Progress {
    /// Stages go around from the first tile of the block to its last; these are of the tile that is looked at.
    pub stage: u32,
    pub phase: u32,
    pub q_phase: u32,
    /// What is gone through: all items; then, if rows overflowed, each of their items twice, to find the rows and with care for them.
    pub time: u32,
    pub item: u32,
    pub record: u32,
    pub item_end: u32,
    pub record_end: u32,
}

/// Makes a block ready: its shared memory and its barriers. For all threads, which meet.
#[cube]
pub(super) fn persistent_block<E: Numeric, NW: Size>(
    maps: &QkvMaps<E>,
    schedule: &WorkSchedule<NW>,
    scale_log2: f32,
    #[comptime] tiles: ForwardTiles,
) -> PersistentBlock<E> {
    let q_elements = comptime!(tiles.queries() * 64 * tiles.panels());
    let kv_elements = comptime!(tiles.keys * 64 * tiles.panels() * STAGES);
    let threads = comptime!(tiles.threads() as usize);

    let q_tile: Shared<[E]> = Shared::new_aligned_slice(q_elements, 1024usize);
    let o_tile: Shared<[E]> = Shared::new_aligned_slice(q_elements, 1024usize);
    let k_tiles: Shared<[E]> = Shared::new_aligned_slice(kv_elements, 1024usize);
    let v_tiles: Shared<[E]> = Shared::new_aligned_slice(kv_elements, 1024usize);
    let q_full: Shared<[u64]> = Shared::new_slice(1usize);
    let q_full = barrier::first(&q_full);
    let k_full: Shared<[u64]> = Shared::new_slice(comptime!(STAGES));
    let k_full = barrier::first(&k_full);
    let v_full: Shared<[u64]> = Shared::new_slice(comptime!(STAGES));
    let v_full = barrier::first(&v_full);
    // Of keys, of values, of queries.
    let mut used: Shared<[u32]> = Shared::new_slice(comptime!((2 * STAGES + 1) * COUNTER_WORDS));
    // Whether an item has an overflowed row; behind the last one, whether any has.
    let mut overflowed_items: Shared<[u32]> = Shared::new_slice(comptime!(MAX_WORK_ITEMS + 1));
    let overflowed: Shared<[u32]> = Shared::new_slice(threads);
    // What a thread's two rows of the output before are multiplied by.
    let inverses: Shared<[u32]> = Shared::new_slice(comptime!(2 * threads));

    let share = schedule.assignments[CUBE_POS_X as usize];
    let first_item = share.extract(0usize);
    let items = share.extract(1usize);
    let first_record = share.extract(2usize);
    let records = share.extract(3usize);

    if UNIT_POS == 0 {
        init_barriers(q_full, k_full, v_full, comptime!(STAGES));
        tma::fence();
    }
    #[unroll]
    for i in 0..comptime!(MAX_WORK_ITEMS / threads) {
        overflowed_items[comptime!(i * threads) + UNIT_POS as usize] = 0u32;
    }
    if UNIT_POS == 0 {
        overflowed_items[comptime!(MAX_WORK_ITEMS)] = 0u32;
    }
    reset_counters(&mut used, comptime!(2 * STAGES + 1));
    sync_cube();

    let (warpgroup, thread) = warpgroup_and_thread(comptime!(tiles.warpgroups), true);
    let lane = thread % 32;
    // For the warp that starts the first copies; a vote, so that the compiler takes it for the same in all of its threads.
    let first_warp = plane_any(UNIT_POS < 32);
    let q_base = shared_address::<E>(&q_tile);
    let o_base = shared_address::<E>(&o_tile);
    let k_base = shared_address::<E>(&k_tiles);
    let v_base = shared_address::<E>(&v_tiles);
    let used_base = shared_address::<u32>(&used);
    let overflow_base = shared_address::<u32>(&overflowed);
    let q_at = wgmma::descriptor(q_base + warpgroup * 8192, 16u32, 1024u32);
    let k_at = wgmma::descriptor(k_base, 16u32, 1024u32);
    let v_at = wgmma::descriptor(v_base, comptime!((tiles.keys * 128) as u32), 1024u32);

    let scale_address = shared_address::<u32>(&inverses) + UNIT_POS * 8;
    let queries_counter = counter_at(used_base, comptime!(2 * STAGES as u32).runtime());
    let keys = KvStages::<E> {
        first: maps.k,
        second: maps.k_2,
        tiles: k_tiles,
        full: k_full,
    };
    let values = KvStages::<E> {
        first: maps.v,
        second: maps.v_2,
        tiles: v_tiles,
        full: v_full,
    };
    PersistentBlock::<E> {
        first_item,
        items,
        first_record,
        records,
        q: maps.q,
        q_tile,
        q_full,
        o_tile,
        keys,
        values,
        q_base,
        o_base,
        used_base,
        queries_counter,
        overflowed_items,
        overflow_address: overflow_base + UNIT_POS * 4,
        scale_address,
        q_at,
        k_at,
        v_at,
        warpgroup,
        thread,
        lane,
        first_warp,
        scale_log2,
    }
}

/// Starts the copies of the first item's queries, and of its first tiles. For a whole warp.
#[cube]
pub(super) fn start_copies<E: Numeric, NW: Size>(
    block: &PersistentBlock<E>,
    schedule: &WorkSchedule<NW>,
    progress: &Progress,
    first: &WorkItem,
    #[comptime] tiles: ForwardTiles,
) {
    fill_queries::<E>(block.q_full, &block.q, &block.q_tile, first, tiles);
    #[unroll]
    for s in 0..STAGES {
        let at = progress.record + comptime!(s as u32);
        if at < progress.record_end {
            let to = progress.stage ^ comptime!(1 - s as u32);
            let at = block.first_record + at;
            fill_record::<E>(&block.keys, to, &schedule.records, at, tiles);
            fill_record::<E>(&block.values, to, &schedule.records, at, tiles);
        }
    }
}

/// Waits for an item's queries, and takes what registers keep of them; then those of the item behind may come.
#[cube]
pub(super) fn take_queries<E: Numeric, NQ: Size, NW: Size>(
    block: &PersistentBlock<E>,
    schedule: &WorkSchedule<NW>,
    progress: &mut Progress,
    #[comptime] tiles: ForwardTiles,
) -> Vector<u32, NQ> {
    let last_warp = comptime!(4 * tiles.warpgroups as u32 - 1);
    wait(block.q_full, progress.q_phase);
    progress.q_phase ^= 1;
    let fragment = load_fragment::<NQ>(
        block.q_base,
        block.warpgroup,
        block.thread,
        comptime!(tiles.q_register_steps),
        comptime!(tiles.queries()),
    );
    let q_users = count_warp_by_lanes(block.lane, block.queries_counter, last_warp);
    if came_last(q_users, last_warp) && progress.item + 1 < progress.item_end {
        let behind = work_item_at(&schedule.assignments, block.first_item + progress.item + 1);
        fill_queries::<E>(block.q_full, &block.q, &block.q_tile, &behind, tiles);
    }
    fragment
}
