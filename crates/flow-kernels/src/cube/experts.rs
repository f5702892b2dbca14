//! A mixture of experts: routing, sorting by expert, linear layers per expert, combination. How many rows an expert has
//! stays on the device.

use super::CubeKernels;
use super::elementwise::{activated, activation_gradient, function};
use super::operand::{Operand, expect_launched};
use super::products::{Products, matrix};
use burn::backend::DispatchTensor;
use burn::tensor::DType;
use flow_core::cube::{self, CubeTensor};
use flow_core::ops::{ExpertOps, GroupedWeights, Grouping, Routed, Stash};
use flow_core::{Activation, RawTensor, autograd};
use flow_kernels_cube::Element;
use flow_kernels_cube::experts::route::Shares;
use flow_kernels_cube::experts::{self, Mix, Routing, group_sums};
use flow_matmul_cube::problem::{Epilogue, Layout, Matmul};
use flow_matmul_cube::tensors::Operands;
use std::sync::Arc;

/// 32-bit indices without gaps.
///
/// # Panics
/// If they are not integers of a CubeCL device: kernels are chosen by device, so this is a bug.
fn indices(tensor: &RawTensor) -> CubeTensor {
    let tensor = cube::read_ints(tensor).expect("indices are integers on the device of what they index");
    cube::contiguous(cube::cast(tensor.clone(), DType::I32))
}

fn length(indices: &CubeTensor) -> usize {
    indices.meta.shape().iter().product()
}

impl ExpertOps for CubeKernels {
    /// As the CPU's; of two scores that differ in the last bits another may be the larger there, since exponentials do.
    fn route(&self, stash: &dyn Stash, logits: &DispatchTensor, top_k: usize, normalize: bool) -> Routed {
        const NAME: &str = "route";
        let mut chosen: Option<RawTensor> = None;
        let outputs = autograd::apply_many(NAME, &[logits], |inputs, _| {
            let logits = Operand::read(&inputs[0]);
            let of = logits.element();
            let shape = logits.shape();
            let [batch, tokens, experts] = *shape else {
                panic!("router logits of {shape:?}, three axes expected")
            };
            let call = Routing {
                batch,
                tokens,
                experts,
                top_k,
                normalize,
            };
            let client = logits.client().clone();
            let empty = |shape: &[usize]| logits.empty(shape, Element::F32);
            let scores = empty(&shape);
            expect_launched(NAME, call.scores(&client, &logits.buffer(), &scores.buffer()));
            let mut kept = stash.through("router", &mut || {
                let choices = logits.empty_indices(&[batch, tokens, top_k]);
                expect_launched(NAME, call.choose(&client, &scores.buffer(), &choices.handle));
                vec![cube::wrap_ints(choices)]
            });
            let kept = kept.pop().expect("a router keeps one tensor");
            let choices = indices(&kept);
            chosen = Some(kept);
            let (weights, loads) = (empty(&[batch, tokens, top_k]), empty(&[batch, experts]));
            let balance = empty(&[batch]);
            let of_shares = [&weights, &loads, &balance].map(Operand::buffer);
            let shares = Shares {
                weights: &of_shares[0],
                loads: &of_shares[1],
                balance: &of_shares[2],
            };
            expect_launched(
                NAME,
                call.weigh(&client, &scores.buffer(), &choices.handle, shares),
            );
            let outputs = vec![weights.into_plain(), balance.into_plain()];
            let backward: autograd::Backward = Arc::new(move |incoming| {
                let gradients = incoming.output_gradients.iter();
                let gradients: Vec<Option<Operand>> = gradients
                    .map(|it| it.as_ref().map(|it| Operand::read_as(it, Element::F32)))
                    .collect();
                let [dweights, dbalance] = [0, 1].map(|at| gradients[at].as_ref().map(Operand::buffer));
                let dlogits = scores.empty(&shape, of);
                let backward = call.backward(
                    scores.client(),
                    (&scores.buffer(), &choices.handle, &loads.buffer()),
                    [dweights.as_ref(), dbalance.as_ref()],
                    &dlogits.buffer(),
                );
                expect_launched(NAME, backward);
                vec![Some(dlogits.into_plain())]
            });
            (outputs, backward)
        });
        let [weights, balance] = outputs.try_into().expect("two outputs were given");
        Routed {
            weights,
            experts: chosen.expect("the forward ran"),
            balance,
        }
    }

