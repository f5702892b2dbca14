//! Matrix products of strided views, on the calling thread.

/// A read-only strided matrix.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// `rows` rows of `columns` values, each `row_stride` values after the one before.
    ///
    /// # Panics
    /// If the last value lies beyond `values`.
    pub fn new(values: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        assert!(
            extent(rows, columns, row_stride) <= values.len(),
            "a matrix of {rows} rows of {columns} values, {row_stride} apart, in {} values",
            values.len()
        );
        Self {
            values,
            rows,
            columns,
            row_stride,
            column_stride: 1,
        }
    }

    /// The values of a row of a matrix that is not transposed.
    ///
    /// # Panics
    /// If the matrix is transposed or has no such row.
    pub fn row(&self, row: usize) -> &'a [f32] {
        assert!(
            self.column_stride == 1 && row < self.rows,
            "row {row} of {}",
            self.rows
        );
        &self.values[row * self.row_stride..][..self.columns]
    }

    /// The transpose of this view; nothing moves.
    pub fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

/// Where a product goes: `rows` rows of `columns` contiguous values, `row_stride` values apart.
#[derive(Debug)]
pub struct MatrixMut<'a> {
    values: &'a mut [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
}

impl<'a> MatrixMut<'a> {
    /// As [`Matrix::new`].
    ///
    /// # Panics
    /// As [`Matrix::new`].
    pub fn new(values: &'a mut [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        assert!(
            extent(rows, columns, row_stride) <= values.len(),
            "a matrix of {rows} rows of {columns} values, {row_stride} apart, in {} values",
            values.len()
        );
        Self {
            values,
            rows,
            columns,
            row_stride,
        }
    }
}

fn extent(rows: usize, columns: usize, row_stride: usize) -> usize {
    if rows == 0 || columns == 0 {
        0
    } else {
        (rows - 1) * row_stride + columns
    }
}

/// What happens to the values that the output holds already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// They are replaced.
    Replace,
    /// The product is added to them.
    Add,
}

/// `output = a · b`, or `output += a · b`.
///
/// # Panics
/// If the shapes do not fit.
pub fn multiply(output: &mut MatrixMut<'_>, a: Matrix<'_>, b: Matrix<'_>, write: Write) {
    assert!(
        a.columns == b.rows && output.rows == a.rows && output.columns == b.columns,
        "a product of [{}, {}] and [{}, {}] into [{}, {}]",
        a.rows,
        a.columns,
        b.rows,
        b.columns,
        output.rows,
        output.columns
    );
    // SAFETY: the constructors checked that every row and column of the views lies within their slices.
    unsafe {
        gemm::gemm(
            a.rows,
            b.columns,
            a.columns,
            output.values.as_mut_ptr(),
            1,
            output.row_stride as isize,
            write == Write::Add,
            a.values.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.values.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}
