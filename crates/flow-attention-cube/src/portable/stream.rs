//! Keys and values that pass a block of queries: where they are, and their loads.

use super::arguments::{PortableInputs, PortableProblem};
use super::block::{HeadRows, load_channels, load_rows};
use super::tiles::{ChannelTile, ROWS, Tiles};
use cubecl::prelude::*;

/// A block of queries, and the thread in it.
#[derive(CubeType)]
pub(super) struct QueryBlock {
    /// Column of the thread.
    pub x: usize,
    /// Row of the thread.
    pub y: usize,
    /// Head of the queries.
    pub head: usize,
    /// Sample of the batch.
    pub batch: usize,
    /// The first query.
    pub first: usize,
}

/// This block, and this thread.
#[cube]
pub(super) fn query_block() -> QueryBlock {
    let x = UNIT_POS as usize % 16;
    let y = UNIT_POS as usize / 16;
    let head = CUBE_POS_Y as usize;
    let batch = CUBE_POS_Z as usize;
    let first = CUBE_POS_X as usize * ROWS;
    QueryBlock {
        x,
        y,
        head,
        batch,
        first,
    }
}

/// Keys, or values, of a head in both segments: where they begin, and how many there are.
#[derive(CubeType)]
pub(super) struct StreamedHead {
    base: usize,
    base2: usize,
    keys: usize,
    keys2: usize,
    tiles_of_first: usize,
}

/// Keys and values of a head.
#[derive(CubeType)]
pub(super) struct KvHead {
    /// Keys.
    pub k: StreamedHead,
    /// Values.
    pub v: StreamedHead,
}

/// The keys and values that go with the block's head.
#[cube]
pub(super) fn kv_head<F: Float>(
    inputs: &PortableInputs<F>,
    problem: &PortableProblem,
    block: &QueryBlock,
    #[comptime] tiles: Tiles,
) -> KvHead {
    let k_base = block.batch * inputs.k.stride(0) + block.head / problem.group * inputs.k.stride(1);
    let v_base = block.batch * inputs.v.stride(0) + block.head / problem.group * inputs.v.stride(1);
    let k2_base = block.batch * inputs.k2.stride(0) + block.head / problem.group * inputs.k2.stride(1);
    let v2_base = block.batch * inputs.v2.stride(0) + block.head / problem.group * inputs.v2.stride(1);
    let tiles_of_first = (problem.keys + comptime!(tiles.columns - 1)) / comptime!(tiles.columns);
    KvHead {
        k: StreamedHead {
            base: k_base,
            base2: k2_base,
            keys: problem.keys,
            keys2: problem.keys2,
            tiles_of_first,
        },
        v: StreamedHead {
            base: v_base,
            base2: v2_base,
            keys: problem.keys,
            keys2: problem.keys2,
            tiles_of_first,
        },
    }
}

/// Loads a chunk of channels of tile `tile`, from its segment, to the columns of the stage.
#[cube]
pub(super) fn load_streamed_channels<F: Float>(
    first: &Tensor<F>,
    second: &Tensor<F>,
    of: &StreamedHead,
    tile: usize,
    channel: usize,
    stage: &mut Shared<[f32]>,
    chunk: usize,
    #[comptime] tiles: Tiles,
) {
    let columns = comptime!(tiles.columns);
    if tile < of.tiles_of_first {
        let rows = HeadRows {
            base: of.base,
            first: tile * columns,
            end: of.keys,
        };
        load_channels(
            first,
            &rows,
            channel,
            stage,
            chunk,
            comptime!(ChannelTile::columns(tiles)),
        );
    } else {
        let rows = HeadRows {
            base: of.base2,
            first: (tile - of.tiles_of_first) * columns,
            end: of.keys2,
        };
        load_channels(
            second,
            &rows,
            channel,
            stage,
            chunk,
            comptime!(ChannelTile::columns(tiles)),
        );
    }
}

/// Loads the rows of tile `tile` from `column` on, from its segment, with all channels.
#[cube]
pub(super) fn load_streamed_rows<F: Float>(
    first: &Tensor<F>,
    second: &Tensor<F>,
    of: &StreamedHead,
    tile: usize,
    column: usize,
    stage: &mut Shared<[f32]>,
    chunk: usize,
    #[comptime] tiles: Tiles,
) {
    let columns = comptime!(tiles.columns);
    if tile < of.tiles_of_first {
        load_rows(
            first,
            of.base,
            tile * columns + column,
            of.keys,
            stage,
            chunk,
            tiles,
        );
    } else {
        let from = (tile - of.tiles_of_first) * columns + column;
        load_rows(second, of.base2, from, of.keys2, stage, chunk, tiles);
    }
}
