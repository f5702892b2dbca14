//! Linear layers with bias, low-rank adapter and activation.

use super::adapter::{Adapter, Factors, factors};
use super::elementwise::{Gated, activated, activated_input, activation_gradient, function};
use super::layer_input::{InputForms, LayerInput};
use super::low_precision::{Pair, StoredMatrix, quantised};
use super::operand::Operand;
use super::products::{Products, matrix};
use crate::cpu::linear::has_trained_matrix;
use burn::backend::DispatchTensor;
use flow_core::ops::{LinearWeights, Stash};
use flow_core::tensors::zeros_like;
use flow_core::{Activation, RawTensor, autograd};
use flow_kernels_cube::Element;
use flow_matmul_cube::problem::{Epilogue, Layout, Matmul};
use flow_matmul_cube::tensors::{Gate as MatmulGate, Matrix, Operands};
use std::cell::OnceCell;
use std::sync::Arc;

/// The name under which results pass through the stash.
pub(super) const LINEAR: &str = "linear";

/// A layer's weights in the type that products take, but for a matrix in low precision, which each product widens, or of which forward, and
/// backward for the gradient of the input, multiply the codes.
#[derive(Debug)]
pub(super) struct Layer {
    weight: StoredMatrix,
    /// `[out]`.
    bias: Option<Operand>,
    adapter: Option<Adapter>,
    outputs: usize,
    products: Arc<Products>,
}

/// As the CPU's, and what passes through `stash` is the same: the value before the activation if there is one, else the
/// result.
pub(super) fn linear(
    stash: &dyn Stash,
    x: &DispatchTensor,
    weights: &LinearWeights,
    activation: Activation,
    element: Element,
    products: &Arc<Products>,
) -> DispatchTensor {
    let mut inputs = vec![x];
    inputs.extend(weights.tensors());
    let keep_x = has_trained_matrix(weights);
    autograd::apply("linear", &inputs, |plain, tracked| {
        let x = Operand::read(&plain[0]);
        let (of_x, x_shape) = (x.element(), x.shape());
        let x = x.cast(element);
        let layer = Layer::read(&plain[1..], weights, element, products);
        let keep_sum = activation != Activation::None && (tracked || stash.keeps(LINEAR));
        let (output, sum) = layer.through(stash, activation, keep_sum, || LayerInput::of_numbers(x.clone()));
        let x = keep_x.then_some(x);
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let wanted = incoming.wanted;
            let gradient = Operand::read_as(incoming.gradient(), element);
            let bias = layer.has_bias() && wanted[2];
            let (gradient, dbias) = activation_gradient(sum.as_ref(), activation, gradient, bias);
            let gradient = OfSums::new(gradient);
            let dx = wanted[0].then(|| {
                layer
                    .input_gradient(&gradient, &x_shape, Then::Nothing)
                    .into_plain_as(of_x)
            });
            let mut gradients = vec![dx];
            gradients.extend(layer.weight_gradients(x.as_ref(), &gradient, dbias, &wanted[1..]));
            gradients
        });
        (output.into_plain(), backward)
    })
}

/// A linear layer's result, kept or computed.
pub(super) fn kept(stash: &dyn Stash, compute: impl FnOnce() -> Operand) -> Operand {
    let mut compute = Some(compute);
    let mut kept = stash.through(LINEAR, &mut || {
        let compute = compute.take().expect("a stash computes a value once");
        vec![compute().into_plain()]
    });
    Operand::read(&kept.pop().expect("a linear layer keeps one tensor"))
}

