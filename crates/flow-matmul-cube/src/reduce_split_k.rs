//! The split-K reduction: sums partial tiles, in the order of their summands.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

/// Threads of a block.
pub(crate) const THREADS: usize = 256;
/// Rows that a thread sums at the same time.
pub(crate) const ROWS_PER_THREAD: usize = 4;

/// `D = Σ tiles` or, with `accumulate`, `D + Σ tiles`. `table` holds for each tile of D its first row and column, its first
/// partial tile and their number; `sums` are tiles of `rows x columns`. A block for [`ROWS_PER_THREAD`] rows of a tile and [`THREADS`] of its columns.
#[cube(launch_unchecked)]
pub fn reduce_split_k<O: Numeric>(
    sums: &[f32],
    table: &[u32],
    d: &mut [O],
    m: u32,
    n: u32,
    stride: u32,
    #[comptime] rows: usize,
    #[comptime] columns: usize,
    #[comptime] accumulate: bool,
    #[define(O)] _element: ElemType,
) {
    let tile = CUBE_POS_X as usize * 4;
    let first_row = CUBE_POS_Y * comptime!(ROWS_PER_THREAD as u32);
    let column = CUBE_POS_Z * comptime!(THREADS as u32) + UNIT_POS;
    let row = table[tile] + first_row;
    let at_column = table[tile + 1] + column;
    let split_k = table[tile + 3];
    if column < comptime!(columns as u32) && at_column < n {
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
            if at_row < m {
                let to = at_row as usize * stride as usize + at_column as usize;
                if comptime!(accumulate) {
                    d[to] = O::cast_from(f32::cast_from(d[to]) + totals[r]);
                } else {
                    d[to] = O::cast_from(totals[r]);
                }
            }
        }
    }
}
