//! The epilogue of the forward kernels: normalises the output, stages and stores it, and writes the log-sum-exp of each row.

use super::ForwardTiles;
use super::online_softmax::RowStatistics;
use crate::softmax::{log_sum, stage_rows};
use cubecl::prelude::*;
use flow_cube::barrier::named_sync;
use flow_cube::register::reciprocal_approximate;
use flow_cube::tma;

/// Writes a warpgroup's output to its rows of the tile at the byte address `base`, for [`store_rows`](super::copy::store_rows). For
/// all of its threads, which meet.
#[cube]
pub(super) fn stage_output<N: Size>(
    base: u32,
    warpgroup: u32,
    thread: u32,
    sums: Vector<f32, N>,
    of: &RowStatistics,
    #[comptime] tiles: ForwardTiles,
) {
    stage_scaled::<N>(base, warpgroup, thread, sums, inverse(of), tiles);
    show_output(warpgroup);
}

/// What sums over values are multiplied by, for both rows of a thread. To a unit in the last place of f32, since what they give has 16 bits; a division
/// takes 250 cycles. A row that sees a key has a sum of 1 at least.
#[cube]
pub(super) fn inverse(of: &RowStatistics) -> (f32, f32) {
    let scale_0 = select(of.sum_0 > 0.0f32, reciprocal_approximate(of.sum_0), 0.0f32);
    let scale_1 = select(of.sum_1 > 0.0f32, reciprocal_approximate(of.sum_1), 0.0f32);
    (scale_0, scale_1)
}

/// The first half of [`stage_output`]: what this thread has.
#[cube]
pub(super) fn stage_scaled<N: Size>(
    base: u32,
    warpgroup: u32,
    thread: u32,
    sums: Vector<f32, N>,
    by: (f32, f32),
    #[comptime] tiles: ForwardTiles,
) {
    let lane = thread % 32;
    let row = (thread / 32) * 16 + lane / 4;
    stage_rows::<N>(
        base + (warpgroup * 64 + row) * 128,
        row,
        lane,
        sums,
        by.0,
        by.1,
        comptime!(tiles.staging()),
    );
}

/// The second half: the accelerator sees what all have staged.
#[cube]
pub(super) fn show_output(warpgroup: u32) {
    tma::fence();
    named_sync(warpgroup + 1, 128u32);
}

/// Writes the log-sum-exp of a thread's two rows to those of the head that begins at `at`. After the fence of [`stage_output`], which would
/// wait for it.
#[cube]
pub(super) fn write_log_sums(
    lse: &mut [f32],
    at: u32,
    lse_rows: u32,
    first_query: u32,
    queries: u32,
    warpgroup: u32,
    thread: u32,
    of: &RowStatistics,
) {
    let lane = thread % 32;
    if lane.is_multiple_of(4) {
        let query = first_query + warpgroup * 64 + (thread / 32) * 16 + lane / 4;
        if query < lse_rows {
            lse[(at + query) as usize] = log_sum(of.row_max_0, of.sum_0, query < queries);
            lse[(at + query + 8) as usize] = log_sum(of.row_max_1, of.sum_1, query + 8 < queries);
        }
    }
}
