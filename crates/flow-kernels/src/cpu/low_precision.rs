//! Matrices of linear layers as they are stored, and as forward and backward multiply with them.

use crate::host::math;
use crate::host::matrix::{Matrix, MatrixMut, Precision, Write};
use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::low_precision::{COLUMNS_AT_A_TIME, columns_as_rows, quantise_activations};
use flow_core::tensors::is_float;
use flow_core::{LowPrecision, LowPrecisionCompute, RawTensor};
use rayon::prelude::*;

/// A matrix `[out, in]` as it is stored.
#[derive(Clone, Debug)]
pub(crate) enum StoredMatrix {
    Numbers(CpuTensor),
    /// Numbers that forward rounds to codes, and backward if it multiplies codes as well.
    Rounded(LowPrecisionCompute, CpuTensor),
    LowPrecision(LowPrecision, Box<RawTensor>),
}

/// A matrix `[out, in]` as forward multiplies with it.
#[derive(Clone, Debug)]
pub(crate) enum ForwardMatrix {
    /// Numbers, with activations as they are.
    Numbers(CpuTensor),
    /// Codes, with activations in e4m3.
    Codes(Codes),
}

/// A matrix `[out, in]` as backward multiplies with it.
#[derive(Clone, Debug)]
pub(crate) enum BackwardMatrix {
    /// Numbers `[out, in]`, with gradients as they are.
    Numbers(CpuTensor),
    /// Codes of the transposed copy, `[in, out]`, with gradients in e4m3.
    Codes(Codes),
}

/// Numbers of e4m3 in rows, and the scale of each row, which they are without.
#[derive(Clone, Debug)]
pub(crate) struct Codes {
    /// `[rows, columns]`.
    values: CpuTensor,
    scales: Vec<f32>,
}

impl StoredMatrix {
    /// The matrix `plain`: numbers, perhaps to be rounded, or the words of a matrix in low precision.
    pub(crate) fn read(plain: &RawTensor, low_precision: Option<LowPrecision>) -> Self {
        match low_precision {
            Some(of) if is_float(plain) => Self::Rounded(of.compute, CpuTensor::read(plain)),
            Some(of) => Self::LowPrecision(of, Box::new(plain.clone())),
            None => Self::Numbers(CpuTensor::read(plain)),
        }
    }

    /// Output and input channels.
    pub(crate) fn rows_and_columns(&self) -> (usize, usize) {
        match self {
            Self::Numbers(numbers) | Self::Rounded(_, numbers) => numbers.rows_and_columns(),
            Self::LowPrecision(of, _) => (of.rows, of.columns),
        }
    }

    /// The numbers, in memory of their own if the matrix is in low precision.
    fn widened(&self) -> CpuTensor {
        match self {
            Self::Numbers(numbers) | Self::Rounded(_, numbers) => numbers.clone(),
            Self::LowPrecision(of, words) => matrix(of.host(words), [of.rows, of.columns]),
        }
    }

    /// What forward multiplies with, in memory of its own if the matrix is in low precision.
    pub(crate) fn for_forward(&self) -> ForwardMatrix {
        match self {
            Self::LowPrecision(of, words) if of.compute.quantises_activations() => {
                ForwardMatrix::Codes(Codes::new(of.host_codes_and_scales(words), [of.rows, of.columns]))
            }
            Self::Rounded(_, numbers) => {
                let (rows, columns) = numbers.rows_and_columns();
                let mut values = vec![0.0; rows * columns];
                let scales = quantise_rows(numbers.values(), columns, &mut values);
                ForwardMatrix::Codes(Codes::new((values, scales), [rows, columns]))
            }
            _ => ForwardMatrix::Numbers(self.widened()),
        }
    }

    /// What backward multiplies with, in memory of its own if the matrix is in low precision. Of numbers that forward rounded these, as if
    /// it had not (the straight-through estimator), or their columns, rounded as rows are.
    pub(crate) fn for_backward(&self) -> BackwardMatrix {
        let codes = match self {
            Self::LowPrecision(of, words) => {
                let copy = of.host_transposed(words);
                copy.map(|copy| Codes::new(copy, [of.columns, of.rows]))
            }
            Self::Rounded(compute, numbers) => {
                compute.quantises_gradients().then(|| Codes::of_columns(numbers))
            }
            Self::Numbers(_) => None,
        };
        codes.map_or_else(|| BackwardMatrix::Numbers(self.widened()), BackwardMatrix::Codes)
    }
}

fn matrix(values: Vec<f32>, shape: [usize; 2]) -> CpuTensor {
    CpuTensor::read(&from_vec(values, &shape))
}

