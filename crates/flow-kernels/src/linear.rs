//! Linear layers with bias, low-rank adapter and activation in one pass over the output.

use crate::activation::activation_gradient;
use crate::host::matrix::{Matrix, MatrixMut, Write, multiply, multiply_rows};
use crate::host::{math, threads};
use burn::backend::DispatchTensor;
use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::exec::Stash;
use flow_core::kernels::LinearWeights;
use flow_core::tensors::is_tracked;
use flow_core::{Activation, Plain, op};
use std::sync::Arc;

/// Rows of `x` that one task computes.
const ROWS: usize = 128;
/// Output channels whose weight gradient one task computes.
const CHANNELS: usize = 64;

/// Values of a layer's weights.
#[derive(Clone, Debug)]
struct Values {
    /// `[out, in]`.
    weight: CpuTensor,
    bias: Option<CpuTensor>,
    adapter: Option<Adapter>,
    inputs: usize,
    outputs: usize,
}

/// `scale · (x Aᵀ) Bᵀ` is added to the output; the product of `A` and `B` is never formed.
#[derive(Clone, Debug)]
struct Adapter {
    /// `A [rank, in]`.
    down: CpuTensor,
    /// `B [out, rank]`.
    up: CpuTensor,
    scale: f32,
    rank: usize,
}

/// `activation(x Wᵀ + b + scale · (x Aᵀ) Bᵀ)`.
///
/// What passes through `stash` is what backward needs of the result: the value before the activation if there is one,
/// else the result itself.
pub(crate) fn linear(
    stash: &dyn Stash,
    x: &DispatchTensor,
    weights: &LinearWeights,
    activation: Activation,
) -> DispatchTensor {
    let mut inputs = vec![x, &weights.weight];
    inputs.extend(&weights.bias);
    if let Some((down, up, _)) = &weights.adapter {
        inputs.extend([down, up]);
    }
    // `x` is kept only for the gradient of a matrix.
    let keep_x = is_tracked(&weights.weight)
        || weights
            .adapter
            .as_ref()
            .is_some_and(|(a, b, _)| is_tracked(a) || is_tracked(b));
    op::apply("linear", &inputs, |plain, tracked| {
        let x = CpuTensor::read(&plain[0]);
        let values = Values::read(plain, weights);
        let shape = [&x.shape()[..x.shape().len() - 1], &[values.outputs]].concat();
        let keep_sum = activation != Activation::None && (tracked || stash.keeps("linear"));
        let mut activated = None;
        let mut kept = stash.through("linear", &mut || {
            let (sum, output) = values.forward(&x, activation, keep_sum);
            let output = from_vec(output, &shape);
            match sum {
                Some(sum) => {
                    activated = Some(output);
                    vec![from_vec(sum, &shape)]
                }
                None => vec![output],
            }
        });
        let kept = kept.pop().expect("a linear layer keeps one tensor");
        let (output, sum) = match (keep_sum, activated) {
            (true, Some(output)) => (output, Some(kept)),
            (true, None) => (activated_again(&kept, activation), Some(kept)),
            (false, _) => (kept, None),
        };
        let x_shape = x.shape().to_vec();
        let x = keep_x.then_some(x);
        let backward: op::Backward = Arc::new(move |incoming| {
            values.backward(
                x.as_ref(),
                &x_shape,
                sum.as_ref(),
                activation,
                incoming.gradient(),
                incoming.wanted,
            )
        });
        (output, backward)
    })
}

/// The activation of a sum that was kept from an earlier run.
fn activated_again(sum: &Plain, activation: Activation) -> Plain {
    let sum = CpuTensor::read(sum);
    let mut output = vec![0.0; sum.values().len()];
    threads::for_each_piece(&mut output, threads::PIECE, |index, output| {
        math::activate_into(
            activation,
            &sum.values()[index * threads::PIECE..][..output.len()],
            output,
        );
    });
    from_vec(output, sum.shape())
}

impl Values {
    fn read(plain: &[Plain], weights: &LinearWeights) -> Self {
        let weight = CpuTensor::read(&plain[1]);
        let (outputs, inputs) = weight.rows_and_columns();
        let bias = weights.bias.as_ref().map(|_| CpuTensor::read(&plain[2]));
        let adapter = weights.adapter.as_ref().map(|(_, _, scale)| {
            let [down, up] = [plain.len() - 2, plain.len() - 1].map(|at| CpuTensor::read(&plain[at]));
            let rank = down.shape()[0];
            Adapter {
                down,
                up,
                scale: *scale,
                rank,
            }
        });
        Self {
            weight,
            bias,
            adapter,
            inputs,
            outputs,
        }
    }

