//! Layer norm, modulated or with a weight and a bias, and RMS norm.

use super::layer_input::{InputForms, LayerInput};
use super::operand::{Operand, expect_launched};
use burn::backend::{Dispatch, DispatchTensor, ops::FloatTensorOps};
use burn::tensor::Tensor;
use flow_core::ops::NormChunks;
use flow_core::tensors::stacked;
use flow_core::{RawTensor, autograd};
use flow_kernels_cube::modulated_layer_norm::{ModulatedNorm, NormGradients};
use flow_kernels_cube::rms_norm::{RmsGradients, RmsNorm, RotaryAfterNorm};
use flow_kernels_cube::{Buffer, Element};
use std::sync::Arc;

const NORM: &str = "modulated_layer_norm";

/// A modulated layer norm's operands.
#[derive(Debug)]
pub(super) struct Normed {
    /// `[B, S, D]`.
    pub x: Operand,
    /// `[B, K, D]`.
    pub modulation: Operand,
    call: ModulatedNorm,
    /// Types of the gradients of `x` and of the modulation.
    of: [Element; 2],
    /// Type that the modulation's gradient is summed up to.
    sums: Element,
}

impl Normed {
    /// Reads the operands, to be computed on in `element`.
    pub fn read(x: &RawTensor, modulation: &RawTensor, norm: NormChunks, element: Element) -> Self {
        let [x, modulation] = [x, modulation].map(Operand::read);
        let of = [x.element(), modulation.element()];
        let [x, modulation] = [x, modulation].map(|operand| operand.cast(element));
        let [batch, tokens, channels] = *x.shape() else {
            panic!("layer norm of {:?}, three axes expected", x.shape())
        };
        let call = ModulatedNorm {
            batch,
            tokens,
            channels,
            chunks: modulation.shape()[1],
            shift: norm.shift,
            scale: norm.scale,
            unit: 1.0,
            epsilon: norm.epsilon,
        };
        Self {
            x,
            modulation,
            call,
            of,
            sums: element,
        }
    }

    /// As [`read`](Self::read), with a weight and a bias: all rows as if they were of one sample, whose shift is the bias and
    /// whose scale is the weight. Their gradients are f32.
    pub fn with_weight(
        x: &RawTensor,
        weight: &RawTensor,
        bias: &RawTensor,
        epsilon: f32,
        element: Element,
    ) -> Self {
        let x = Operand::read(x);
        let of = [x.element(), Element::F32];
        let (rows, channels) = x.rows_and_columns();
        let row = |vector: &RawTensor| Dispatch::float_reshape(vector.clone(), [1, channels].into());
        Self {
            x: x.cast(element),
            modulation: Operand::read_as(&stacked(vec![row(bias), row(weight)]), element),
            call: ModulatedNorm {
                batch: 1,
                tokens: rows,
                channels,
                chunks: 2,
                shift: 0,
                scale: 1,
                unit: 0.0,
                epsilon,
            },
            of,
            sums: Element::F32,
        }
    }

    /// Type of the gradient of `x`.
    pub fn of_x(&self) -> Element {
        self.of[0]
    }

    /// The result, and two numbers per row that backward needs, `[B, S, 2]`.
    pub fn forward(&self) -> (Operand, Operand) {
        let [batch, tokens] = [self.call.batch, self.call.tokens];
        let (y, statistics) = (
            self.x.empty_like(),
            self.x.empty(&[batch, tokens, 2], Element::F32),
        );
        let forward = self.call.forward(
            y.client(),
            &self.x.buffer(),
            &self.modulation.buffer(),
            &y.buffer(),
            &statistics.buffer(),
        );
        expect_launched(NORM, forward);
        (y, statistics)
    }

