//! Matrix products with few columns, on the calling thread, without packing: what one head of attention needs.
//!
//! For tiles of 16 to 64 columns a library's set-up and packing cost as much as the product. Here the right matrix must
//! lie in rows of whole vectors, so nothing is packed and nothing allocated. Every result is one sum over the depth, in
//! order, whatever the shape.

use super::matrix::{Matrix, Write};
use pulp::{Arch, Simd, WithSimd};

/// Columns come in multiples of this.
pub const LANES: usize = 16;

/// Depth that is summed in registers at a time, so that the right matrix's part stays in the first-level cache.
const DEPTH: usize = 128;

/// `output = a · b` or `output += a · b`, with `output [rows of a, columns]` and `b [columns of a, columns]` dense.
///
/// # Panics
/// If `columns` is not a multiple of [`LANES`], or if the shapes do not fit.
pub fn multiply_narrow(output: &mut [f32], a: Matrix<'_>, b: &[f32], columns: usize, write: Write) {
    assert!(
        columns.is_multiple_of(LANES),
        "{columns} columns are not whole vectors"
    );
    assert!(
        output.len() == a.rows() * columns && b.len() == a.columns() * columns,
        "a product of [{}, {}] and {} values into {} of {columns} columns",
        a.rows(),
        a.columns(),
        b.len(),
        output.len()
    );
    if a.columns() == 0 && write == Write::Replace {
        output.fill(0.0);
    }
    Arch::new().dispatch(Product {
        output,
        a,
        b,
        columns,
        write,
    });
}

struct Product<'a> {
    output: &'a mut [f32],
    a: Matrix<'a>,
    b: &'a [f32],
    columns: usize,
    write: Write,
}

impl WithSimd for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self {
            output,
            a,
            b,
            columns,
            write,
        } = self;
        let (row_stride, column_stride) = a.strides();
        for start in (0..a.columns()).step_by(DEPTH) {
            let depth = DEPTH.min(a.columns() - start);
            let add = start > 0 || write == Write::Add;
            let mut column = 0;
            while column < columns {
                let vectors = vectors_of::<S>(columns - column);
                let rows_at_once = if vectors == 4 { 4 } else { 8 };
                let mut row = 0;
                while row < a.rows() {
                    let rows = largest_power(rows_at_once.min(a.rows() - row));
                    // SAFETY: `multiply_narrow` checked that `output` holds all rows and columns and `b` all depths and
                    // columns, `Matrix` that `a` holds all its rows and columns; tiles stay within them.
                    unsafe {
                        let operands = Operands {
                            a: a.pointer().add(row * row_stride + start * column_stride),
                            row_stride,
                            column_stride,
                            b: b.as_ptr().add(start * columns + column),
                            output: output.as_mut_ptr().add(row * columns + column),
                            columns,
                            depth,
                            add,
                        };
                        match (rows, vectors) {
                            (8, 2) => operands.tile::<S, 8, 2>(simd),
                            (4, 2) => operands.tile::<S, 4, 2>(simd),
                            (2, 2) => operands.tile::<S, 2, 2>(simd),
                            (1, 2) => operands.tile::<S, 1, 2>(simd),
                            (4, 4) => operands.tile::<S, 4, 4>(simd),
                            (2, 4) => operands.tile::<S, 2, 4>(simd),
                            (1, 4) => operands.tile::<S, 1, 4>(simd),
                            (8, _) => operands.tile::<S, 8, 1>(simd),
                            (4, _) => operands.tile::<S, 4, 1>(simd),
                            (2, _) => operands.tile::<S, 2, 1>(simd),
                            _ => operands.tile::<S, 1, 1>(simd),
                        }
                    }
                    row += rows;
                }
                column += vectors * S::F32_LANES;
            }
        }
    }
}

/// Vectors of a tile: as many as registers hold with the rows beside them.
#[inline(always)]
fn vectors_of<S: Simd>(columns: usize) -> usize {
    let vectors = columns / S::F32_LANES;
    match S::REGISTER_COUNT {
        32.. if vectors >= 4 => 4,
        _ if vectors >= 2 => 2,
        _ => 1,
    }
}

#[inline(always)]
fn largest_power(rows: usize) -> usize {
    match rows {
        8.. => 8,
        4.. => 4,
        2.. => 2,
        _ => 1,
    }
}

struct Operands {
    a: *const f32,
    row_stride: usize,
    column_stride: usize,
    b: *const f32,
    output: *mut f32,
    columns: usize,
    depth: usize,
    add: bool,
}

impl Operands {
    /// One tile of `ROWS` rows and `VECTORS` vectors.
    ///
    /// # Safety
    /// `a` must hold `ROWS` rows and `depth` columns at its strides; `b` and `output` rows of `VECTORS` vectors,
    /// `columns` values apart, `depth` and `ROWS` of them.
    #[inline(always)]
    unsafe fn tile<S: Simd, const ROWS: usize, const VECTORS: usize>(&self, simd: S) {
        let mut sums = [[simd.splat_f32s(0.0); VECTORS]; ROWS];
        // SAFETY: reads and writes stay within what the caller promises; vectors are read without alignment.
        unsafe {
            for depth in 0..self.depth {
                let b = self.b.add(depth * self.columns);
                let mut right = [simd.splat_f32s(0.0); VECTORS];
                for (vector, right) in right.iter_mut().enumerate() {
                    *right = b.add(vector * S::F32_LANES).cast::<S::f32s>().read_unaligned();
                }
                let a = self.a.add(depth * self.column_stride);
                for (row, sums) in sums.iter_mut().enumerate() {
                    let left = simd.splat_f32s(*a.add(row * self.row_stride));
                    for (sum, right) in sums.iter_mut().zip(right) {
                        *sum = simd.mul_add_e_f32s(left, right, *sum);
                    }
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                for (vector, sum) in sums.iter().enumerate() {
                    let output = self
                        .output
                        .add(row * self.columns + vector * S::F32_LANES)
                        .cast::<S::f32s>();
                    let sum = if self.add {
                        simd.add_f32s(output.read_unaligned(), *sum)
                    } else {
                        *sum
                    };
                    output.write_unaligned(sum);
                }
            }
        }
    }
}