    fn weight(&self) -> Matrix<'_> {
        Matrix::new(self.weight.values(), self.outputs, self.inputs, self.inputs)
    }

    /// The sum before the activation, if wanted, and the output.
    fn forward(&self, x: &CpuTensor, activation: Activation, keep_sum: bool) -> (Option<Vec<f32>>, Vec<f32>) {
        let rows = x.values().len().checked_div(self.inputs).unwrap_or(0);
        let work = rows * self.inputs * self.outputs / 16;
        let mut output = vec![0.0; rows * self.outputs];
        let size = ROWS * self.outputs;
        if keep_sum {
            let mut sum = vec![0.0; rows * self.outputs];
            threads::for_each_pair_of_pieces_of(
                (&mut sum, size),
                (&mut output, size),
                work,
                |index, sum, output| {
                    self.forward_rows(x.values(), index * ROWS, sum);
                    math::activate_into(activation, sum, output);
                },
            );
            (Some(sum), output)
        } else {
            threads::for_each_piece_of(&mut output, size, work, |index, output| {
                self.forward_rows(x.values(), index * ROWS, output);
                math::activate(activation, output);
            });
            (None, output)
        }
    }

    fn forward_rows(&self, x: &[f32], start: usize, output: &mut [f32]) {
        let (inputs, outputs) = (self.inputs, self.outputs);
        let rows = output.len() / outputs;
        let x = Matrix::new(&x[start * inputs..], rows, inputs, inputs);
        let write = match &self.bias {
            Some(bias) => {
                output
                    .chunks_exact_mut(outputs)
                    .for_each(|row| row.copy_from_slice(bias.values()));
                Write::Add
            }
            None => Write::Replace,
        };
        multiply_rows(
            &mut MatrixMut::new(output, rows, outputs, outputs),
            x,
            self.weight().transposed(),
            write,
        );
        if let Some(adapter) = &self.adapter {
            let reduced = adapter.reduced(x, rows);
            let reduced = Matrix::new(&reduced, rows, adapter.rank, adapter.rank);
            multiply_rows(
                &mut MatrixMut::new(output, rows, outputs, outputs),
                reduced,
                adapter.up(outputs).transposed(),
                Write::Add,
            );
        }
    }

    fn backward(
        &self,
        x: Option<&CpuTensor>,
        x_shape: &[usize],
        sum: Option<&Plain>,
        activation: Activation,
        gradient: &Plain,
        wanted: &[bool],
    ) -> Vec<Option<Plain>> {
        let gradient = match sum {
            Some(sum) => {
                let (sum, gradient) = (CpuTensor::read(sum), CpuTensor::read(gradient));
                CpuTensor::read(&from_vec(
                    activation_gradient(activation, sum.values(), gradient.values()),
                    gradient.shape(),
                ))
            }
            None => CpuTensor::read(gradient),
        };
        let gradient = gradient.values();
        let rows = gradient.len().checked_div(self.outputs).unwrap_or(0);
        let x = || x.expect("the input is kept if a matrix is tracked").values();
        let mut wanted = wanted.iter().copied();
        let mut want = || wanted.next().expect("one flag per input");
        let mut gradients = vec![want().then(|| from_vec(self.input_gradient(gradient, rows), x_shape))];
        gradients.push(want().then(|| {
            let (x, gradient) = ((x(), self.inputs), (gradient, self.outputs));
            from_vec(product_over_rows(gradient, x, rows), &[self.outputs, self.inputs])
        }));
        if self.bias.is_some() {
            gradients.push(want().then(|| from_vec(column_sums(gradient, self.outputs), &[self.outputs])));
        }
        if let Some(adapter) = &self.adapter {
            gradients.push(want().then(|| {
                let reduced = self.reduced_gradient(adapter, gradient, rows);
                from_vec(
                    product_over_rows((&reduced, adapter.rank), (x(), self.inputs), rows),
                    &[adapter.rank, self.inputs],
                )
            }));
            gradients.push(want().then(|| {
                let reduced = adapter.reduced(Matrix::new(x(), rows, self.inputs, self.inputs), rows);
                from_vec(
                    product_over_rows((gradient, self.outputs), (&reduced, adapter.rank), rows),
                    &[self.outputs, adapter.rank],
                )
            }));
        }
        gradients
    }

    /// `G W + scale · (G B) A`.
    fn input_gradient(&self, gradient: &[f32], rows: usize) -> Vec<f32> {
        let (inputs, outputs) = (self.inputs, self.outputs);
        let mut dx = vec![0.0; rows * inputs];
        threads::for_each_piece_of(
            &mut dx,
            ROWS * inputs,
            rows * inputs * outputs / 16,
            |index, dx| {
                let rows = dx.len() / inputs;
                let gradient = &gradient[index * ROWS * outputs..][..rows * outputs];
                let mut out = MatrixMut::new(dx, rows, inputs, inputs);
                multiply_rows(
                    &mut out,
                    Matrix::new(gradient, rows, outputs, outputs),
                    self.weight(),
                    Write::Replace,
                );
                if let Some(adapter) = &self.adapter {
                    let reduced = self.reduced_gradient(adapter, gradient, rows);
                    let reduced = Matrix::new(&reduced, rows, adapter.rank, adapter.rank);
                    multiply_rows(
                        &mut out,
                        reduced,
                        Matrix::new(adapter.down.values(), adapter.rank, inputs, inputs),
                        Write::Add,
                    );
                }
            },
        );
        dx
    }

    /// `scale · G B`, `[rows, rank]`.
    fn reduced_gradient(&self, adapter: &Adapter, gradient: &[f32], rows: usize) -> Vec<f32> {
        let mut reduced = vec![0.0; rows * adapter.rank];
        let gradient = Matrix::new(gradient, rows, self.outputs, self.outputs);
        multiply_rows(
            &mut MatrixMut::new(&mut reduced, rows, adapter.rank, adapter.rank),
            gradient,
            adapter.up(self.outputs),
            Write::Replace,
        );
        reduced.iter_mut().for_each(|value| *value *= adapter.scale);
        reduced
    }
}