    fn group(&self, choices: &RawTensor, experts: usize) -> Grouping {
        let choices = indices(choices);
        let slots = length(&choices);
        let empty = |count: usize| cube::empty_like(&choices, &[count], DType::I32);
        let (of_rows, of_slots, offsets) = (empty(slots), empty(slots), empty(experts + 1));
        let call = experts::Grouping { slots, experts };
        let sorted = call.sort(
            &choices.client,
            &choices.handle,
            &of_rows.handle,
            &of_slots.handle,
            &offsets.handle,
        );
        expect_launched("group", sorted);
        Grouping {
            slots: cube::wrap_ints(of_rows),
            rows: cube::wrap_ints(of_slots),
            offsets: cube::wrap_ints(offsets),
        }
    }

    fn permute(&self, x: &DispatchTensor, grouping: &Grouping) -> DispatchTensor {
        const NAME: &str = "permute";
        let element = self.element;
        let (slots, rows) = (indices(&grouping.slots), indices(&grouping.rows));
        autograd::apply(NAME, &[x], |inputs, _| {
            let x = Operand::read(&inputs[0]);
            let of = x.element();
            let x = x.cast(element);
            let (shape, (tokens, channels)) = (x.shape(), x.rows_and_columns());
            let call = Mix {
                tokens,
                top_k: length(&slots).checked_div(tokens).unwrap_or(0),
                channels,
            };
            let y = x.empty(&[length(&slots), channels], element);
            expect_launched(
                NAME,
                call.permute(x.client(), &x.buffer(), &slots.handle, &y.buffer()),
            );
            let backward: autograd::Backward = Arc::new(move |incoming| {
                let gradient = Operand::read_as(incoming.gradient(), element);
                let dx = gradient.empty(&shape, element);
                let backward =
                    call.permute_backward(gradient.client(), &gradient.buffer(), &rows.handle, &dx.buffer());
                expect_launched(NAME, backward);
                vec![Some(dx.into_plain_as(of))]
            });
            (y.into_plain(), backward)
        })
    }

