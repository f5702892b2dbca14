//! Linear layers with bias, low-rank adapter and activation.

use super::elementwise::{activated, activation_gradient, function};
use super::operand::{Operand, done};
use crate::linear::has_trained_matrix;
use burn::backend::DispatchTensor;
use flow_core::exec::Stash;
use flow_core::kernels::LinearWeights;
use flow_core::{Activation, Plain, op};
use flow_kernels_cube::Element;
use flow_kernels_cube::product::{Factor, Product};
use std::sync::Arc;

/// A layer's weights in the type that products take.
#[derive(Debug)]
struct Layer {
    /// `[out, in]`.
    weight: Operand,
    /// `[out]`, as it came.
    bias: Option<Operand>,
    adapter: Option<Adapter>,
    inputs: usize,
    outputs: usize,
}

/// `scale · (x Aᵀ) Bᵀ` is added to the output; the product of `A` and `B` is never formed.
#[derive(Debug)]
struct Adapter {
    /// `A [rank, in]`.
    down: Operand,
    /// `B [out, rank]`.
    up: Operand,
    scale: f32,
    rank: usize,
}

/// The product in new memory of `shape`.
fn compute(product: Product<'_>, like: &Operand, shape: &[usize], element: Element) -> Operand {
    let output = like.room(shape, element);
    done("linear", product.compute(like.client(), &output.buffer(), None));
    output
}

/// As the CPU's, and what passes through `stash` is the same: the value before the activation if there is one, else the
/// result. Gradients of weights are f32.
pub(super) fn linear(
    stash: &dyn Stash,
    x: &DispatchTensor,
    weights: &LinearWeights,
    activation: Activation,
    element: Element,
) -> DispatchTensor {
    let mut inputs = vec![x];
    inputs.extend(weights.tensors());
    let keep_x = has_trained_matrix(weights);
    op::apply("linear", &inputs, |plain, tracked| {
        let x = Operand::read(&plain[0]);
        let (of_x, x_shape) = (x.element(), x.shape());
        let x = x.cast(element);
        let layer = Layer::read(&plain[1..], weights, element);
        let keep_sum = activation != Activation::None && (tracked || stash.keeps("linear"));
        let mut made = None;
        let mut kept = stash.through("linear", &mut || {
            let (sum, output) = layer.forward(&x, activation, keep_sum);
            match sum {
                Some(sum) => {
                    made = Some(output);
                    vec![sum.into_plain()]
                }
                None => vec![output.into_plain()],
            }
        });
        let kept = kept.pop().expect("a linear layer keeps one tensor");
        let sum = keep_sum.then(|| Operand::read(&kept));
        let output = match (&sum, made) {
            (Some(_), Some(output)) => output.into_plain(),
            (Some(sum), None) => activated(sum, activation).into_plain(),
            (None, _) => kept,
        };
        let x = keep_x.then_some(x);
        let backward: op::Backward = Arc::new(move |incoming| {
            let wanted = incoming.wanted;
            let gradient = Operand::read_as(incoming.gradient(), element);
            let bias = layer.bias.is_some() && wanted[2];
            let (gradient, dbias) = activation_gradient(sum.as_ref(), activation, gradient, bias);
            let dx = wanted[0].then(|| layer.input_gradient(&gradient, &x_shape).into_plain_as(of_x));
            let mut gradients = vec![dx];
            gradients.extend(layer.weight_gradients(x.as_ref(), &gradient, dbias, &wanted[1..]));
            gradients
        });
        (output, backward)
    })
}