    /// The result in the forms that layers read it in. Codes come out of the kernel that normalises, and numbers only if they are read.
    pub fn layer_input(&self, forms: InputForms) -> LayerInput {
        let made = LayerInput::made_as_codes(NORM, &self.x, forms, |numbers, codes| {
            let (x, modulation) = (self.x.buffer(), self.modulation.buffer());
            self.call
                .forward_codes(self.x.client(), &x, &modulation, numbers, codes)
        });
        made.unwrap_or_else(|| LayerInput::of_numbers(self.forward().0))
    }

    /// Gradients of `x` and, if wanted, of the modulation, for the `gradient` of the result. `added` is another gradient of
    /// `x` in the type computed in, added to that.
    pub fn backward(
        &self,
        statistics: &Operand,
        gradient: &Operand,
        added: Option<&Operand>,
        want_modulation: bool,
    ) -> (RawTensor, Option<RawTensor>) {
        let dx = self.x.empty_like();
        let dmodulation = want_modulation.then(|| self.modulation.empty(&self.modulation.shape(), self.sums));
        let backward = self.call.backward(
            dx.client(),
            NormGradients {
                x: &self.x.buffer(),
                modulation: &self.modulation.buffer(),
                statistics: &statistics.buffer(),
                gradient: &gradient.buffer(),
                added: added.map(Operand::buffer).as_ref(),
                dx: &dx.buffer(),
                dmodulation: dmodulation.as_ref().map(Operand::buffer).as_ref(),
            },
        );
        expect_launched(NORM, backward);
        let dmodulation = dmodulation.map(|dmodulation| dmodulation.into_plain_as(self.of[1]));
        (dx.into_plain_as(self.of[0]), dmodulation)
    }
}

/// As the CPU's. Backward keeps `x`, the modulation, and two numbers per row.
pub(super) fn modulated_layer_norm(
    x: &DispatchTensor,
    modulation: &DispatchTensor,
    norm: NormChunks,
    element: Element,
) -> DispatchTensor {
    autograd::apply(NORM, &[x, modulation], |inputs, _| {
        let normed = Normed::read(&inputs[0], &inputs[1], norm, element);
        let (y, statistics) = normed.forward();
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let gradient = Operand::read_as(incoming.gradient(), element);
            let (dx, dmodulation) = normed.backward(&statistics, &gradient, None, incoming.wanted[1]);
            vec![Some(dx), dmodulation]
        });
        (y.into_plain(), backward)
    })
}

/// As the CPU's. Backward keeps `x`, weight and bias, and two numbers per row.
pub(super) fn layer_norm(
    x: &DispatchTensor,
    weight: &DispatchTensor,
    bias: &DispatchTensor,
    epsilon: f32,
    element: Element,
) -> DispatchTensor {
    autograd::apply("layer_norm", &[x, weight, bias], |inputs, _| {
        let [of_weight, of_bias] = [&inputs[1], &inputs[2]].map(|vector| Operand::read(vector).element());
        let normed = Normed::with_weight(&inputs[0], &inputs[1], &inputs[2], epsilon, element);
        let (y, statistics) = normed.forward();
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let wanted = incoming.wanted;
            let gradient = Operand::read_as(incoming.gradient(), element);
            let (dx, both) = normed.backward(&statistics, &gradient, None, wanted[1] || wanted[2]);
            let of_row = |at: usize, element: Element| {
                let row = Tensor::<2>::from_dispatch(both.clone()?)
                    .narrow(0, at, 1)
                    .flatten::<1>(0, 1);
                Some(Operand::read(&row.into_dispatch()).into_plain_as(element))
            };
            let of_weight = wanted[1].then(|| of_row(1, of_weight)).flatten();
            let of_bias = wanted[2].then(|| of_row(0, of_bias)).flatten();
            vec![Some(dx), of_weight, of_bias]
        });
        (y.into_plain(), backward)
    })
}

/// Tables of a rotary embedding after an RMS norm: cosines and sines, `[S, D/2]` in f32.
#[derive(Clone, Debug)]
pub(super) struct Tables([Operand; 2]);

impl Tables {
    pub fn read(cos: &RawTensor, sin: &RawTensor) -> Self {
        Self([cos, sin].map(|table| Operand::read_as(table, Element::F32)))
    }

