//! What blocks of the backward kernels share: their stationary rows, their barriers, and the count of a stage's users.

use super::BackwardTiles;
use super::copy::{TileOrigin, copy_tile};
use cubecl::prelude::*;
use flow_cube::Issue;
use flow_cube::barrier::{
    self, arrive_and_expect, count_warp, count_warp_by_lanes, counter_at, reset_counters,
};
use flow_cube::tma;

/// The stationary rows of both operands: queries and the outputs' gradients, or keys and values.
#[derive(CubeType)]
pub(super) struct StationaryTiles<E: Numeric> {
    /// Where they come from.
    pub first: TensorMap<E, Tiled>,
    pub second: TensorMap<E, Tiled>,
    /// Their places in shared memory.
    pub first_tile: Shared<[E]>,
    pub second_tile: Shared<[E]>,
    /// The barrier whose phase completes when both are there.
    pub full: u32,
}

/// Makes the barriers of the stationary rows and of `stages` stages, and the counters of these. For all threads, which meet.
#[cube]
pub(super) fn start_barriers(stationary_full: u32, full: u32, used: &mut [u32], #[comptime] stages: usize) {
    if UNIT_POS == 0 {
        barrier::init(stationary_full);
        #[unroll]
        for s in 0..stages {
            barrier::init(barrier::at(full, s));
        }
        tma::fence();
    }
    reset_counters(used, stages);
    sync_cube();
}

/// Whether this warp starts copy `share` of the prologue, if there are `any`. If the copies are `divided`, each of four warps starts its
/// share; else the calling warp starts all.
#[cube]
pub(super) fn starts_copy(any: bool, #[comptime] share: usize, #[comptime] divided: bool) -> bool {
    if divided {
        plane_any(any && UNIT_POS / 32 == comptime!((share % 4) as u32))
    } else {
        any
    }
}

/// Starts the copies of the stationary rows, from `origin` on. For a whole warp.
#[cube]
pub(super) fn load_stationary<E: Numeric>(
    stationary: &StationaryTiles<E>,
    origin: &TileOrigin,
    #[comptime] tiles: BackwardTiles,
) {
    let (rows, panels) = comptime!((tiles.stationary_rows(), tiles.panels()));
    let caller = comptime!(Issue::ElectedLane);
    let start = 0usize;
    let full = stationary.full;
    arrive_and_expect(full, comptime!((2 * rows * 128 * panels) as u32), caller);
    copy_tile::<E>(
        full,
        &stationary.first,
        &stationary.first_tile,
        start,
        origin,
        rows,
        panels,
        caller,
    );
    copy_tile::<E>(
        full,
        &stationary.second,
        &stationary.second_tile,
        start,
        origin,
        rows,
        panels,
        caller,
    );
}

/// Counts a warp that is done with stage `stage`; what the count was. Without a branch, if a warp has something to calculate beside it.
#[cube]
pub(super) fn count_stage(lane: u32, used_base: u32, stage: u32, #[comptime] tiles: BackwardTiles) -> u32 {
    let last_warp = comptime!(4 * tiles.warpgroups as u32 - 1);
    if comptime!(tiles.refill_late) {
        count_warp_by_lanes(lane, counter_at(used_base, stage), last_warp)
    } else {
        count_warp(lane, counter_at(used_base, stage), last_warp)
    }
}