/// `x Mᵀ` of `rows` rows `x` of `inputs` values and of `matrix [outputs, inputs]`.
fn multiply_by_rows(
    output: &mut [f32],
    x: &[f32],
    matrix: &CpuTensor,
    [rows, inputs, outputs]: [usize; 3],
    (precision, write): (Precision, Write),
) {
    let matrix = Matrix::new(matrix.values(), outputs, inputs, inputs);
    precision.multiply_rows(
        &mut MatrixMut::new(output, rows, outputs, outputs),
        Matrix::new(x, rows, inputs, inputs),
        matrix.transposed(),
        write,
    );
}

impl ForwardMatrix {
    /// `x Wᵀ` plus the bias, which `output` holds already if there is one; `shape` are the rows of `x`, input and output channels. A row's
    /// bits do not depend on the others.
    pub(crate) fn multiply_rows(
        &self,
        output: &mut [f32],
        x: &[f32],
        shape: [usize; 3],
        bias: Option<&CpuTensor>,
        precision: Precision,
    ) {
        match self {
            Self::Numbers(weight) => {
                let write = if bias.is_some() {
                    Write::Add
                } else {
                    Write::Replace
                };
                multiply_by_rows(output, x, weight, shape, (precision, write));
            }
            Self::Codes(codes) => codes.multiply_rows(output, x, shape, bias, precision),
        }
    }
}

impl BackwardMatrix {
    /// `gradient W`, of `rows` rows of `outputs` values. A row's bits do not depend on the others.
    pub(crate) fn multiply_rows(
        &self,
        dx: &mut [f32],
        gradient: &[f32],
        [rows, inputs, outputs]: [usize; 3],
        precision: Precision,
    ) {
        match self {
            Self::Numbers(weight) => precision.multiply_rows(
                &mut MatrixMut::new(dx, rows, inputs, inputs),
                Matrix::new(gradient, rows, outputs, outputs),
                Matrix::new(weight.values(), outputs, inputs, inputs),
                Write::Replace,
            ),
            Self::Codes(codes) => {
                codes.multiply_rows(dx, gradient, [rows, outputs, inputs], None, precision);
            }
        }
    }
}

impl Codes {
    /// Of values and scales.
    fn new((values, scales): (Vec<f32>, Vec<f32>), shape: [usize; 2]) -> Self {
        Self {
            values: matrix(values, shape),
            scales,
        }
    }

    /// The columns of a matrix of numbers as rows, each quantised as a row of activations is.
    fn of_columns(numbers: &CpuTensor) -> Self {
        let (rows, columns) = numbers.rows_and_columns();
        let (numbers, mut values) = (numbers.values(), vec![0.0; rows * columns]);
        let several = values.par_chunks_mut(COLUMNS_AT_A_TIME * rows).enumerate();
        let scales = several.flat_map_iter(|(index, values)| {
            let turned = columns_as_rows(numbers, columns, index * COLUMNS_AT_A_TIME);
            quantise_rows(&turned, rows, values)
        });
        let scales = scales.collect();
        Self::new((values, scales), [columns, rows])
    }

    /// `quantised(x) Cᵀ`, scaled by the scales of `C [outputs, inputs]` and of the rows of `x`, plus the bias.
    fn multiply_rows(
        &self,
        output: &mut [f32],
        x: &[f32],
        shape: [usize; 3],
        bias: Option<&CpuTensor>,
        precision: Precision,
    ) {
        let [_, inputs, _] = shape;
        let mut of_x = vec![0.0; x.len()];
        let scales_of_x = quantise_rows(x, inputs, &mut of_x);
        // Numbers of e4m3 are numbers of bf16, so nothing is rounded before the sums in either precision.
        multiply_by_rows(output, &of_x, &self.values, shape, (precision, Write::Replace));
        scale_rows(output, &scales_of_x, &self.scales, bias);
    }
}

/// Writes the e4m3 numbers of rows of `columns` values, and gives the rows' scales.
fn quantise_rows(x: &[f32], columns: usize, values: &mut [f32]) -> Vec<f32> {
    let rows = x.chunks_exact(columns).zip(values.chunks_exact_mut(columns));
    math::vectorised(
        #[inline(always)]
        || {
            rows.map(
                #[inline(always)]
                |(row, values)| quantise_activations(row, values),
            )
            .collect()
        },
    )
}

/// Multiplies sums `[rows, out]` by the scales of their row and column, the column's first, and adds the bias.
fn scale_rows(sums: &mut [f32], of_rows: &[f32], of_columns: &[f32], bias: Option<&CpuTensor>) {
    let rows = sums.chunks_exact_mut(of_columns.len()).zip(of_rows);
    math::vectorised(
        #[inline(always)]
        || {
            for (sums, of_row) in rows {
                for (sum, of_column) in sums.iter_mut().zip(of_columns) {
                    *sum = *sum * of_column * of_row;
                }
                if let Some(bias) = bias {
                    let bias = bias.values();
                    sums.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += bias);
                }
            }
        },
    );
}
