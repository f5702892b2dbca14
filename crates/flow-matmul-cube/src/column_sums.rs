//! Sums over the rows of a matrix, for each column: a bias's gradient. In f32 and in a fixed order.

use crate::Element;
use crate::problem::{Refusal, no};
use crate::tensors::Matrix;
use cubecl::ir::{AddressType, ElemType};
use cubecl::prelude::*;
use cubecl_runtime::server::Handle;

/// Threads of a block.
const THREADS: usize = 256;
/// Rows that a block of the first pass sums.
const ROWS: usize = 512;
/// Threads that share a column, in the first pass and in the second.
const THREADS_PER_COLUMN: [usize; 2] = [4, 16];

/// Sizes of a pass.
#[derive(CubeType, CubeLaunch)]
pub struct SumSizes {
    /// Rows of the matrix.
    pub rows: u32,
    /// Columns of the matrix.
    pub columns: u32,
    /// From a row to the next, in elements.
    pub stride: u32,
    /// Rows that a block sums.
    pub per_block: u32,
}

/// Adds up `per_block` rows from `CUBE_POS_Y * per_block` on. Each of `threads_per_column` threads of a column takes every
/// `threads_per_column`-th row; then their sums are summed in order. `accumulate`: the result is added to what is there.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn sum_rows<F: Numeric, O: Numeric>(
    x: &[F],
    out: &mut [O],
    sizes: &SumSizes,
    #[comptime] threads_per_column: usize,
    #[comptime] accumulate: bool,
    #[define(F, O)] _elements: [ElemType; 2],
) {
    let width = comptime!((THREADS / threads_per_column) as u32);
    let mut sums: Shared<[f32]> = Shared::new_slice(comptime!(THREADS));
    let thread_of_column = UNIT_POS / width;
    let column = CUBE_POS_X * width + UNIT_POS % width;
    let first = CUBE_POS_Y * sizes.per_block;
    let end = min(first + sizes.per_block, sizes.rows);
    let inside = column < sizes.columns;
    let mut sum = 0.0f32;
    let mut row = first + thread_of_column;
    while row < end {
        let at = row as usize * sizes.stride as usize + column as usize;
        let value = f32::cast_from(x[select(inside, at, 0usize)]);
        sum += value;
        row += comptime!(threads_per_column as u32);
    }
    sums[UNIT_POS as usize] = sum;
    sync_cube();
    if thread_of_column == 0 && inside {
        let mut total = 0.0f32;
        for l in 0..threads_per_column {
            total += sums[l * comptime!(THREADS / threads_per_column) + UNIT_POS as usize];
        }
        let to = (CUBE_POS_Y * sizes.columns + column) as usize;
        if comptime!(accumulate) {
            total += f32::cast_from(out[to]);
        }
        out[to] = O::cast_from(total);
    }
}

/// Writes the sum of each column of `x`, of type `from`, to `out [columns]`, of type `to`; with `accumulate`, adds it to
/// what is there. The order of the sum depends on the number of rows alone.
///
/// # Errors
/// [`Refusal`] if `out` is too short or there is nothing to sum; nothing was launched then.
pub fn column_sums(
    client: &Client,
    x: &Matrix,
    from: Element,
    out: &Handle,
    to: Element,
    accumulate: bool,
) -> Result<(), Refusal> {
    if x.rows == 0 || x.columns == 0 {
        return no("a matrix without rows or columns has no sums");
    }
    let holds = out.size_in_used() as usize;
    if x.columns * to.bytes() > holds {
        return no(format!(
            "{} sums of {} take {} bytes, `out` holds {holds}",
            x.columns,
            to.name(),
            x.columns * to.bytes()
        ));
    }
    if x.elements() * from.bytes() > x.handle.size_in_used() as usize {
        return no("the matrix reaches beyond its buffer; check its rows and stride");
    }
    let row_splits = x.rows.div_ceil(ROWS);
    let launch =
        |x: &Matrix, out: (&Handle, usize), [from, to]: [Element; 2], pass: usize, per_block, blocks, add| {
            // SAFETY: rows and columns are within the buffers.
            unsafe {
                sum_rows::launch_unchecked(
                    client,
                    CubeCount::Static(
                        x.columns.div_ceil(THREADS / THREADS_PER_COLUMN[pass]) as u32,
                        blocks as u32,
                        1,
                    ),
                    CubeDim::new_1d(THREADS as u32),
                    AddressType::from_len(x.elements()),
                    BufferArg::from_raw_parts(x.handle.clone(), x.elements()),
                    BufferArg::from_raw_parts(out.0.clone(), out.1),
                    SumSizesLaunch::new(x.rows as u32, x.columns as u32, x.stride as u32, per_block as u32),
                    THREADS_PER_COLUMN[pass],
                    add,
                    [from.native(), to.native()],
                );
            }
        };
    let partial = Matrix::contiguous(client.empty(row_splits * x.columns * 4), [row_splits, x.columns]);
    launch(
        x,
        (&partial.handle, row_splits * x.columns),
        [from, Element::F32],
        0,
        ROWS,
        row_splits,
        false,
    );
    launch(
        &partial,
        (out, x.columns),
        [Element::F32, to],
        1,
        row_splits,
        1,
        accumulate,
    );
    Ok(())
}