    fn buffers(&self) -> [Buffer; 2] {
        [self.0[0].buffer(), self.0[1].buffer()]
    }

    /// The shape `[B, S, H, D]` of what is turned, of `[B, S, H · D]` or of itself.
    fn heads_of(&self, shape: &[usize]) -> Vec<usize> {
        let [batch, tokens, ref rest @ ..] = *shape else {
            panic!("rotary of {shape:?}, three or four axes expected")
        };
        let head_dim = 2 * self.0[0].shape()[1];
        vec![batch, tokens, rest.iter().product::<usize>() / head_dim, head_dim]
    }
}

/// The rotation of rows that lie as `shape` says, `[B, S, H, D]`.
fn turn<'a>(tables: &'a Option<[Buffer; 2]>, shape: &[usize]) -> Option<RotaryAfterNorm<'a>> {
    let [cos, sin] = tables.as_ref()?;
    let [_, tokens, heads, head_dim] = *shape else {
        panic!("rotary of {shape:?}, four axes expected")
    };
    Some(RotaryAfterNorm {
        tokens,
        heads,
        head_dim,
        cos,
        sin,
    })
}

/// As the CPU's, followed by a rotary embedding if there are `tables`: of `x [B, S, H, D]`, or of `x [B, S, H · D]`, whose heads
/// are normalised together. Backward keeps `x` and a number per row.
pub(super) fn rms_norm(
    x: &DispatchTensor,
    weight: Option<&DispatchTensor>,
    epsilon: f32,
    tables: Option<Tables>,
    element: Element,
) -> DispatchTensor {
    const NAME: &str = "rms_norm";
    let inputs: Vec<&DispatchTensor> = std::iter::once(x).chain(weight).collect();
    autograd::apply(NAME, &inputs, |inputs, _| {
        let x = Operand::read(&inputs[0]);
        let of = x.element();
        let x = x.cast(element);
        let weight = inputs.get(1).map(Operand::read);
        let (rows, channels) = x.rows_and_columns();
        let call = RmsNorm {
            rows,
            channels,
            epsilon,
        };
        let shape = match &tables {
            Some(tables) => tables.heads_of(&x.shape()),
            None => x.shape().to_vec(),
        };
        let (y, reciprocals) = (x.empty(&shape, element), x.empty(&[rows], Element::F32));
        let of_weight = weight.as_ref().map(Operand::buffer);
        let buffers = tables.as_ref().map(Tables::buffers);
        let forward = call.forward(
            x.client(),
            &x.buffer(),
            of_weight.as_ref(),
            turn(&buffers, &shape),
            &y.buffer(),
            &reciprocals.buffer(),
        );
        expect_launched(NAME, forward);
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let wanted = incoming.wanted;
            let gradient = Operand::read_as(incoming.gradient(), element);
            let dx = wanted[0].then(|| x.empty_like());
            let dweight = weight.as_ref().filter(|_| wanted[1]);
            let dweight = dweight.map(|weight| weight.empty(&weight.shape(), Element::F32));
            let backward = call.backward(
                x.client(),
                RmsGradients {
                    x: &x.buffer(),
                    weight: weight.as_ref().map(Operand::buffer).as_ref(),
                    turn: turn(&tables.as_ref().map(Tables::buffers), &shape),
                    reciprocals: &reciprocals.buffer(),
                    gradient: &gradient.buffer(),
                    dx: dx.as_ref().map(Operand::buffer).as_ref(),
                    dweight: dweight.as_ref().map(Operand::buffer).as_ref(),
                },
            );
            expect_launched(NAME, backward);
            let mut gradients = vec![dx.map(|dx| dx.into_plain_as(of))];
            gradients.resize_with(wanted.len(), || None);
            if let Some(dweight) = dweight {
                gradients[1] = Some(dweight.into_plain());
            }
            gradients
        });
        (y.into_plain(), backward)
    })
}
