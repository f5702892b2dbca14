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

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Values from one row to the next, and from one column to the next.
    pub(super) fn strides(&self) -> (usize, usize) {
        (self.row_stride, self.column_stride)
    }

    /// The first value.
    pub(super) fn pointer(&self) -> *const f32 {
        self.values.as_ptr()
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

    /// The values of a row.
    pub(super) fn row_mut(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        &mut self.values[row * self.row_stride..][..self.columns]
    }

    /// Panics unless `a · b` has this shape.
    pub(super) fn check_product(&self, a: Matrix<'_>, b: Matrix<'_>) {
        assert!(
            a.columns == b.rows && self.rows == a.rows && self.columns == b.columns,
            "a product of [{}, {}] and [{}, {}] into [{}, {}]",
            a.rows,
            a.columns,
            b.rows,
            b.columns,
            self.rows,
            self.columns
        );
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
    output.check_product(a, b);
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

/// In what precision a product takes its operands. Sums are f32 in each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// As they are.
    #[default]
    F32,
    /// Rounded to bf16. Needs a processor with [`super::bf16::is_supported`].
    Bf16,
}

impl Precision {
    /// [`multiply`] in this precision.
    ///
    /// # Panics
    /// As [`multiply`], or if the processor lacks the instructions.
    pub fn multiply(self, output: &mut MatrixMut<'_>, a: Matrix<'_>, b: Matrix<'_>, write: Write) {
        match self {
            Self::F32 => multiply(output, a, b, write),
            Self::Bf16 => super::bf16::multiply(output, a, b, write),
        }
    }

    /// [`multiply_rows`] in this precision.
    ///
    /// # Panics
    /// As [`Precision::multiply`]; in f32 if `a` is transposed.
    pub fn multiply_rows(self, output: &mut MatrixMut<'_>, a: Matrix<'_>, b: Matrix<'_>, write: Write) {
        match self {
            Self::F32 => multiply_rows(output, a, b, write),
            // A row's bits never depend on the others there.
            Self::Bf16 => super::bf16::multiply(output, a, b, write),
        }
    }
}

/// As [`multiply`], and a row's bits depend neither on the number of rows nor on its place among them.
///
/// The library behind [`multiply`] has other kernels, with another order of additions, for very small products: at most
/// 256 results, or at most 64 rows and columns with more than 512 products each (`gemm-common` 0.19, `gemm.rs`). Here
/// such products get rows of zeros until they are large enough.
///
/// # Panics
/// As [`multiply`]; if `a` is transposed.
pub fn multiply_rows(output: &mut MatrixMut<'_>, a: Matrix<'_>, b: Matrix<'_>, write: Write) {
    let (rows, columns, depth) = (a.rows, b.columns, a.columns);
    let enough = 256 / columns.max(1) + 1;
    let enough = if depth > 512 && columns <= 64 {
        enough.max(65)
    } else {
        enough.max(2)
    };
    if rows >= enough || rows == 0 || columns == 0 {
        return multiply(output, a, b, write);
    }
    let mut padded = vec![0.0; enough * depth];
    for row in 0..rows {
        padded[row * depth..][..depth].copy_from_slice(a.row(row));
    }
    let mut results = vec![0.0; enough * columns];
    if write == Write::Add {
        for row in 0..rows {
            results[row * columns..][..columns]
                .copy_from_slice(&output.values[row * output.row_stride..][..columns]);
        }
    }
    let a = Matrix::new(&padded, enough, depth, depth);
    multiply(
        &mut MatrixMut::new(&mut results, enough, columns, columns),
        a,
        b,
        write,
    );
    for row in 0..rows {
        output.values[row * output.row_stride..][..columns]
            .copy_from_slice(&results[row * columns..][..columns]);
    }
}