/// What becomes of the gradient of a layer's input, in the same pass.
#[derive(Clone, Copy, Debug)]
pub(super) enum Then<'a> {
    /// Nothing.
    Nothing,
    /// It is added to another gradient of the same tensor.
    Plus(&'a Operand),
    /// It goes through the activation before the layer, which was applied to this sum.
    Through(&'a Operand, Activation),
}

/// The sum before a layer's activation, kept or computed.
#[derive(Debug)]
pub(super) struct Summed {
    pub sum: Operand,
    /// What the activation made of it, if it was computed now.
    made: Option<Operand>,
}

/// The gradient of a layer's sums, and what several of its products need of it.
#[derive(Debug)]
pub(super) struct OfSums {
    pub gradient: Operand,
    /// `G · scale B`, `[rows, rank]`: for the gradients of the layer's input and of `A`.
    reduced: OnceCell<Operand>,
}

impl OfSums {
    pub fn new(gradient: Operand) -> Self {
        Self {
            gradient,
            reduced: OnceCell::new(),
        }
    }

    fn reduced(&self, adapter: &Adapter, products: &Products) -> &Operand {
        self.reduced
            .get_or_init(|| adapter.reduced_gradient(&self.gradient, products))
    }
}

impl Summed {
    /// What the activation makes of it.
    pub fn activated(&mut self, activation: Activation) -> Operand {
        self.made
            .take()
            .unwrap_or_else(|| activated(&self.sum, activation))
    }

    /// The same as the input of a layer that reads it in such `forms`.
    pub fn layer_input(&mut self, activation: Activation, forms: InputForms) -> LayerInput {
        match self.made.take() {
            Some(made) => LayerInput::of_numbers(made),
            None => activated_input(&self.sum, activation, forms),
        }
    }
}

impl Layer {
    /// `plain` holds the values of [`LinearWeights::tensors`].
    pub fn read(
        plain: &[RawTensor],
        weights: &LinearWeights,
        element: Element,
        products: &Arc<Products>,
    ) -> Self {
        let adapter = factors(plain, weights).map(|factors| Adapter::read(factors, element));
        Self::with(adapter, plain, weights, element, products)
    }

    fn with(
        adapter: Option<Adapter>,
        plain: &[RawTensor],
        weights: &LinearWeights,
        element: Element,
        products: &Arc<Products>,
    ) -> Self {
        let weight = StoredMatrix::read(&plain[0], weights.low_precision, element);
        let (outputs, _) = weight.rows_and_columns();
        let bias = weights
            .bias
            .as_ref()
            .map(|_| Operand::read_as(&plain[1], element));
        Self {
            weight,
            bias,
            adapter,
            outputs,
            products: products.clone(),
        }
    }

    /// Layers of one input: what their adapters have in common is computed for all at once.
    pub fn read_all(
        layers: &[(&[RawTensor], &LinearWeights)],
        element: Element,
        products: &Arc<Products>,
    ) -> Vec<Self> {
        let all: Option<Vec<Factors<'_>>> = layers
            .iter()
            .map(|(plain, weights)| factors(plain, weights))
            .collect();
        match all.and_then(|all| Adapter::read_together(&all, element)) {
            Some(together) => (layers.iter().zip(together))
                .map(|((plain, weights), adapter)| {
                    Self::with(Some(adapter), plain, weights, element, products)
                })
                .collect(),
            None => (layers.iter())
                .map(|(plain, weights)| Self::read(plain, weights, element, products))
                .collect(),
        }
    }

    /// In which forms forward reads its input.
    pub fn input_forms(&self) -> InputForms {
        let codes = self.weight.multiplies_codes();
        InputForms {
            numbers: !codes || self.adapter.is_some(),
            codes,
        }
    }

    /// The sum, through the stash. If it is computed now, what `activation` makes of it is there as well.
    pub fn summed(
        &self,
        stash: &dyn Stash,
        activation: Activation,
        x: impl FnOnce() -> LayerInput,
    ) -> Summed {
        let mut made = None;
        let sum = kept(stash, || {
            let (sum, output) = self.forward(&x(), activation, activation != Activation::None);
            made = sum.is_some().then(|| output.clone());
            sum.unwrap_or(output)
        });
        Summed { sum, made }
    }

    /// The output, and the sum before the activation if `keep_sum`; one of them through the stash.
    pub fn through(
        &self,
        stash: &dyn Stash,
        activation: Activation,
        keep_sum: bool,
        x: impl FnOnce() -> LayerInput,
    ) -> (Operand, Option<Operand>) {
        if !keep_sum {
            return (kept(stash, || self.forward(&x(), activation, false).1), None);
        }
        let mut summed = self.summed(stash, activation, x);
        (summed.activated(activation), Some(summed.sum))
    }

    /// The sum before the activation, if wanted, and the output.
    pub fn forward(
        &self,
        x: &LayerInput,
        activation: Activation,
        keep_sum: bool,
    ) -> (Option<Operand>, Operand) {
        let output = self.empty(x);
        let sum = keep_sum.then(|| output.empty_like());
        let epilogue = function(activation).map_or(Epilogue::Store, |activation| Epilogue::Activate {
            activation,
            keep_sum,
        });
        self.sums(x, epilogue, sum.as_ref(), None, &output);
        (sum, output)
    }

    /// The output.
    pub fn output(&self, x: &LayerInput) -> Operand {
        self.forward(x, Activation::None, false).1
    }

    /// The `residual` plus the output, gated; the output itself is never a tensor.
    pub fn gated(&self, x: &LayerInput, residual: &Operand, gated: &Gated) -> Operand {
        let call = &gated.call;
        let gate = MatmulGate {
            handle: gated.modulation.buffer().handle,
            start: call.gate * call.channels,
            stride: call.chunks * call.channels,
        };
        let output = residual.empty_like();
        let epilogue = Epilogue::GateAndAdd { tokens: call.tokens };
        self.sums(x, epilogue, Some(residual), Some(&gate), &output);
        output
    }

    /// Room for the output.
    fn empty(&self, x: &LayerInput) -> Operand {
        let x = x.like();
        let mut shape = x.shape();
        *shape.last_mut().expect("a linear layer's input has an axis") = self.outputs;
        x.empty(&shape, x.element())
    }

    /// `x Wᵀ + b + (x Aᵀ) (scale · B)ᵀ`, then the epilogue. The first product may be one of codes, of the matrix and of `x`. The adapter
    /// reads `x` as numbers.
    fn sums(
        &self,
        x: &LayerInput,
        epilogue: Epilogue,
        other: Option<&Operand>,
        gate: Option<&MatmulGate>,
        output: &Operand,
    ) {
        let like = x.like();
        let (rows, inputs) = like.rows_and_columns();
        if rows == 0 {
            return;
        }
        let weight = self.weight.quantised();
        let pair = match &weight {
            Some(weight) => Pair::of_codes(x.codes(), weight),
            None => Pair::of_numbers(x.numbers(), &self.weight.widened()),
        };
        let call = Matmul {
            rank: self.rank(),
            bias: self.bias.is_some(),
            epilogue,
            storage: pair.storage,
            ..Matmul::plain(Layout::Nt, [rows, self.outputs, inputs], like.element())
        };
        let adapter = self.adapter.as_ref();
        let low_rank =
            adapter.map(|adapter| [adapter.reduced(x.numbers(), &self.products), adapter.up.clone()]);
        let bias = self.bias.as_ref().map(|bias| bias.buffer().handle);
        let other = other.map(matrix);
        let ([a, b], d) = (&pair.factors, matrix(output));
        let operands = Operands {
            scales: pair.scales(),
            low_rank: low_rank.as_ref().map(|[t, u]| [t, u]),
            bias: bias.as_ref(),
            gate,
            other: other.as_ref(),
            ..Operands::new(a, b, &d)
        };
        self.products.run(like, call, &operands);
    }

    /// `G W + (G · scale B) A`, and what becomes of it. The first product may be one of codes: of rows of `G`, and of the matrix's
    /// transposed copy, which of a trained one is made now. The adapter reads `G` as it is.
    pub fn input_gradient(&self, of_sums: &OfSums, shape: &[usize], then: Then<'_>) -> Operand {
        let gradient = &of_sums.gradient;
        let (rows, outputs) = gradient.rows_and_columns();
        let (_, inputs) = self.weight.rows_and_columns();
        let output = gradient.empty(shape, gradient.element());
        if rows == 0 {
            return output;
        }
        let (epilogue, other) = match then {
            Then::Nothing => (Epilogue::Store, None),
            Then::Plus(other) => (Epilogue::Add, Some(other)),
            Then::Through(sum, activation) => match function(activation) {
                Some(activation) => (Epilogue::TimesDerivative(activation), Some(sum)),
                None => (Epilogue::Store, None),
            },
        };
        let (layout, pair) = match &self.weight.transposed() {
            Some(weight) => (Layout::Nt, Pair::of_codes(&quantised(gradient), weight)),
            None => (Layout::Nn, Pair::of_numbers(gradient, &self.weight.widened())),
        };
        let call = Matmul {
            rank: self.rank(),
            epilogue,
            storage: pair.storage,
            ..Matmul::plain(layout, [rows, inputs, outputs], gradient.element())
        };
        let reduced = self
            .adapter
            .as_ref()
            .map(|adapter| of_sums.reduced(adapter, &self.products));
        let low_rank = reduced.zip(self.adapter.as_ref());
        let low_rank = low_rank.map(|(reduced, adapter)| [matrix(reduced), adapter.down_in(layout)]);
        let other = other.map(matrix);
        let ([a, b], d) = (&pair.factors, matrix(&output));
        let operands = Operands {
            scales: pair.scales(),
            low_rank: low_rank.as_ref().map(|[t, u]| [t, u]),
            other: other.as_ref(),
            ..Operands::new(a, b, &d)
        };
        self.products.run(gradient, call, &operands);
        output
    }

    /// Whether there is a bias.
    pub fn has_bias(&self) -> bool {
        self.bias.is_some()
    }

    /// The gradient of the bias, where that of the sums is there already.
    pub fn bias_gradient(&self, of_sums: &OfSums, wanted: &[bool]) -> Option<Operand> {
        let wanted = self.has_bias() && wanted[1];
        let gradient = of_sums.gradient.clone();
        let (_, dbias) = activation_gradient(None, Activation::None, gradient, wanted);
        dbias
    }

    fn rank(&self) -> usize {
        self.adapter.as_ref().map_or(0, |adapter| adapter.rank)
    }

    /// Gradients of those of [`LinearWeights::tensors`] that are `wanted`, in their order: that of the matrix as the products
    /// store it, the others in f32.
    pub fn weight_gradients(
        &self,
        x: Option<&Operand>,
        of_sums: &OfSums,
        dbias: Option<Operand>,
        wanted: &[bool],
    ) -> Vec<Option<RawTensor>> {
        let (products, gradient) = (&self.products, &of_sums.gradient);
        let x = || x.expect("the input is kept if a matrix is tracked");
        let mut wanted = wanted.iter().copied();
        let mut want = || wanted.next().expect("one flag per weight");
        let stored = products.gradients;
        let mut gradients =
            vec![want().then(|| over_rows(gradient, &matrix(x()), products, stored).into_plain())];
        if self.bias.is_some() {
            want();
            gradients.push(dbias.map(Operand::into_plain));
        }
        if let Some(adapter) = &self.adapter {
            gradients.push(want().then(|| {
                let reduced = of_sums.reduced(adapter, products);
                over_rows(reduced, &matrix(x()), products, Element::F32).into_plain()
            }));
            gradients.push(want().then(|| {
                let reduced = adapter.reduced(x(), products);
                let product = over_rows(gradient, &reduced, products, Element::F32);
                product.times(adapter.scale, Element::F32).into_plain()
            }));
        }
        gradients
    }
}

/// `leftᵀ · right` of `[rows, m]` and `[rows, n]`, added up in f32: `[m, n]`, stored as `element`.
fn over_rows(left: &Operand, right: &Matrix, products: &Products, element: Element) -> Operand {
    let ((rows, m), n) = (left.rows_and_columns(), right.columns);
    let call = Matmul {
        output: element,
        ..Matmul::plain(Layout::Tn, [m, n, rows], left.element())
    };
    let output = left.empty(&[m, n], element);
    if rows == 0 {
        // No product has nothing to add up.
        return Operand::read(&zeros_like(&output.into_plain()));
    }
    products.run(left, call, &Operands::new(&matrix(left), right, &matrix(&output)));
    output
}
