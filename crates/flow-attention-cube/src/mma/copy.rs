//! Copies between tensors `[B, H, S, D]`, in units of eight values, and tiles of shared memory ([`flow_cube::mma`]).
//!
//! Eight neighbouring threads copy the eight chunks of a row of a panel. A row has as many chunks as products read:
//! an even number. Those that the tensor does not have become zeros, and so do rows.

use super::tiles::BackwardTiles;
use crate::delta::Eight;
use crate::softmax::{StagingTile, stage_rows};
use cubecl::prelude::*;
use flow_cube::cp_async::copy_16;
use flow_cube::register::load_shared_16;

/// Chunks of panel `panel` that a head has.
fn chunks(head_dim: usize, panel: usize) -> u32 {
    (head_dim / 8 - 8 * panel).min(8) as u32
}

/// The rows of one head, as a thread copies them: its chunk of its first row, and from a row to the next, in chunks.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Rows {
    from: usize,
    stride: usize,
    tiles_per_head: usize,
}

/// The same rows of the head that is `heads` heads further on.
#[cube]
pub(super) fn head_offset(of: Rows, heads: u32) -> Rows {
    Rows {
        from: of.from + heads as usize * of.tiles_per_head,
        stride: of.stride,
        tiles_per_head: of.tiles_per_head,
    }
}

/// The rows of head `head` for this thread. Once and early: strides are in global memory.
#[cube]
pub(super) fn rows_of_head(source: &Tensor<Eight>, batch: u32, head: u32) -> Rows {
    let stride = source.stride(2);
    let tiles_per_head = source.stride(1);
    let start = batch as usize * source.stride(0) + head as usize * tiles_per_head;
    Rows {
        from: start + (UNIT_POS / 8) as usize * stride + (UNIT_POS % 8) as usize,
        stride,
        tiles_per_head,
    }
}

/// Starts copying `rows` rows from row `row` on to the tile at byte address `to`; `exist` of them exist. For all `threads`
/// threads of the block.
#[cube]
pub(super) fn copy_tile(
    source: &Tensor<Eight>,
    of: Rows,
    row: u32,
    exist: u32,
    to: u32,
    #[comptime] rows: usize,
    #[comptime] head_dim: usize,
    #[comptime] threads: usize,
) {
    let chunk = UNIT_POS % 8;
    let first = UNIT_POS / 8;
    let from = of.from + row as usize * of.stride;
    let lane_to = to + first * 128 + (chunk ^ (first % 8)) * 16;
    #[unroll]
    for panel in 0..comptime!(head_dim.div_ceil(64)) {
        let real = comptime!(chunks(head_dim, panel));
        if chunk < comptime!(real.next_multiple_of(2)) {
            #[unroll]
            for i in 0..comptime!(rows * 8 / threads) {
                let below = comptime!(i * threads / 8);
                let inside = first + comptime!(below as u32) < exist && chunk < real;
                let at = select(inside, from + of.stride * below + comptime!(8 * panel), 0usize);
                copy_16::<Eight>(
                    lane_to + comptime!((panel * rows * 128 + below * 128) as u32),
                    // SAFETY: rows and channels that do not exist are read at 0, no byte of them; the others
                    // are within the tensor.
                    unsafe { source.as_slice()[at..at + 1].as_ptr_unchecked() },
                    select(inside, 16u32, 0u32),
                );
            }
        }
    }
}

/// Rows of a head in a tensor: those from `row` on, of which those before `exist` exist.
#[derive(CubeType)]
pub(super) struct HeadRows {
    pub batch: u32,
    pub head: u32,
    pub row: u32,
    pub exist: u32,
}

/// Starts copying a backward block's stationary rows of both operands to the tiles at two byte addresses.
#[cube]
pub(super) fn copy_stationary(
    first: &Tensor<Eight>,
    second: &Tensor<Eight>,
    of: &HeadRows,
    first_to: u32,
    second_to: u32,
    #[comptime] tiles: BackwardTiles,
) {
    let rows = comptime!(tiles.stationary_rows());
    let head_dim = comptime!(tiles.head_dim);
    let threads = comptime!(tiles.threads());
    copy_tile(
        first,
        rows_of_head(first, of.batch, of.head),
        of.row,
        of.exist - of.row,
        first_to,
        rows,
        head_dim,
        threads,
    );
    copy_tile(
        second,
        rows_of_head(second, of.batch, of.head),
        of.row,
        of.exist - of.row,
        second_to,
        rows,
        head_dim,
        threads,
    );
}

/// Writes a warp's 16 rows (this thread's two scaled) to the rows `to_rows` of a tensor.
/// They take the place of 16 rows of a tile that this warp alone has read; `place` is the byte address of the first.
#[cube]
pub(super) fn store_rows<N: Size>(
    target: &mut Tensor<Eight>,
    to_rows: &HeadRows,
    values: Vector<f32, N>,
    scale_0: f32,
    scale_1: f32,
    place: u32,
    lane: u32,
    #[comptime] staging: StagingTile,
) {
    let rows = comptime!(staging.rows);
    let head_dim = comptime!(staging.head_dim);
    let chunk = lane % 8;
    let first = lane / 8;
    let stride = target.stride(2);
    let to = to_rows.batch as usize * target.stride(0)
        + to_rows.head as usize * target.stride(1)
        + to_rows.row as usize * stride
        + chunk as usize;
    // Products read the rows that were here: all lanes are done with them, then all have written.
    sync_plane();
    let own = lane / 4;
    stage_rows::<N>(place + own * 128, own, lane, values, scale_0, scale_1, staging);
    sync_plane();
    #[unroll]
    for panel in 0..comptime!(head_dim.div_ceil(64)) {
        if chunk < comptime!(chunks(head_dim, panel)) {
            #[unroll]
            for i in 0..4usize {
                let below = first + comptime!(4 * i as u32);
                if to_rows.row + below < to_rows.exist {
                    let at = place
                        + comptime!((panel * rows * 128) as u32)
                        + below * 128
                        + (chunk ^ (below % 8)) * 16;
                    target[to + below as usize * stride + comptime!(8 * panel)] = load_shared_16(at);
                }
            }
        }
    }
}
