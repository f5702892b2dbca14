//! Linear layers with bias, low-rank adapter and activation in one pass over the output.

use crate::cpu::activation::activation_gradient;
use crate::cpu::low_precision::{BackwardMatrix, ForwardMatrix, StoredMatrix};
use crate::host::matrix::{Matrix, MatrixMut, Precision, Write};
use crate::host::{math, threads};
use burn::backend::DispatchTensor;
use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::ops::{LinearWeights, Stash};
use flow_core::tensors::is_tracked;
use flow_core::{Activation, RawTensor, autograd};
use std::sync::Arc;

/// A layer's weights, with the matrix in the form `M`.
#[derive(Clone, Debug)]
pub(crate) struct Layer<M> {
    /// `[out, in]`.
    weight: M,
    bias: Option<CpuTensor>,
    adapter: Option<Adapter>,
    inputs: usize,
    outputs: usize,
    precision: Precision,
}

/// A layer's weights as they are stored: what backward keeps.
pub(crate) type StoredValues = Layer<StoredMatrix>;

/// A layer's weights with the matrix as forward multiplies with it: for one pass.
pub(crate) type ForwardValues = Layer<ForwardMatrix>;

/// A layer's weights with the matrix as backward multiplies with it: for one pass.
pub(crate) type BackwardValues = Layer<BackwardMatrix>;

