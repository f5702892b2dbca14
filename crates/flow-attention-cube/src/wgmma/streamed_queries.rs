//! The queries that blocks of the kernel for keys stream: which of them, and their copies.

use super::BackwardTiles;
use super::arguments::{BackwardKeysProblem, BlockMaskArgs, QueryStatisticPairs};
use super::backward_block::{StationaryTiles, load_stationary};
use super::copy::{TileOrigin, copy_tile};
use crate::block_mask::{WorkTileHalf, prefetched_tile, work_tile_of};
use crate::softmax_by_columns::Pair;
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::generic_to_shared;
use flow_cube::Issue;
use flow_cube::barrier::{self, arrive_and_expect, bulk_copy};

/// The stages that tiles of a streamed operand pass through, with the statistic of their rows.
#[derive(CubeType)]
pub(super) struct StreamedOperand<E: Numeric> {
    pub map: TensorMap<E, Tiled>,
    pub tiles: Shared<[E]>,
    pub statistics: Shared<[Pair]>,
}

/// The streamed operands of a block: queries with `lse`, and the outputs' gradients with `delta`.
#[derive(CubeType)]
pub(super) struct StreamedQueries<E: Numeric> {
    pub q: StreamedOperand<E>,
    pub d_o: StreamedOperand<E>,
    /// The first barrier of the stages: a phase completes when all of a tile is there.
    pub full: u32,
    /// Sample of the batch.
    pub batch: u32,
    /// Heads of queries.
    pub heads: u32,
    pub lse_rows: u32,
}

/// Starts the copy of a statistic of a streamed tile's rows to stage `stage` of `to`; bytes count towards `full`.
#[cube]
fn copy_statistic(
    full: u32,
    statistic: &[Pair],
    to: &[Pair],
    stage: usize,
    statistic_row: u32,
    #[comptime] tiles: BackwardTiles,
    #[comptime] caller: Issue,
) {
    let rows = comptime!(tiles.streamed_rows);
    let from = (statistic_row / 2) as usize;
    let at = stage * comptime!(rows / 2);
    let length = comptime!(rows / 2);
    // SAFETY: a stage has room for the statistics of a streamed tile.
    let at = generic_to_shared::<Pair>(unsafe { to[at..at + length].as_ptr_unchecked() });
    bulk_copy::<Pair>(
        at,
        // SAFETY: rows of statistics are padded to a multiple of 128 (`lse_rows`), of which a streamed tile is
        // a part.
        unsafe { statistic[from..from + length].as_ptr_unchecked() },
        comptime!((rows * 4) as u32),
        full,
        caller,
    );
}

/// Starts the copies of one operand's rows of a streamed tile, and of the statistic of these rows; bytes count towards `full`.
#[cube]
fn copy_streamed<E: Numeric>(
    full: u32,
    operand: &StreamedOperand<E>,
    statistic: &[Pair],
    stage: usize,
    origin: &TileOrigin,
    statistic_row: u32,
    #[comptime] tiles: BackwardTiles,
    #[comptime] caller: Issue,
) {
    let (rows, panels) = comptime!((tiles.streamed_rows, tiles.panels()));
    let at = stage * comptime!(rows * 64 * panels);
    copy_tile::<E>(
        full,
        &operand.map,
        &operand.tiles,
        at,
        origin,
        rows,
        panels,
        caller,
    );
    copy_statistic(
        full,
        statistic,
        &operand.statistics,
        stage,
        statistic_row,
        tiles,
        caller,
    );
}

/// Starts the copies of the streamed tile from row `row` of head `head` on to stage `stage`, whose barrier is `full`.
#[cube]
pub(super) fn next_tile<E: Numeric>(
    full: u32,
    streamed: &StreamedQueries<E>,
    statistics: &QueryStatisticPairs,
    stage: usize,
    head: u32,
    row: u32,
    #[comptime] tiles: BackwardTiles,
    #[comptime] caller: Issue,
) {
    arrive_and_expect(
        full,
        comptime!((2 * tiles.streamed_rows * 128 * tiles.panels() + 2 * tiles.streamed_rows * 4) as u32),
        caller,
    );
    let from = (streamed.batch * streamed.heads + head) * streamed.lse_rows + row;
    let origin = TileOrigin {
        batch: streamed.batch,
        head,
        row,
    };
    copy_streamed::<E>(
        full,
        &streamed.q,
        &statistics.lse,
        stage,
        &origin,
        from,
        tiles,
        caller,
    );
    copy_streamed::<E>(
        full,
        &streamed.d_o,
        &statistics.delta,
        stage,
        &origin,
        from,
        tiles,
        caller,
    );
}