impl Adapter {
    fn up(&self, outputs: usize) -> Matrix<'_> {
        Matrix::new(self.up.values(), outputs, self.rank, self.rank)
    }

    /// `scale · x Aᵀ`, `[rows, rank]`.
    fn reduced(&self, x: Matrix<'_>, rows: usize) -> Vec<f32> {
        let mut reduced = vec![0.0; rows * self.rank];
        let (_, inputs) = self.down.rows_and_columns();
        let down = Matrix::new(self.down.values(), self.rank, inputs, inputs);
        multiply_rows(
            &mut MatrixMut::new(&mut reduced, rows, self.rank, self.rank),
            x,
            down.transposed(),
            Write::Replace,
        );
        reduced.iter_mut().for_each(|value| *value *= self.scale);
        reduced
    }
}

/// `leftᵀ · right` of `[rows, m]` and `[rows, n]`: `[m, n]`. Tasks share no output, so nothing is added up across them.
fn product_over_rows((left, m): (&[f32], usize), (right, n): (&[f32], usize), rows: usize) -> Vec<f32> {
    let mut product = vec![0.0; m * n];
    threads::for_each_piece_of(&mut product, CHANNELS * n, rows * m * n / 16, |index, product| {
        let (start, count) = (index * CHANNELS, product.len() / n);
        let left = if rows == 0 { left } else { &left[start..] };
        let left = Matrix::new(left, rows, count, m).transposed();
        multiply(
            &mut MatrixMut::new(product, count, n, n),
            left,
            Matrix::new(right, rows, n, n),
            Write::Replace,
        );
    });
    product
}

/// Sums over all rows: pieces of fixed size, then the pieces in order.
fn column_sums(values: &[f32], columns: usize) -> Vec<f32> {
    let per_piece = threads::rows_per_piece(columns);
    let mut partial = vec![0.0; (values.len() / columns.max(1)).div_ceil(per_piece) * columns];
    threads::for_each_piece_of(&mut partial, columns, values.len(), |index, sums| {
        let start = index * per_piece * columns;
        let rows = &values[start..values.len().min(start + per_piece * columns)];
        math::vectorised(
            #[inline(always)]
            || {
                for row in rows.chunks_exact(columns) {
                    sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
                }
            },
        );
    });
    threads::sum_rows(&partial, columns)
}
