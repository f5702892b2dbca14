//! Activations, gated residuals, rotary embeddings and token embeddings.

use super::layer_input::{InputForms, LayerInput};
use super::operand::{Operand, expect_launched};
use burn::backend::DispatchTensor;
use burn::tensor::DType;
use flow_core::{Activation, RawTensor, autograd, cube};
use flow_kernels_cube::Element;
use flow_kernels_cube::activation::{self, Activation as Function};
use flow_kernels_cube::embedding::Embedding;
use flow_kernels_cube::gated_residual::Gate;
use flow_kernels_cube::rotary::Rotary;
use std::sync::Arc;

const GATE: &str = "gated_residual";

/// The kernels' name of a function; none for the identity.
pub(super) fn function(activation: Activation) -> Option<Function> {
    match activation {
        Activation::None => None,
        Activation::Silu => Some(Function::Silu),
        Activation::GeluTanh => Some(Function::GeluTanh),
    }
}

/// The result of a function of `x`.
pub(super) fn activated(x: &Operand, activation: Activation) -> Operand {
    let Some(function) = function(activation) else {
        return x.clone();
    };
    let y = x.empty_like();
    expect_launched(
        "activation",
        activation::forward(x.client(), &x.buffer(), &y.buffer(), function),
    );
    y
}

/// The result of a function of `x` in the forms that a layer reads it in. Codes come out of the kernel that computes the function.
pub(super) fn activated_input(x: &Operand, activation: Activation, forms: InputForms) -> LayerInput {
    let made = function(activation).and_then(|function| {
        LayerInput::made_as_codes("activation", x, forms, |numbers, codes| {
            let (_, columns) = x.rows_and_columns();
            activation::forward_codes(x.client(), &x.buffer(), columns, numbers, codes, function)
        })
    });
    made.unwrap_or_else(|| LayerInput::of_numbers(activated(x, activation)))
}

/// The gradient of what a function was applied to, and its sums over all rows if `bias`.
pub(super) fn activation_gradient(
    x: Option<&Operand>,
    activation: Activation,
    gradient: Operand,
    bias: bool,
) -> (Operand, Option<Operand>) {
    let (_, columns) = gradient.rows_and_columns();
    let dbias = bias.then(|| gradient.empty(&[columns], Element::F32));
    let x = x.filter(|_| activation != Activation::None);
    let dx = x.map(Operand::empty_like);
    if dx.is_none() && dbias.is_none() {
        return (gradient, None);
    }
    let [of_x, of_dx, of_dbias] = [x, dx.as_ref(), dbias.as_ref()].map(|it| it.map(Operand::buffer));
    let call = activation::Backward {
        columns,
        activation: function(activation),
        x: of_x.as_ref(),
        gradient: &gradient.buffer(),
        dx: of_dx.as_ref(),
        dbias: of_dbias.as_ref(),
    };
    expect_launched("activation", activation::backward(gradient.client(), call));
    (dx.unwrap_or(gradient), dbias)
}

/// As the CPU's; backward keeps `x`.
pub(super) fn activation(x: &DispatchTensor, activation: Activation, element: Element) -> DispatchTensor {
    autograd::apply("activation", &[x], |inputs, _| {
        let x = Operand::read(&inputs[0]);
        let of = x.element();
        let x = x.cast(element);
        let y = activated(&x, activation);
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let gradient = Operand::read_as(incoming.gradient(), element);
            let (dx, _) = activation_gradient(Some(&x), activation, gradient, false);
            vec![Some(dx.into_plain_as(of))]
        });
        (y.into_plain(), backward)
    })
}

/// The gates of a branch. What it is added to is read by forward alone, so that backward does not keep it.
#[derive(Debug)]
pub(super) struct Gated {
    /// `[B, K, D]`.
    pub modulation: Operand,
    pub call: Gate,
    /// Types of the gradients of the residual and of the modulation.
    of: [Element; 2],
}

impl Gated {
    /// Reads the operands, to be computed on in `element`: what the branch is added to, `[B, S, D]`, and the gates.
    pub fn read(
        residual: &RawTensor,
        modulation: &RawTensor,
        gate: usize,
        element: Element,
    ) -> (Operand, Self) {
        let [residual, modulation] = [residual, modulation].map(Operand::read);
        let of = [residual.element(), modulation.element()];
        let [residual, modulation] = [residual, modulation].map(|operand| operand.cast(element));
        let [batch, tokens, channels] = *residual.shape() else {
            panic!("residual of {:?}, three axes expected", residual.shape())
        };
        let call = Gate {
            batch,
            tokens,
            channels,
            chunks: modulation.shape()[1],
            gate,
        };
        let gated = Self { modulation, call, of };
        (residual, gated)
    }

    /// The result for a branch that is a tensor.
    pub fn with(&self, residual: &Operand, branch: &Operand) -> Operand {
        let y = residual.empty_like();
        let forward = self.call.forward(
            y.client(),
            &residual.buffer(),
            &branch.buffer(),
            &self.modulation.buffer(),
            &y.buffer(),
        );
        expect_launched(GATE, forward);
        y
    }

