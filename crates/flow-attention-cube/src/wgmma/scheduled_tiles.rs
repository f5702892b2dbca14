//! What a persistent block reads of its work assignment ([`tile_scheduler`](crate::tile_scheduler)), and the copies that this asks for.

use super::ForwardTiles;
use super::copy::{TileOrigin, fill};
use super::kv_stages::KvStages;
use crate::tile_scheduler::SECOND_SEGMENT;
use cubecl::prelude::*;
use flow_cube::barrier;

/// A row of a list.
pub(super) type Four = Vector<u32, Const<4>>;

/// Queries of a head.
#[derive(CubeType)]
pub(super) struct WorkItem {
    /// The first of them.
    pub first_query: u32,
    /// Head of the queries.
    pub head: u32,
    /// Sample of the batch.
    pub batch: u32,
    /// How many records it has.
    pub records: u32,
}

/// Row `at` of the shares, an item.
#[cube]
pub(super) fn work_item_at(assignments: &[Four], at: u32) -> WorkItem {
    let row = assignments[at as usize];
    let heads = row.extract(1usize);
    WorkItem {
        first_query: row.extract(0usize),
        head: heads & 0xFFFFu32,
        batch: heads >> 16u32,
        records: row.extract(2usize),
    }
}

/// What a warpgroup sees of the tile of record `at`.
#[cube]
pub(super) fn partial_mask_of(record_words: &[u32], at: u32, warpgroup: u32) -> u32 {
    record_words[(4 * at + 2 + warpgroup) as usize]
}

/// Starts the copy of the tile of record `at`, of keys or of values, to stage `stage`. For a whole warp.
///
/// The record is read here: its partial mask was read two tiles before, so it is in the cache of the multiprocessor.
#[cube]
pub(super) fn fill_record<E: Numeric>(
    stages: &KvStages<E>,
    stage: u32,
    records: &[Four],
    at: u32,
    #[comptime] tiles: ForwardTiles,
) {
    let (panels, rows) = comptime!((tiles.panels(), tiles.keys));
    let record = records[at as usize];
    let row = record.extract(0usize);
    let heads = record.extract(1usize);
    let (batch, head) = (heads >> 16u32, heads & 0xFFFFu32);
    let to_row = stage as usize * comptime!(tiles.keys * 64 * tiles.panels());
    let full = barrier::at(stages.full, stage as usize);
    let from = row & comptime!(!SECOND_SEGMENT);
    let origin = TileOrigin {
        batch,
        head,
        row: from,
    };
    if comptime!(tiles.two_segments) && row != from {
        fill::<E>(full, &stages.second, &stages.tiles, to_row, &origin, rows, panels);
    } else {
        fill::<E>(full, &stages.first, &stages.tiles, to_row, &origin, rows, panels);
    }
}

/// Starts the copy of an item's queries. For a whole warp.
#[cube]
pub(super) fn fill_queries<E: Numeric>(
    barrier: u32,
    q: &TensorMap<E, Tiled>,
    to: &[E],
    item: &WorkItem,
    #[comptime] tiles: ForwardTiles,
) {
    let (rows, panels) = comptime!((tiles.queries(), tiles.panels()));
    let origin = TileOrigin {
        batch: item.batch,
        head: item.head,
        row: item.first_query,
    };
    fill::<E>(barrier, q, to, 0usize, &origin, rows, panels);
}