/// What a block has to do.
#[derive(CubeType)]
pub(super) struct KeyWork {
    pub batch: u32,
    pub kv_head: u32,
    pub first_key: u32,
    /// Which split of the queries it takes.
    pub query_split: u32,
    /// First entry of its list, and how many tiles that has: for one head of queries.
    pub begin: u32,
    pub tiles_per_head: u32,
    /// The first tile of its split, and how many it has: of the list, once for each head of the group.
    pub first_tile: u32,
    pub tile_count: u32,
    /// The first tiles of the list.
    pub prefetched: WorkTileHalf,
}

/// This block's work.
#[cube]
pub(super) fn key_work(
    mask: &BlockMaskArgs<Const<1>>,
    problem: &BackwardKeysProblem,
    #[comptime] tiles: BackwardTiles,
) -> KeyWork {
    let split_q = comptime!(tiles.split_q as u32);
    let streamed_rows = comptime!(tiles.streamed_rows as u32);
    let all = (problem.queries + comptime!(tiles.streamed_rows as u32 - 1)) / streamed_rows;
    let work_tile = work_tile_of(&mask.work_tiles, all, comptime!(tiles.mask_shape()));
    let tiles_per_head = work_tile.tiles;
    let mut block = work_tile.block;
    let mut query_split = 0u32;
    if comptime!(tiles.split_q > 1) {
        // Blocks that start together share queries.
        query_split = block / (CUBE_COUNT_X / split_q);
        block %= CUBE_COUNT_X / split_q;
    }
    let first_key = block * comptime!(tiles.stationary_rows() as u32);
    let mut tile_count = tiles_per_head * problem.group;
    let mut first_tile = 0u32;
    if comptime!(tiles.split_q > 1) {
        let each = (tile_count + comptime!(tiles.split_q as u32 - 1)) / split_q;
        first_tile = query_split * each;
        let left = tile_count - first_tile;
        tile_count = select(left < each, left, each);
    }
    KeyWork {
        batch: work_tile.sample,
        kv_head: work_tile.head,
        first_key,
        query_split,
        begin: work_tile.begin,
        tiles_per_head,
        first_tile,
        tile_count,
        prefetched: work_tile.prefetched,
    }
}

/// Starts the copies of keys and values, and of the first streamed tiles. For a whole warp.
#[cube]
pub(super) fn start_copies<E: Numeric>(
    stationary: &StationaryTiles<E>,
    streamed: &StreamedQueries<E>,
    statistics: &QueryStatisticPairs,
    work: &KeyWork,
    group: u32,
    #[comptime] tiles: BackwardTiles,
) {
    let origin = TileOrigin {
        batch: work.batch,
        head: work.kv_head,
        row: work.first_key,
    };
    load_stationary::<E>(stationary, &origin, tiles);
    #[unroll]
    for s in 0..comptime!(tiles.stages) {
        let tile = work.first_tile + comptime!(s as u32);
        // The list begins again with each head.
        let passes = if comptime!(tiles.masked) {
            prefetched_tile(work.prefetched, s, comptime!(tiles.mask_shape()))
        } else {
            tile % work.tiles_per_head
        };
        let row = passes * comptime!(tiles.streamed_rows as u32);
        if comptime!(s as u32) < work.tile_count {
            next_tile::<E>(
                barrier::at(streamed.full, s),
                streamed,
                statistics,
                s,
                work.kv_head * group + tile / work.tiles_per_head,
                row,
                tiles,
                Issue::ElectedLane,
            );
        }
    }
}