/// `scale · (x Aᵀ) Bᵀ` is added to the output; the product of `A` and `B` is never formed.
#[derive(Clone, Debug)]
struct Adapter {
    /// `A [rank, in]`.
    down: CpuTensor,
    /// `B [out, rank]`.
    up: CpuTensor,
    scale: f32,
    rank: usize,
    precision: Precision,
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
    precision: Precision,
) -> DispatchTensor {
    let mut inputs = vec![x];
    inputs.extend(weights.tensors());
    let keep_x = has_trained_matrix(weights);
    autograd::apply("linear", &inputs, |plain, tracked| {
        let x = CpuTensor::read(&plain[0]);
        let stored = StoredValues::read(&plain[1..], weights, precision);
        let values = stored.for_forward();
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
        let backward: autograd::Backward = Arc::new(move |incoming| {
            stored.for_backward().backward(
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

/// Whether the gradient of a matrix is wanted: only then the layer's input is kept.
pub(crate) fn has_trained_matrix(weights: &LinearWeights) -> bool {
    let adapter = weights.adapter.as_ref();
    is_tracked(&weights.weight) || adapter.is_some_and(|(a, b, _)| is_tracked(a) || is_tracked(b))
}

/// The activation of a sum that was kept.
pub(crate) fn activated_again(sum: &RawTensor, activation: Activation) -> RawTensor {
    let sum = CpuTensor::read(sum);
    let output = threads::build_zeros(sum.values().len(), threads::PIECE, |index, output| {
        math::activate_into(
            activation,
            &sum.values()[index * threads::PIECE..][..output.len()],
            output,
        );
    });
    from_vec(output, sum.shape())
}

impl StoredValues {
    /// `plain` holds the values of [`LinearWeights::tensors`].
    pub(crate) fn read(plain: &[RawTensor], weights: &LinearWeights, precision: Precision) -> Self {
        let weight = StoredMatrix::read(&plain[0], weights.low_precision);
        let (outputs, inputs) = weight.rows_and_columns();
        let bias = weights.bias.as_ref().map(|_| CpuTensor::read(&plain[1]));
        let adapter = weights.adapter.as_ref().map(|(_, _, scale)| {
            let [down, up] = [plain.len() - 2, plain.len() - 1].map(|at| CpuTensor::read(&plain[at]));
            let rank = down.shape()[0];
            Adapter {
                down,
                up,
                scale: *scale,
                rank,
                precision,
            }
        });
        Self {
            weight,
            bias,
            adapter,
            inputs,
            outputs,
            precision,
        }
    }

    /// What forward computes with.
    pub(crate) fn for_forward(&self) -> ForwardValues {
        self.with(self.weight.for_forward())
    }

    /// What backward computes with.
    pub(crate) fn for_backward(&self) -> BackwardValues {
        self.with(self.weight.for_backward())
    }

    fn with<M>(&self, weight: M) -> Layer<M> {
        Layer {
            weight,
            bias: self.bias.clone(),
            adapter: self.adapter.clone(),
            inputs: self.inputs,
            outputs: self.outputs,
            precision: self.precision,
        }
    }
}

impl ForwardValues {
    /// Length of a row of the result.
    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Work of the layer for `rows` rows, in the unit of [`threads::worth_threads`].
    pub(crate) fn work(&self, rows: usize) -> usize {
        product_work(rows, self.inputs, self.outputs)
    }

    /// What a result holds before [`forward_rows`](Self::forward_rows).
    pub(crate) fn start(&self) -> threads::Start<'_> {
        let bias = self.bias.as_ref();
        bias.map_or(threads::Start::Zeros, |bias| threads::Start::Rows(bias.values()))
    }

    /// The sum before the activation, if wanted, and the output.
    fn forward(&self, x: &CpuTensor, activation: Activation, keep_sum: bool) -> (Option<Vec<f32>>, Vec<f32>) {
        let rows = x.values().len().checked_div(self.inputs).unwrap_or(0);
        let (work, block) = (product_work(rows, self.inputs, self.outputs), rows_per_task(rows));
        let pieces = threads::Pieces {
            length: rows * self.outputs,
            size: block * self.outputs,
        };
        let start = self.start();
        if keep_sum {
            let (sum, output) = threads::build_pair(pieces, pieces, work, start, |index, sum, output| {
                self.forward_rows(x.values(), index * block, sum);
                math::activate_into(activation, sum, output);
            });
            (Some(sum), output)
        } else {
            let output = threads::build(pieces, work, start, |index, output| {
                self.forward_rows(x.values(), index * block, output);
                math::activate(activation, output);
            });
            (None, output)
        }
    }

    /// Adds the products of the rows from `start` on to `output`, which holds the bias.
    pub(crate) fn forward_rows(&self, x: &[f32], start: usize, output: &mut [f32]) {
        let (inputs, outputs) = (self.inputs, self.outputs);
        let rows = output.len() / outputs;
        let x = &x[start * inputs..][..rows * inputs];
        let (bias, shape) = (self.bias.as_ref(), [rows, inputs, outputs]);
        self.weight.multiply_rows(output, x, shape, bias, self.precision);
        if let Some(adapter) = &self.adapter {
            let reduced = adapter.reduced(x, inputs, rows);
            let reduced = Matrix::new(&reduced, rows, adapter.rank, adapter.rank);
            let mut output = MatrixMut::new(output, rows, outputs, outputs);
            self.precision
                .multiply_rows(&mut output, reduced, adapter.up(outputs).transposed(), Write::Add);
        }
    }
}

impl BackwardValues {
    fn backward(
        &self,
        x: Option<&CpuTensor>,
        x_shape: &[usize],
        sum: Option<&RawTensor>,
        activation: Activation,
        gradient: &RawTensor,
        wanted: &[bool],
    ) -> Vec<Option<RawTensor>> {
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
        let dx = wanted[0].then(|| from_vec(self.input_gradient(gradient), x_shape));
        let x = x.map(CpuTensor::values);
        let mut gradients = vec![dx];
        gradients.extend(self.weight_gradients(x, gradient, &wanted[1..]));
        gradients
    }

    /// Gradients of those of [`LinearWeights::tensors`] that are `wanted`, in their order, for the `gradient` of the sum
    /// before the activation.
    pub(crate) fn weight_gradients(
        &self,
        x: Option<&[f32]>,
        gradient: &[f32],
        wanted: &[bool],
    ) -> Vec<Option<RawTensor>> {
        let rows = self.rows_of(gradient);
        let x = || x.expect("the input is kept if a matrix is tracked");
        let mut wanted = wanted.iter().copied();
        let mut want = || wanted.next().expect("one flag per weight");
        let mut gradients = Vec::new();
        gradients.push(want().then(|| {
            let (x, gradient) = ((x(), self.inputs), (gradient, self.outputs));
            from_vec(
                product_over_rows(self.precision, gradient, x, rows),
                &[self.outputs, self.inputs],
            )
        }));
        if self.bias.is_some() {
            gradients.push(want().then(|| from_vec(column_sums(gradient, self.outputs), &[self.outputs])));
        }
        if let Some(adapter) = &self.adapter {
            gradients.push(want().then(|| {
                let reduced = self.reduced_gradient(adapter, gradient, rows);
                from_vec(
                    product_over_rows(self.precision, (&reduced, adapter.rank), (x(), self.inputs), rows),
                    &[adapter.rank, self.inputs],
                )
            }));
            gradients.push(want().then(|| {
                let reduced = adapter.reduced(x(), self.inputs, rows);
                from_vec(
                    product_over_rows(
                        self.precision,
                        (gradient, self.outputs),
                        (&reduced, adapter.rank),
                        rows,
                    ),
                    &[self.outputs, adapter.rank],
                )
            }));
        }
        gradients
    }

    fn rows_of(&self, gradient: &[f32]) -> usize {
        gradient.len().checked_div(self.outputs).unwrap_or(0)
    }

    /// `G W + scale · (G B) A` for the `gradient` of the sum before the activation; the first product may be one of codes.
    pub(crate) fn input_gradient(&self, gradient: &[f32]) -> Vec<f32> {
        let rows = self.rows_of(gradient);
        let (inputs, outputs) = (self.inputs, self.outputs);
        let (work, block) = (product_work(rows, inputs, outputs), rows_per_task(rows));
        let pieces = threads::Pieces {
            length: rows * inputs,
            size: block * inputs,
        };
        threads::build(pieces, work, threads::Start::Zeros, |index, dx| {
            let rows = dx.len() / inputs;
            let gradient = &gradient[index * block * outputs..][..rows * outputs];
            self.weight
                .multiply_rows(dx, gradient, [rows, inputs, outputs], self.precision);
            if let Some(adapter) = &self.adapter {
                let reduced = self.reduced_gradient(adapter, gradient, rows);
                let reduced = Matrix::new(&reduced, rows, adapter.rank, adapter.rank);
                let mut dx = MatrixMut::new(dx, rows, inputs, inputs);
                self.precision
                    .multiply_rows(&mut dx, reduced, adapter.down(inputs), Write::Add);
            }
        })
    }

    /// `scale · G B`, `[rows, rank]`.
    fn reduced_gradient(&self, adapter: &Adapter, gradient: &[f32], rows: usize) -> Vec<f32> {
        adapter.scaled_product((gradient, self.outputs), adapter.up(self.outputs), rows)
    }
}

impl Adapter {
    fn down(&self, inputs: usize) -> Matrix<'_> {
        Matrix::new(self.down.values(), self.rank, inputs, inputs)
    }

    fn up(&self, outputs: usize) -> Matrix<'_> {
        Matrix::new(self.up.values(), outputs, self.rank, self.rank)
    }

    /// `scale · x Aᵀ`, `[rows, rank]`.
    fn reduced(&self, x: &[f32], inputs: usize, rows: usize) -> Vec<f32> {
        self.scaled_product((x, inputs), self.down(inputs).transposed(), rows)
    }

    /// `scale · left right` of `[rows, depth]` and `[depth, rank]`.
    fn scaled_product(&self, (left, depth): (&[f32], usize), right: Matrix<'_>, rows: usize) -> Vec<f32> {
        let (work, block) = (product_work(rows, depth, self.rank), rows_per_task(rows));
        let pieces = threads::Pieces {
            length: rows * self.rank,
            size: block * self.rank,
        };
        threads::build(pieces, work, threads::Start::Zeros, |index, product| {
            let rows = product.len() / self.rank;
            let left = Matrix::new(&left[index * block * depth..], rows, depth, depth);
            self.precision.multiply_rows(
                &mut MatrixMut::new(product, rows, self.rank, self.rank),
                left,
                right,
                Write::Replace,
            );
            product.iter_mut().for_each(|value| *value *= self.scale);
        })
    }
}

/// `leftᵀ · right` of `[rows, m]` and `[rows, n]`: `[m, n]`. Tasks share no output, so nothing is added up across them.
pub(crate) fn product_over_rows(
    precision: Precision,
    (left, m): (&[f32], usize),
    (right, n): (&[f32], usize),
    rows: usize,
) -> Vec<f32> {
    // A function of the shape alone: for deep products the library's order of additions depends on the number of columns.
    let channels = m.div_ceil(2).next_multiple_of(16).clamp(32, 128);
    let pieces = threads::Pieces {
        length: m * n,
        size: channels * n,
    };
    threads::build(
        pieces,
        product_work(rows, m, n),
        threads::Start::Zeros,
        |index, product| {
            let (start, count) = (index * channels, product.len() / n);
            let left = if rows == 0 { left } else { &left[start..] };
            let left = Matrix::new(left, rows, count, m).transposed();
            precision.multiply(
                &mut MatrixMut::new(product, count, n, n),
                left,
                Matrix::new(right, rows, n, n),
                Write::Replace,
            );
        },
    )
}

/// Work of a matrix product in the unit of [`threads::worth_threads`].
pub(crate) fn product_work(rows: usize, inputs: usize, outputs: usize) -> usize {
    rows * inputs * outputs / 16
}

/// Rows that one task computes: one task per thread if they are few, because every task packs the weight anew, and no
/// more than fit into a cache with their results. A row's bits do not depend on it.
pub(crate) fn rows_per_task(rows: usize) -> usize {
    rows.div_ceil(rayon::current_num_threads())
        .next_multiple_of(16)
        .clamp(64, 512)
}

/// Sums over all rows: pieces of fixed size, then the pieces in order.
pub(crate) fn column_sums(values: &[f32], columns: usize) -> Vec<f32> {
    let per_piece = threads::rows_per_piece(columns);
    let length = (values.len() / columns.max(1)).div_ceil(per_piece) * columns;
    let pieces = threads::Pieces {
        length,
        size: columns,
    };
    let partial = threads::build(pieces, values.len(), threads::Start::Zeros, |index, sums| {
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