    /// The gradient of the residual for the `gradient` of the result.
    pub fn residual_gradient(&self, gradient: &Operand) -> RawTensor {
        gradient.clone().into_plain_as(self.of[0])
    }

    /// Gradients of the branch, if `want_branch`, and of the modulation, if there is the `branch`.
    pub fn backward(
        &self,
        branch: Option<&Operand>,
        gradient: &Operand,
        want_branch: bool,
    ) -> (Option<Operand>, Option<RawTensor>) {
        let dbranch = want_branch.then(|| gradient.empty_like());
        let dmodulation = branch.map(|_| self.modulation.empty_like());
        let backward = self.call.backward(
            gradient.client(),
            // Read for the gradient of the modulation only.
            &branch.unwrap_or(gradient).buffer(),
            &self.modulation.buffer(),
            &gradient.buffer(),
            dbranch.as_ref().map(Operand::buffer).as_ref(),
            dmodulation.as_ref().map(Operand::buffer).as_ref(),
        );
        expect_launched(GATE, backward);
        let dmodulation = dmodulation.map(|dmodulation| dmodulation.into_plain_as(self.of[1]));
        (dbranch, dmodulation)
    }
}

/// As the CPU's; backward keeps the branch and the modulation.
pub(super) fn gated_residual(
    residual: &DispatchTensor,
    branch: &DispatchTensor,
    modulation: &DispatchTensor,
    gate: usize,
    element: Element,
) -> DispatchTensor {
    autograd::apply(GATE, &[residual, branch, modulation], |inputs, _| {
        let (residual, gated) = Gated::read(&inputs[0], &inputs[2], gate, element);
        let branch = Operand::read(&inputs[1]);
        let of_branch = branch.element();
        let branch = branch.cast(element);
        let y = gated.with(&residual, &branch);
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let wanted = incoming.wanted;
            let gradient = Operand::read_as(incoming.gradient(), element);
            let branch = wanted[2].then_some(&branch);
            let (dbranch, dmodulation) = gated.backward(branch, &gradient, wanted[1]);
            vec![
                wanted[0].then(|| gated.residual_gradient(&gradient)),
                dbranch.map(|dbranch| dbranch.into_plain_as(of_branch)),
                dmodulation,
            ]
        });
        (y.into_plain(), backward)
    })
}

/// As the CPU's; backward keeps the tables.
pub(super) fn rotary(
    x: &DispatchTensor,
    cos: &RawTensor,
    sin: &RawTensor,
    element: Element,
) -> DispatchTensor {
    const NAME: &str = "rotary";
    let tables = [cos, sin].map(|table| Operand::read_as(table, Element::F32));
    autograd::apply(NAME, &[x], |inputs, _| {
        let x = Operand::read(&inputs[0]);
        let of = x.element();
        let x = x.cast(element);
        let [batch, tokens, heads, head_dim] = *x.shape() else {
            panic!("rotary of {:?}, four axes expected", x.shape())
        };
        let call = Rotary {
            batch,
            tokens,
            heads,
            head_dim,
        };
        let y = x.empty_like();
        let [cos, sin] = [0, 1].map(|at| tables[at].buffer());
        expect_launched(
            NAME,
            call.forward(x.client(), &x.buffer(), [&cos, &sin], &y.buffer()),
        );
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let gradient = Operand::read_as(incoming.gradient(), element);
            let dx = gradient.empty_like();
            let [cos, sin] = [0, 1].map(|at| tables[at].buffer());
            let backward = call.backward(gradient.client(), &gradient.buffer(), [&cos, &sin], &dx.buffer());
            expect_launched(NAME, backward);
            vec![Some(dx.into_plain_as(of))]
        });
        (y.into_plain(), backward)
    })
}

/// As the CPU's, but that an index out of range gives a row of NaN: to look would be to wait for the device. The gradient
/// of the table is f32.
pub(super) fn embedding(table: &DispatchTensor, index: &RawTensor, element: Element) -> DispatchTensor {
    const NAME: &str = "embedding";
    autograd::apply(NAME, &[table], |inputs, _| {
        let table = Operand::read(&inputs[0]);
        let index = cube::read_ints(index).expect("indices are integers on the table's device");
        let index = cube::contiguous(cube::cast(index.clone(), DType::I32));
        let shape = index.meta.shape().to_vec();
        let (rows, channels) = table.rows_and_columns();
        let call = Embedding {
            rows,
            channels,
            count: shape.iter().product(),
        };
        let y = table.empty(&[&shape[..], &[channels]].concat(), element);
        let forward = call.forward(y.client(), &table.buffer(), &index.handle, &y.buffer());
        expect_launched(NAME, forward);
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let gradient = Operand::read(incoming.gradient());
            let dtable = gradient.empty(&[rows, channels], Element::F32);
            let backward = call.backward(
                dtable.client(),
                &gradient.buffer(),
                &index.handle,
                &dtable.buffer(),
            );
            expect_launched(NAME, backward);
            vec![Some(dtable.into_plain())]
        });
        (y.into_plain(), backward)
    })
}
