//! The split-K reduction: sums partial tiles, in the order of their summands.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

/// Threads of a block.
pub(crate) const THREADS: usize = 256;
/// Rows that a thread sums at the same time.
pub(crate) const ROWS_PER_THREAD: usize = 4;

/// Sizes of the result.
#[derive(CubeType, CubeLaunch)]
pub struct ResultSizes {
    /// Rows.
    pub m: u32,
    /// Columns.
    pub n: u32,
    /// From a row to the next, in elements.
    pub stride: u32,
}

/// What is reduced, known at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReducedTiles {
    /// Rows of a tile.
    pub rows: usize,
    /// Columns of a tile.
    pub columns: usize,
    /// Whether the sums are added to what is there.
    pub accumulate: bool,
}

/// `D = Σ tiles` or, with `accumulate`, `D + Σ tiles`. `table` holds for each tile of D its first row and column, its first
/// partial tile and their number; `sums` are tiles of `rows x columns`. A block for [`ROWS_PER_THREAD`] rows of a tile and [`THREADS`] of its columns.
#[cube(launch_unchecked)]
pub fn reduce_split_k<O: Numeric>(
    sums: &[f32],
    table: &[u32],
    d: &mut [O],
    sizes: &ResultSizes,
    #[comptime] tiles: ReducedTiles,
    #[define(O)] _element: ElemType,
) {
    let rows = comptime!(tiles.rows);
    let columns = comptime!(tiles.columns);
    let tile = CUBE_POS_X as usize * 4;
    let first_row = CUBE_POS_Y * comptime!(ROWS_PER_THREAD as u32);
    let column = CUBE_POS_Z * comptime!(THREADS as u32) + UNIT_POS;
    let row = table[tile] + first_row;
    let at_column = table[tile + 1] + column;
    let split_k = table[tile + 3];
    if column < comptime!(columns as u32) && at_column < sizes.n {
        let elements = comptime!(rows * columns);
        let from =
            table[tile + 2] as usize * elements + first_row as usize * comptime!(columns) + column as usize;
        let mut totals = Array::<f32>::new(comptime!(ROWS_PER_THREAD));
        #[unroll]
        for r in 0..ROWS_PER_THREAD {
            totals[r] = sums[from + comptime!(r * columns)];
        }
        for part in 1..split_k as usize {
            #[unroll]
            for r in 0..ROWS_PER_THREAD {
                totals[r] += sums[from + part * elements + comptime!(r * columns)];
            }
        }
        #[unroll]
        for r in 0..ROWS_PER_THREAD {
            let at_row = row + comptime!(r as u32);
            if at_row < sizes.m {
                let to = at_row as usize * sizes.stride as usize + at_column as usize;
                if comptime!(tiles.accumulate) {
                    d[to] = O::cast_from(f32::cast_from(d[to]) + totals[r]);
                } else {
                    d[to] = O::cast_from(totals[r]);
                }
            }
        }
    }
}