impl Layer {
    /// `plain` holds the values of [`LinearWeights::tensors`].
    fn read(plain: &[Plain], weights: &LinearWeights, element: Element) -> Self {
        let weight = Operand::read_as(&plain[0], element);
        let (outputs, inputs) = weight.rows_and_columns();
        let bias = weights.bias.as_ref().map(|_| Operand::read(&plain[1]));
        // Beside bf16 products a bias may be f32, or bf16 too; any other type becomes the products'.
        let bias = bias.map(|bias| match bias.element() {
            Element::F32 => bias,
            _ => bias.cast(element),
        });
        let adapter = weights.adapter.as_ref().map(|(_, _, scale)| {
            let [down, up] =
                [plain.len() - 2, plain.len() - 1].map(|at| Operand::read_as(&plain[at], element));
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

    /// The sum before the activation, if wanted, and the output.
    fn forward(&self, x: &Operand, activation: Activation, keep_sum: bool) -> (Option<Operand>, Operand) {
        let (rows, _) = x.rows_and_columns();
        let (x_values, weight) = (x.buffer(), self.weight.buffer());
        let reduced = self.adapter.as_ref().map(|adapter| adapter.reduced(x, self.inputs));
        let reduced = reduced.as_ref().map(Operand::buffer);
        let up = self.adapter.as_ref().map(|adapter| (adapter.rank, adapter.up.buffer()));
        let second = reduced.as_ref().zip(up.as_ref()).map(|(reduced, (rank, up))| {
            (*rank, [Factor::new(reduced, *rank), Factor::new(up, *rank).transposed()])
        });
        let factors = [
            Factor::new(&x_values, self.inputs),
            Factor::new(&weight, self.inputs).transposed(),
        ];
        let product = Product {
            second,
            bias: self.bias.as_ref().map(Operand::buffer).as_ref(),
            activation: function(activation),
            ..Product::new([rows, self.inputs, self.outputs], factors)
        };
        let mut shape = x.shape();
        *shape.last_mut().expect("a linear layer's input has an axis") = self.outputs;
        let output = x.room(&shape, x.element());
        let sum = keep_sum.then(|| output.room_alike());
        let into = sum.as_ref().map(Operand::buffer);
        done("linear", product.compute(x.client(), &output.buffer(), into.as_ref()));
        (sum, output)
    }

    /// `G W + scale · (G B) A` for the `gradient` of the sum before the activation.
    fn input_gradient(&self, gradient: &Operand, shape: &[usize]) -> Operand {
        let (rows, _) = gradient.rows_and_columns();
        let (values, weight) = (gradient.buffer(), self.weight.buffer());
        let reduced = self.adapter.as_ref().map(|adapter| adapter.reduced_gradient(gradient));
        let reduced = reduced.as_ref().map(Operand::buffer);
        let down = self.adapter.as_ref().map(|adapter| (adapter.rank, adapter.down.buffer()));
        let second = reduced.as_ref().zip(down.as_ref()).map(|(reduced, (rank, down))| {
            (*rank, [Factor::new(reduced, *rank), Factor::new(down, self.inputs)])
        });
        let factors = [Factor::new(&values, self.outputs), Factor::new(&weight, self.inputs)];
        let product = Product {
            second,
            ..Product::new([rows, self.outputs, self.inputs], factors)
        };
        compute(product, gradient, shape, gradient.element())
    }

    /// Gradients of those of [`LinearWeights::tensors`] that are `wanted`, in their order, in f32.
    fn weight_gradients(
        &self,
        x: Option<&Operand>,
        gradient: &Operand,
        dbias: Option<Operand>,
        wanted: &[bool],
    ) -> Vec<Option<Plain>> {
        let x = || x.expect("the input is kept if a matrix is tracked");
        let mut wanted = wanted.iter().copied();
        let mut want = || wanted.next().expect("one flag per weight");
        let mut gradients = vec![want().then(|| over_rows(gradient, x()).into_plain())];
        if self.bias.is_some() {
            want();
            gradients.push(dbias.map(Operand::into_plain));
        }
        if let Some(adapter) = &self.adapter {
            gradients.push(want().then(|| over_rows(&adapter.reduced_gradient(gradient), x()).into_plain()));
            gradients.push(
                want().then(|| over_rows(gradient, &adapter.reduced(x(), self.inputs)).into_plain()),
            );
        }
        gradients
    }
}

impl Adapter {
    /// `scale · x Aᵀ`, `[rows, rank]`.
    fn reduced(&self, x: &Operand, inputs: usize) -> Operand {
        let (rows, _) = x.rows_and_columns();
        let (values, down) = (x.buffer(), self.down.buffer());
        let factors = [Factor::new(&values, inputs), Factor::new(&down, inputs).transposed()];
        let product = Product {
            scale: self.scale,
            ..Product::new([rows, inputs, self.rank], factors)
        };
        compute(product, x, &[rows, self.rank], x.element())
    }

    /// `scale · G B`, `[rows, rank]`.
    fn reduced_gradient(&self, gradient: &Operand) -> Operand {
        let (rows, outputs) = gradient.rows_and_columns();
        let (values, up) = (gradient.buffer(), self.up.buffer());
        let factors = [Factor::new(&values, outputs), Factor::new(&up, self.rank)];
        let product = Product {
            scale: self.scale,
            ..Product::new([rows, outputs, self.rank], factors)
        };
        compute(product, gradient, &[rows, self.rank], gradient.element())
    }
}

/// `leftᵀ · right` of `[rows, m]` and `[rows, n]`: `[m, n]` in f32.
fn over_rows(left: &Operand, right: &Operand) -> Operand {
    let ((rows, m), (_, n)) = (left.rows_and_columns(), right.rows_and_columns());
    let (left_values, right_values) = (left.buffer(), right.buffer());
    let factors = [Factor::new(&left_values, m).transposed(), Factor::new(&right_values, n)];
    compute(Product::new([m, rows, n], factors), left, &[m, n], Element::F32)
}
