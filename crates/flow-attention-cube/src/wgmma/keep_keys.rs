//! What kernels that keep keys, while queries pass, have in common.

use super::BackwardTiles;
use super::copy::copy_tile;
use crate::columns::Pair;
use crate::softmax::stage_rows;
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::generic_to_shared;
use flow_cube::barrier::{arrive_and_expect, bulk_copy};

/// Starts the copies of the keys and values that stay.
#[cube]
pub(super) fn load_resident<E: Numeric>(
    full: u32,
    k: &TensorMap<E, Tiled>,
    v: &TensorMap<E, Tiled>,
    k_tile: &mut [E],
    v_tile: &mut [E],
    batch: u32,
    kv_head: u32,
    first_key: u32,
    #[comptime] tiles: BackwardTiles,
) {
    let resident = comptime!(tiles.resident());
    let panels = comptime!(tiles.panels());
    arrive_and_expect(full, comptime!((2 * resident * 128 * panels) as u32));
    let start = 0usize;
    copy_tile::<E>(
        full, k, k_tile, start, batch, kv_head, first_key, resident, panels,
    );
    copy_tile::<E>(
        full, v, v_tile, start, batch, kv_head, first_key, resident, panels,
    );
}

/// Starts the copies of one operand's rows of a passing tile, and of the statistic of these rows, before whose stages others have
/// `statistics_before`; bytes count towards `full`.
#[cube]
fn copy_passing<E: Numeric>(
    full: u32,
    x: &TensorMap<E, Tiled>,
    statistic: &[Pair],
    to: &mut [E],
    statistic_to: &mut [Pair],
    stage: usize,
    batch: u32,
    head: u32,
    row: u32,
    statistic_row: u32,
    #[comptime] statistics_before: usize,
    #[comptime] tiles: BackwardTiles,
) {
    let rows = comptime!(tiles.passing);
    let panels = comptime!(tiles.panels());
    let at = stage * comptime!(rows * 64 * panels);
    copy_tile::<E>(full, x, to, at, batch, head, row, rows, panels);
    let from = (statistic_row / 2) as usize;
    let at = (stage + statistics_before) * comptime!(rows / 2);
    let length = comptime!(rows / 2);
    let at = generic_to_shared::<Pair>(unsafe { statistic_to[at..at + length].as_ptr_unchecked() });
    bulk_copy::<Pair>(
        at,
        unsafe { statistic[from..from + length].as_ptr_unchecked() },
        comptime!((rows * 4) as u32),
        full,
    );
}

/// Starts the copies of one operand's rows of a passing tile with a barrier of their own, and of the statistic of these rows,
/// which begins at `statistic_row` of all.
#[cube]
pub(super) fn next_half<E: Numeric>(
    full: u32,
    x: &TensorMap<E, Tiled>,
    statistic: &[Pair],
    to: &mut [E],
    statistic_to: &mut [Pair],
    stage: usize,
    batch: u32,
    head: u32,
    row: u32,
    statistic_row: u32,
    #[comptime] statistics_before: usize,
    #[comptime] tiles: BackwardTiles,
) {
    arrive_and_expect(
        full,
        comptime!((tiles.passing * 128 * tiles.panels() + tiles.passing * 4) as u32),
    );
    copy_passing::<E>(
        full,
        x,
        statistic,
        to,
        statistic_to,
        stage,
        batch,
        head,
        row,
        statistic_row,
        statistics_before,
        tiles,
    );
}

/// Starts the copies of one passing tile.
#[cube]
pub(super) fn next_tile<E: Numeric>(
    full: u32,
    q: &TensorMap<E, Tiled>,
    d_o: &TensorMap<E, Tiled>,
    lse: &[Pair],
    delta: &[Pair],
    q_tiles: &mut [E],
    do_tiles: &mut [E],
    lse_tiles: &mut [Pair],
    delta_tiles: &mut [Pair],
    stage: usize,
    batch: u32,
    heads: u32,
    head: u32,
    row: u32,
    lse_rows: u32,
    #[comptime] tiles: BackwardTiles,
) {
    arrive_and_expect(
        full,
        comptime!((2 * tiles.passing * 128 * tiles.panels() + 2 * tiles.passing * 4) as u32),
    );
    let from = (batch * heads + head) * lse_rows + row;
    copy_passing::<E>(
        full, q, lse, q_tiles, lse_tiles, stage, batch, head, row, from, 0usize, tiles,
    );
    copy_passing::<E>(
        full,
        d_o,
        delta,
        do_tiles,
        delta_tiles,
        stage,
        batch,
        head,
        row,
        from,
        0usize,
        tiles,
    );
}

/// Writes a warpgroup's gradient, times `by`, where its keys or values were: to the tile at the byte address `base`.
#[cube]
pub(super) fn stage_gradient<N: Size>(
    base: u32,
    warpgroup: u32,
    thread: u32,
    sum: Vector<f32, N>,
    by: f32,
    #[comptime] tiles: BackwardTiles,
) {
    let row = (thread / 32) * 16 + thread % 32 / 4;
    stage_rows::<N>(
        base + (warpgroup * 64 + row) * 128,
        row,
        thread % 32,
        sum,
        by,
        by,
        comptime!(tiles.head_dim),
        comptime!(tiles.resident()),
        comptime!(tiles.factor),
    );
}
