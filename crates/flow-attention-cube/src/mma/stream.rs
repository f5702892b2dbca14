//! Keys and values that pass a block of queries: the tiles that it visits, their copies, stage by stage, and what is seen of each.

use super::arguments::{AttentionInputs, AttentionSizes, BlockMaskBuffers};
use super::copy::{Rows, copy_tile, rows_of_head};
use super::tiles::Streaming;
use crate::block_mask::{
    Bits, BlockMaskShape, apply_mask, mask_bits, partial_mask_at, tile_at, tile_rows_in_segment, work_tile_of,
};
use crate::delta::Eight;
use crate::softmax::mask_out_of_bounds;
use cubecl::prelude::*;
use flow_cube::cp_async::{commit, wait};

/// Where a thread is in its block.
#[derive(CubeType)]
pub(super) struct ThreadPosition {
    /// Row group, 128 threads.
    pub row_group: u32,
    /// Thread of the row group.
    pub thread: u32,
    /// Lane of the warp.
    pub lane: u32,
    /// First of the warp's 16 rows.
    pub warp_row: u32,
}

/// The position of this thread.
#[cube]
pub(super) fn thread_position() -> ThreadPosition {
    let row_group = UNIT_POS / 128;
    let thread = UNIT_POS % 128;
    let lane = thread % 32;
    let warp_row = (UNIT_POS / 32) * 16;
    ThreadPosition {
        row_group,
        thread,
        lane,
        warp_row,
    }
}

/// The stages of shared memory, which tiles take one after the other.
#[derive(CubeType)]
pub(super) struct StageRing {
    /// The stage of this tile.
    pub stage: u32,
    /// The stage of the tile before, which is free.
    pub free: u32,
}

#[cube]
impl StageRing {
    /// At the first tile.
    pub fn new(#[comptime] stages: usize) -> Self {
        StageRing {
            stage: 0u32.runtime(),
            free: comptime!(stages as u32 - 1).runtime(),
        }
    }

    /// On to the next tile.
    pub fn advance(&mut self, #[comptime] stages: usize) {
        self.free = self.stage;
        self.stage += 1u32;
        if self.stage == comptime!(stages as u32) {
            self.stage = 0u32;
        }
    }
}

/// A block's queries, and its list of tiles of keys.
#[derive(CubeType)]
pub(super) struct QueryBlock {
    /// Sample of the batch.
    pub batch: u32,
    /// Head of the queries.
    pub head: u32,
    /// Head of the keys.
    pub kv_head: u32,
    /// The first query.
    pub first_query: u32,
    /// First entry of the list.
    pub begin: u32,
    /// Tiles of the list.
    pub tile_count: u32,
}

/// This block's queries, `rows` of them, and its list.
#[cube]
pub(super) fn query_block(
    mask: &BlockMaskBuffers,
    sizes: &AttentionSizes,
    #[comptime] rows: usize,
    #[comptime] streaming: Streaming,
) -> QueryBlock {
    let per_tile = comptime!(streaming.rows as u32);
    let mut all = sizes.first_keys.div_ceil(per_tile);
    if comptime!(streaming.two_segments) {
        all += sizes.second_keys.div_ceil(per_tile);
    }
    let work_tile = work_tile_of(mask.work_tiles, all, comptime!(streaming.shape));
    let kv_head = work_tile.head / sizes.group;
    let first_query = work_tile.block * comptime!(rows as u32);
    QueryBlock {
        batch: work_tile.sample,
        head: work_tile.head,
        kv_head,
        first_query,
        begin: work_tile.begin,
        tile_count: work_tile.tiles,
    }
}

/// Keys and values of a head as a thread copies them, and the byte addresses of their stages.
#[derive(CubeType)]
pub(super) struct KvStream {
    k: Rows,
    v: Rows,
    k_2: Rows,
    v_2: Rows,
    k_base: u32,
    v_base: u32,
}

/// The keys and values of a block's head, to stages from `k_base` and from `v_base` on.
#[cube]
pub(super) fn kv_stream(inputs: &AttentionInputs, block: &QueryBlock, k_base: u32, v_base: u32) -> KvStream {
    let k = rows_of_head(inputs.k, block.batch, block.kv_head);
    let v = rows_of_head(inputs.v, block.batch, block.kv_head);
    let k_2 = rows_of_head(inputs.k_2, block.batch, block.kv_head);
    let v_2 = rows_of_head(inputs.v_2, block.batch, block.kv_head);
    KvStream {
        k,
        v,
        k_2,
        v_2,
        k_base,
        v_base,
    }
}

