//! Copies between tensors `[B, H, S, D]` and tiles of shared memory, by the tensor memory accelerator.
//!
//! A tile is a row of panels, each of some rows of 64 channels, with the 128-byte swizzle. Rows and channels that the
//! tensor does not have arrive as zeros, and are not written.

use crate::softmax::take_rows;
use cubecl::prelude::*;
use flow_cube::Issue;
use flow_cube::barrier::arrive_and_expect;
use flow_cube::tma;
use flow_cube::wgmma::{self, Steps};

/// Where a tile begins in a tensor.
#[derive(CubeType)]
pub(super) struct TileOrigin {
    /// Sample of the batch.
    pub batch: u32,
    /// Head.
    pub head: u32,
    /// First row.
    pub row: u32,
}

/// Starts the copy of `panels` panels from `origin` on to `to[start..]`, which the accelerator writes; its bytes count towards
/// `barrier`.
#[cube]
pub(super) fn copy_tile<E: Numeric>(
    barrier: u32,
    map: &TensorMap<E, Tiled>,
    to: &[E],
    start: usize,
    origin: &TileOrigin,
    #[comptime] rows: usize,
    #[comptime] panels: usize,
    #[comptime] caller: Issue,
) {
    #[unroll]
    for p in 0..panels {
        let at = start + comptime!(p * rows * 64);
        tma::load_4d::<E>(
            map,
            &to[at..at + comptime!(rows * 64)],
            barrier,
            origin.batch as i32,
            origin.head as i32,
            origin.row as i32,
            comptime!((p * 64) as i32).runtime(),
            caller,
        );
    }
}

/// As [`copy_tile`], with the arrival that completes the barrier's phase when the bytes are there. For a whole warp.
#[cube]
pub(super) fn fill<E: Numeric>(
    barrier: u32,
    map: &TensorMap<E, Tiled>,
    to: &[E],
    start: usize,
    origin: &TileOrigin,
    #[comptime] rows: usize,
    #[comptime] panels: usize,
) {
    let caller = comptime!(Issue::ElectedLane);
    arrive_and_expect(barrier, comptime!((rows * 128 * panels) as u32), caller);
    copy_tile::<E>(barrier, map, to, start, origin, rows, panels, caller);
}

/// Prefetches rows of a tensor to the L2 cache, as many as the map's tiles have. For a whole warp.
#[cube]
pub(super) fn prefetch_tile<E: Numeric>(
    map: &TensorMap<E, Tiled>,
    origin: &TileOrigin,
    #[comptime] panels: usize,
) {
    #[unroll]
    for p in 0..panels {
        tma::prefetch_4d::<E>(
            map,
            origin.batch as i32,
            origin.head as i32,
            origin.row as i32,
            comptime!((p * 64) as i32).runtime(),
        );
    }
}

/// The stage, of `stages`, at least two, that the tile before last is in when this one is in `stage`.
#[cube]
pub(super) fn stage_before_last(stage: u32, #[comptime] stages: usize) -> u32 {
    select(stage < 2, stage + comptime!(stages as u32 - 2), stage - 2)
}

/// Starts writing a warpgroup's 64 rows from `tile`, whose panels have `rows` rows, to `origin`. For one thread or a warp, after the stores were made visible to the
/// accelerator; before it ends it waits until they were read ([`tma::wait_read`]).
#[cube]
pub(super) fn store_rows<E: Numeric>(
    tile: &[E],
    map: &mut TensorMap<E, Tiled>,
    warpgroup: u32,
    origin: &TileOrigin,
    #[comptime] rows: usize,
    #[comptime] panels: usize,
    #[comptime] caller: Issue,
) {
    #[unroll]
    for p in 0..panels {
        let start = (warpgroup * 4096 + comptime!((p * rows * 64) as u32)) as usize;
        tma::store_4d::<E>(
            &tile[start..start + 4096],
            map,
            origin.batch as i32,
            origin.head as i32,
            origin.row as i32,
            comptime!((p * 64) as i32).runtime(),
            caller,
        );
    }
    tma::commit();
}

/// The first `fragment` times 16 channels of a warpgroup's rows in a stationary tile, for [`issue`]: a product that reads them from
/// registers leaves shared memory to the rows that pass. `base` is the tile's byte address, `rows` are its rows.
#[cube]
pub(super) fn load_fragment<A: Size>(
    base: u32,
    warpgroup: u32,
    thread: u32,
    #[comptime] fragment: usize,
    #[comptime] rows: usize,
) -> Vector<u32, A> {
    if comptime!(fragment > 0) {
        let row = (thread / 32) * 16 + (thread % 32) / 4;
        take_rows::<A>(
            base + (warpgroup * 64 + row) * 128,
            row,
            thread % 32,
            fragment,
            rows,
        )
    } else {
        Vector::new(0u32)
    }
}

/// Issues the product of stationary rows, of which `fragment` steps are in `registers`, with streamed rows, from zero.
#[cube]
pub(super) fn issue<N: Size, A: Size>(
    registers: Vector<u32, A>,
    stationary_rows: u64,
    streamed_rows: u64,
    #[comptime] steps: Steps,
    #[comptime] fragment: usize,
) -> Vector<f32, N> {
    if comptime!(fragment > 0) {
        wgmma::issue_kept_from_zero::<N, A>(registers, stationary_rows, streamed_rows, steps, fragment)
    } else {
        wgmma::issue_from_zero::<N>(stationary_rows, streamed_rows, steps)
    }
}