    /// As the CPU's; gradients of weights are f32.
    fn grouped_linear(
        &self,
        stash: &dyn Stash,
        x: &DispatchTensor,
        grouping: &Grouping,
        weights: &GroupedWeights,
    ) -> DispatchTensor {
        const NAME: &str = "grouped_linear";
        let (element, activation) = (self.element, weights.activation);
        let offsets = indices(&grouping.offsets);
        let inputs = [x, &weights.weight, &weights.bias];
        autograd::apply(NAME, &inputs, |plain, tracked| {
            let x = Operand::read(&plain[0]);
            let (of_x, x) = (x.element(), x.cast(element));
            let layer = Layer::read(&plain[1], &plain[2], element, offsets, &self.products);
            let keep_sum = activation != Activation::None && (tracked || stash.keeps(NAME));
            let mut made = None;
            let mut kept = stash.through(NAME, &mut || {
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
            let backward: autograd::Backward = Arc::new(move |incoming| {
                let wanted = incoming.wanted;
                let gradient = Operand::read_as(incoming.gradient(), element);
                let (gradient, _) = activation_gradient(sum.as_ref(), activation, gradient, false);
                vec![
                    wanted[0].then(|| layer.input_gradient(&gradient).into_plain_as(of_x)),
                    wanted[1].then(|| layer.weight_gradient(&x, &gradient).into_plain()),
                    wanted[2].then(|| layer.bias_gradient(&gradient).into_plain()),
                ]
            });
            (output, backward)
        })
    }

    fn combine(&self, y: &DispatchTensor, weights: &DispatchTensor, grouping: &Grouping) -> DispatchTensor {
        const NAME: &str = "combine";
        let element = self.element;
        let (slots, rows) = (indices(&grouping.slots), indices(&grouping.rows));
        autograd::apply(NAME, &[y, weights], |inputs, _| {
            let [y, weights] = [0, 1].map(|at| Operand::read(&inputs[at]));
            let [of_y, of_weights] = [&y, &weights].map(Operand::element);
            let (y, weights) = (y.cast(element), weights.cast(Element::F32));
            let shape = weights.shape();
            let [batch, tokens, top_k] = *shape else {
                panic!("weights of experts of {shape:?}, three axes expected")
            };
            let (_, channels) = y.rows_and_columns();
            let call = Mix {
                tokens: batch * tokens,
                top_k,
                channels,
            };
            let x = y.empty(&[batch, tokens, channels], element);
            let forward = call.combine(
                y.client(),
                &y.buffer(),
                &weights.buffer(),
                &rows.handle,
                &x.buffer(),
            );
            expect_launched(NAME, forward);
            let backward: autograd::Backward = Arc::new(move |incoming| {
                let gradient = Operand::read_as(incoming.gradient(), element);
                let client = gradient.client();
                let dy = incoming.wanted[0].then(|| {
                    let dy = y.empty_like();
                    let backward = call.combine_backward(
                        client,
                        &gradient.buffer(),
                        &weights.buffer(),
                        &slots.handle,
                        &dy.buffer(),
                    );
                    expect_launched(NAME, backward);
                    dy.into_plain_as(of_y)
                });
                let dweights = incoming.wanted[1].then(|| {
                    let dweights = weights.empty_like();
                    let backward = call.weights_backward(
                        client,
                        &y.buffer(),
                        &gradient.buffer(),
                        &rows.handle,
                        &dweights.buffer(),
                    );
                    expect_launched(NAME, backward);
                    dweights.into_plain_as(of_weights)
                });
                vec![dy, dweights]
            });
            (x.into_plain(), backward)
        })
    }
}

/// Weights in the type that products take, and where each expert's rows begin.
#[derive(Debug)]
struct Layer {
    /// `[E, out, in]`.
    weight: Operand,
    /// `[E, out]`.
    bias: Operand,
    /// `[E + 1]`.
    offsets: CubeTensor,
    experts: usize,
    outputs: usize,
    inputs: usize,
    products: Arc<Products>,
}

impl Layer {
    fn read(
        weight: &RawTensor,
        bias: &RawTensor,
        element: Element,
        offsets: CubeTensor,
        products: &Arc<Products>,
    ) -> Self {
        let (weight, bias) = (Operand::read_as(weight, element), Operand::read_as(bias, element));
        let [experts, outputs, inputs] = *weight.shape() else {
            panic!("weights of experts of {:?}, three axes expected", weight.shape())
        };
        assert_eq!(
            length(&offsets),
            experts + 1,
            "experts and where their rows begin"
        );
        Self {
            weight,
            bias,
            offsets,
            experts,
            outputs,
            inputs,
            products: products.clone(),
        }
    }

    /// A product of each expert's rows with what is the expert's.
    fn product(&self, layout: Layout, size: [usize; 3], element: Element) -> Matmul {
        Matmul {
            groups: self.experts,
            ..Matmul::plain(layout, size, element)
        }
    }

    /// The sum before the activation, if wanted, and the output.
    fn forward(&self, x: &Operand, activation: Activation, keep_sum: bool) -> (Option<Operand>, Operand) {
        let (rows, inputs) = x.rows_and_columns();
        let output = x.empty(&[rows, self.outputs], x.element());
        let sum = keep_sum.then(|| output.empty_like());
        let epilogue = function(activation).map_or(Epilogue::Store, |activation| Epilogue::Activate {
            activation,
            keep_sum,
        });
        let call = Matmul {
            bias: true,
            epilogue,
            ..self.product(Layout::Nt, [rows, self.outputs, inputs], x.element())
        };
        let (kept, bias) = (sum.as_ref().map(matrix), self.bias.buffer().handle);
        let (a, b, d) = (matrix(x), matrix(&self.weight), matrix(&output));
        let operands = Operands {
            bias: Some(&bias),
            other: kept.as_ref(),
            offsets: Some(&self.offsets.handle),
            ..Operands::new(&a, &b, &d)
        };
        self.products.run(x, call, &operands);
        (sum, output)
    }

    fn input_gradient(&self, gradient: &Operand) -> Operand {
        let (rows, outputs) = gradient.rows_and_columns();
        let output = gradient.empty(&[rows, self.inputs], gradient.element());
        let call = self.product(Layout::Nn, [rows, self.inputs, outputs], gradient.element());
        let (a, b, d) = (matrix(gradient), matrix(&self.weight), matrix(&output));
        let operands = Operands {
            offsets: Some(&self.offsets.handle),
            ..Operands::new(&a, &b, &d)
        };
        self.products.run(gradient, call, &operands);
        output
    }

    /// `[E, out, in]`, f32.
    fn weight_gradient(&self, x: &Operand, gradient: &Operand) -> Operand {
        let (rows, outputs) = gradient.rows_and_columns();
        let output = gradient.empty(&[self.experts, outputs, self.inputs], Element::F32);
        let call = Matmul {
            output: flow_matmul_cube::Element::F32,
            ..self.product(Layout::Tn, [outputs, self.inputs, rows], gradient.element())
        };
        let (a, b, d) = (matrix(gradient), matrix(x), matrix(&output));
        let operands = Operands {
            offsets: Some(&self.offsets.handle),
            ..Operands::new(&a, &b, &d)
        };
        self.products.run(gradient, call, &operands);
        output
    }

    /// `[E, out]`, f32.
    fn bias_gradient(&self, gradient: &Operand) -> Operand {
        let sizes = [self.experts, self.outputs];
        let sums = gradient.empty(&sizes, Element::F32);
        let summed = group_sums(
            gradient.client(),
            &gradient.buffer(),
            &self.offsets.handle,
            sizes,
            &sums.buffer(),
        );
        expect_launched("grouped_linear", summed);
        sums
    }
}
