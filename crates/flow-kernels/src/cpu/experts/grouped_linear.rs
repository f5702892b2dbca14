//! A linear layer per expert over rows sorted by expert.

use super::grouping::{first_axis, indices};
use crate::cpu::activation::activation_gradient;
use crate::cpu::linear::{activated_again, column_sums, product_over_rows, product_work, rows_per_task};
use crate::host::matrix::{Matrix, MatrixMut, Precision, Write};
use crate::host::{math, threads};
use burn::backend::DispatchTensor;
use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::ops::{GroupedWeights, Grouping, Stash};
use flow_core::tensors::plain;
use flow_core::{Activation, autograd};
use std::ops::Range;
use std::sync::Arc;

/// Weights, and which rows are whose.
struct Layer {
    /// `[E, out, in]`.
    weight: CpuTensor,
    /// `[E, out]`.
    bias: CpuTensor,
    inputs: usize,
    outputs: usize,
    offsets: Vec<usize>,
    precision: Precision,
}

/// See [`ExpertOps::grouped_linear`](flow_core::ExpertOps::grouped_linear).
pub(super) fn grouped_linear(
    stash: &dyn Stash,
    x: &DispatchTensor,
    grouping: &Grouping,
    weights: &GroupedWeights,
    precision: Precision,
) -> DispatchTensor {
    let activation = weights.activation;
    let offsets = indices(&grouping.offsets);
    assert_eq!(
        offsets.len(),
        first_axis(&plain(&weights.weight)) + 1,
        "experts and where their rows begin"
    );
    autograd::apply(
        "grouped_linear",
        &[x, &weights.weight, &weights.bias],
        |plain, tracked| {
            let [x, weight, bias] = [0, 1, 2].map(|index: usize| CpuTensor::read(&plain[index]));
            let [_, outputs, inputs] = *weight.shape() else {
                panic!("weights of experts of {:?}, three axes expected", weight.shape())
            };
            let layer = Layer {
                weight,
                bias,
                inputs,
                outputs,
                offsets,
                precision,
            };
            let shape = [x.rows_and_columns().0, outputs];
            let keep_sum = activation != Activation::None && (tracked || stash.keeps("grouped_linear"));
            let mut activated = None;
            let mut kept = stash.through("grouped_linear", &mut || {
                let mut values = layer.forward(&x);
                if keep_sum {
                    let mut output = values.clone();
                    math::activate(activation, &mut output);
                    activated = Some(from_vec(output, &shape));
                } else {
                    math::activate(activation, &mut values);
                }
                vec![from_vec(values, &shape)]
            });
            let kept = kept.pop().expect("a linear layer keeps one tensor");
            let (output, sum) = match (keep_sum, activated) {
                (true, Some(output)) => (output, Some(kept)),
                (true, None) => (activated_again(&kept, activation), Some(kept)),
                (false, _) => (kept, None),
            };
            let backward: autograd::Backward = Arc::new(move |incoming| {
                let mut gradient = CpuTensor::read(incoming.gradient());
                if let Some(sum) = &sum {
                    let sum = CpuTensor::read(sum);
                    let through = activation_gradient(activation, sum.values(), gradient.values());
                    gradient = CpuTensor::read(&from_vec(through, &shape));
                }
                let gradient = gradient.values();
                let wanted = incoming.wanted;
                vec![
                    wanted[0].then(|| from_vec(layer.input_gradient(gradient), x.shape())),
                    wanted[1]
                        .then(|| from_vec(layer.weight_gradient(x.values(), gradient), layer.weight.shape())),
                    wanted[2].then(|| from_vec(layer.bias_gradient(gradient), layer.bias.shape())),
                ]
            });
            (output, backward)
        },
    )
}

impl Layer {
    fn experts(&self) -> usize {
        self.offsets.len() - 1
    }

    fn rows_of(&self, expert: usize) -> Range<usize> {
        self.offsets[expert]..self.offsets[expert + 1]
    }

    fn weight_of(&self, expert: usize) -> Matrix<'_> {
        let values = self.outputs * self.inputs;
        let weight = &self.weight.values()[expert * values..][..values];
        Matrix::new(weight, self.outputs, self.inputs, self.inputs)
    }

    /// `count` rows of `columns` values in tasks that may each meet several experts; `task(expert, rows, values)`. A row's
    /// bits do not depend on how rows are cut into tasks.
    fn by_expert(
        &self,
        columns: usize,
        task: impl Fn(usize, Range<usize>, &mut [f32]) + Send + Sync,
    ) -> Vec<f32> {
        let count = *self.offsets.last().expect("an end");
        let block = rows_per_task(count);
        let pieces = threads::Pieces {
            length: count * columns,
            size: block * columns,
        };
        let work = product_work(count, self.inputs, self.outputs);
        threads::build(pieces, work, threads::Start::Zeros, |index, values| {
            let start = index * block;
            let end = start + values.len() / columns;
            for expert in 0..self.experts() {
                let rows = self.rows_of(expert);
                let rows = rows.start.max(start)..rows.end.min(end);
                if !rows.is_empty() {
                    let part = (rows.start - start) * columns..(rows.end - start) * columns;
                    task(expert, rows, &mut values[part]);
                }
            }
        })
    }

    /// Before the activation.
    fn forward(&self, x: &CpuTensor) -> Vec<f32> {
        let (inputs, outputs) = (self.inputs, self.outputs);
        self.by_expert(outputs, |expert, rows, sums| {
            let bias = &self.bias.values()[expert * outputs..][..outputs];
            sums.chunks_exact_mut(outputs)
                .for_each(|sum| sum.copy_from_slice(bias));
            let count = rows.len();
            let x = Matrix::new(
                &x.values()[rows.start * inputs..rows.end * inputs],
                count,
                inputs,
                inputs,
            );
            let mut sums = MatrixMut::new(sums, count, outputs, outputs);
            let weight = self.weight_of(expert).transposed();
            self.precision.multiply_rows(&mut sums, x, weight, Write::Add);
        })
    }

    fn input_gradient(&self, gradient: &[f32]) -> Vec<f32> {
        let (inputs, outputs) = (self.inputs, self.outputs);
        self.by_expert(inputs, |expert, rows, dx| {
            let count = rows.len();
            let gradient = &gradient[rows.start * outputs..rows.end * outputs];
            let gradient = Matrix::new(gradient, count, outputs, outputs);
            let mut dx = MatrixMut::new(dx, count, inputs, inputs);
            let weight = self.weight_of(expert);
            self.precision
                .multiply_rows(&mut dx, gradient, weight, Write::Replace);
        })
    }

    fn weight_gradient(&self, x: &[f32], gradient: &[f32]) -> Vec<f32> {
        let of_expert = |expert| {
            let rows = self.rows_of(expert);
            if rows.is_empty() {
                return vec![0.0; self.outputs * self.inputs];
            }
            let x = &x[rows.start * self.inputs..rows.end * self.inputs];
            let gradient = &gradient[rows.start * self.outputs..rows.end * self.outputs];
            let (left, right) = ((gradient, self.outputs), (x, self.inputs));
            product_over_rows(self.precision, left, right, rows.len())
        };
        (0..self.experts()).flat_map(of_expert).collect()
    }

    fn bias_gradient(&self, gradient: &[f32]) -> Vec<f32> {
        let of_expert = |expert| {
            let rows = self.rows_of(expert);
            column_sums(
                &gradient[rows.start * self.outputs..rows.end * self.outputs],
                self.outputs,
            )
        };
        (0..self.experts()).flat_map(of_expert).collect()
    }
}
