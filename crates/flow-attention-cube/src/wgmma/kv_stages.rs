//! The stages of shared memory that tiles of keys, and of values, pass through in the forward kernels.

use super::ForwardTiles;
use super::copy::{TileOrigin, fill};
use crate::block_mask::tile_rows_in_segment;
use cubecl::prelude::*;
use flow_cube::barrier;

/// Stages of keys, or of values.
#[derive(CubeType)]
pub(super) struct KvStages<E: Numeric> {
    /// Where tiles of the first segment come from.
    pub first: TensorMap<E, Tiled>,
    /// Where those of the second come from.
    pub second: TensorMap<E, Tiled>,
    /// The stages, one behind the other.
    pub tiles: Shared<[E]>,
    /// The first of their barriers: a phase completes when a tile is there.
    pub full: u32,
}

/// A head of keys and values, and its rows in both segments.
#[derive(CubeType)]
pub(super) struct KvHead {
    /// Sample of the batch.
    pub batch: u32,
    /// Head.
    pub head: u32,
    /// Rows in the first segment.
    pub first_keys: u32,
    /// Rows in the second segment.
    pub second_keys: u32,
}

/// Starts the copy of tile `tile` of keys, or of values, to stage `stage`. For a whole warp.
#[cube]
pub(super) fn fill_stage<E: Numeric>(
    stages: &KvStages<E>,
    head: &KvHead,
    stage: usize,
    tile: u32,
    #[comptime] tiles: ForwardTiles,
) {
    let full = barrier::at(stages.full, stage);
    let panels = comptime!(tiles.panels());
    let rows = comptime!(tiles.keys);
    let at = stage * comptime!(tiles.keys * 64 * tiles.panels());
    let (_, row) = tile_rows_in_segment(
        tile,
        head.first_keys,
        0u32.runtime(),
        rows,
        comptime!(tiles.two_segments),
    );
    let origin = TileOrigin {
        batch: head.batch,
        head: head.head,
        row,
    };
    if comptime!(tiles.two_segments) {
        if tile * comptime!(tiles.keys as u32) < head.first_keys {
            fill::<E>(full, &stages.first, &stages.tiles, at, &origin, rows, panels);
        } else {
            fill::<E>(full, &stages.second, &stages.tiles, at, &origin, rows, panels);
        }
    } else {
        fill::<E>(full, &stages.first, &stages.tiles, at, &origin, rows, panels);
    }
}

/// Makes the barriers of the queries and of `stages` stages. For one thread; a fence ([`tma::fence`](flow_cube::tma::fence)) follows.
#[cube]
pub(super) fn init_barriers(q_full: u32, k_full: u32, v_full: u32, #[comptime] stages: usize) {
    barrier::init(q_full);
    #[unroll]
    for s in 0..stages {
        barrier::init(barrier::at(k_full, s));
        barrier::init(barrier::at(v_full, s));
    }
}

/// Makes them anew ([`renew`](flow_cube::barrier::renew)). For one thread, as [`init_barriers`].
#[cube]
pub(super) fn renew_barriers(q_full: u32, k_full: u32, v_full: u32, #[comptime] stages: usize) {
    barrier::renew(q_full);
    #[unroll]
    for s in 0..stages {
        barrier::renew(barrier::at(k_full, s));
        barrier::renew(barrier::at(v_full, s));
    }
}