/// Starts copying tile `tile` of keys, or of values, from its segment.
#[cube]
fn copy_from_segment(
    first: &Tensor<Eight>,
    second: &Tensor<Eight>,
    of_first: Rows,
    of_second: Rows,
    tile: u32,
    sizes: &AttentionSizes,
    to: u32,
    #[comptime] streaming: Streaming,
) {
    let rows = comptime!(streaming.rows);
    let head_dim = comptime!(streaming.head_dim);
    let threads = comptime!(streaming.threads);
    let two_segments = comptime!(streaming.two_segments);
    let (exist, row) = tile_rows_in_segment(tile, sizes.first_keys, sizes.second_keys, rows, two_segments);
    if comptime!(two_segments) {
        if tile * comptime!(rows as u32) < sizes.first_keys {
            copy_tile(first, of_first, row, exist, to, rows, head_dim, threads);
        } else {
            copy_tile(second, of_second, row, exist, to, rows, head_dim, threads);
        }
    } else {
        copy_tile(first, of_first, row, exist, to, rows, head_dim, threads);
    }
}

/// Starts copying tile `tile` of keys and of values to the stage that is `offset` bytes behind the first.
#[cube]
fn copy_kv_tile(
    inputs: &AttentionInputs,
    sizes: &AttentionSizes,
    stream: &KvStream,
    tile: u32,
    offset: u32,
    #[comptime] streaming: Streaming,
) {
    copy_from_segment(
        inputs.k,
        inputs.k_2,
        stream.k,
        stream.k_2,
        tile,
        sizes,
        stream.k_base + offset,
        streaming,
    );
    copy_from_segment(
        inputs.v,
        inputs.v_2,
        stream.v,
        stream.v_2,
        tile,
        sizes,
        stream.v_base + offset,
        streaming,
    );
}

/// Starts the copies of the first tiles, one for each stage but the last.
#[cube]
pub(super) fn start_stream(
    inputs: &AttentionInputs,
    sizes: &AttentionSizes,
    mask: &BlockMaskBuffers,
    block: &QueryBlock,
    stream: &KvStream,
    #[comptime] streaming: Streaming,
) {
    let tile_bytes = comptime!(streaming.tile_bytes());
    #[unroll]
    for s in 0..comptime!(streaming.stages - 1) {
        if comptime!(s as u32) < block.tile_count {
            let tile = tile_at(
                mask.entries,
                block.begin + comptime!(s as u32),
                comptime!(streaming.shape),
            );
            let offset = comptime!(s as u32) * tile_bytes;
            copy_kv_tile(inputs, sizes, stream, tile, offset, streaming);
        }
        commit();
    }
}

/// Waits for the list's tile `at`, for all threads; then starts the copy of a later tile to the stage `free`.
#[cube]
pub(super) fn advance_stream(
    inputs: &AttentionInputs,
    sizes: &AttentionSizes,
    mask: &BlockMaskBuffers,
    block: &QueryBlock,
    stream: &KvStream,
    at: u32,
    free: u32,
    #[comptime] streaming: Streaming,
) {
    // This thread's part of the tile is here, then everyone's; and everyone is done with the tile before.
    wait(comptime!(streaming.stages - 2));
    sync_cube();
    let next = at + comptime!(streaming.stages as u32 - 1);
    if next < block.tile_count {
        let tile = tile_at(mask.entries, block.begin + next, comptime!(streaming.shape));
        let offset = free * comptime!(streaming.tile_bytes());
        copy_kv_tile(inputs, sizes, stream, tile, offset, streaming);
    }
    commit();
}

/// A tile of keys, and what this thread's row group sees of it.
#[derive(CubeType)]
pub(super) struct MaskedTile {
    /// The tile.
    pub tile: u32,
    /// Its partial mask.
    pub partial_mask: u32,
    /// The bits of that for this thread.
    pub bits: Bits,
}

/// The tile at position `at` of the lists.
#[cube]
pub(super) fn masked_tile(
    mask: &BlockMaskBuffers,
    at: u32,
    position: &ThreadPosition,
    #[comptime] shape: BlockMaskShape,
) -> MaskedTile {
    let tile = tile_at(mask.entries, at, shape);
    let partial_mask = partial_mask_at(mask.entries, at, position.row_group, shape);
    let bits = mask_bits::<Const<1>>(mask.partial_masks, partial_mask, position.thread, shape);
    MaskedTile {
        tile,
        partial_mask,
        bits,
    }
}

/// Scores that are masked, or of keys that do not exist, become minus infinity.
#[cube]
pub(super) fn mask_scores<N: Size>(
    scores: Vector<f32, N>,
    tile: &MaskedTile,
    lane: u32,
    sizes: &AttentionSizes,
    #[comptime] streaming: Streaming,
) -> Vector<f32, N> {
    let rows = comptime!(streaming.rows);
    let mut masked = apply_mask::<N>(scores, tile.partial_mask, tile.bits, comptime!(streaming.shape));
    let (exist, _) = tile_rows_in_segment(
        tile.tile,
        sizes.first_keys,
        sizes.second_keys,
        rows,
        comptime!(streaming.two_segments),
    );
    if comptime!(!streaming.shape.masked) && exist < comptime!(rows as u32) {
        masked = mask_out_of_bounds::<N>(masked, (lane % 4) * 2, exist, rows);
    }
    masked
}
