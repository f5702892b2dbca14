//! Operations made of others, each computed as one: the same bits, with the gate and the activation's derivative in the
//! products' epilogues, and less kept.
//!
//! Backward keeps what only a product could give again, and computes anew what takes one pass over memory: the normalised
//! rows and the activation. Gradients of one tensor are added up where they are computed.

use super::elementwise::{Gated, activated, activation_gradient};
use super::layer_input::{InputForms, LayerInput};
use super::linear::{LINEAR, Layer, OfSums, Summed, Then, kept};
use super::norm::Normed;
use super::operand::Operand;
use super::products::Products;
use crate::cpu::linear::has_trained_matrix;
use burn::backend::{Dispatch, DispatchTensor, ops::FloatTensorOps};
use flow_core::ops::{FeedForwardWeights, GatedResidual, LinearWeights, ModulatedNorm, Stash};
use flow_core::tensors::{gradients_of_sides, is_tracked, shape};
use flow_core::{Activation, RawTensor, autograd};
use flow_kernels_cube::Element;
use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;

/// What all of them compute with.
#[derive(Clone, Copy, Debug)]
pub(super) struct With<'a> {
    pub stash: &'a dyn Stash,
    pub element: Element,
    pub products: &'a Arc<Products>,
}

impl With<'_> {
    fn layer(&self, plain: &[RawTensor], weights: &LinearWeights) -> Layer {
        Layer::read(plain, weights, self.element, self.products)
    }
}

/// The sum of two gradients of one tensor, as the graph adds them up.
fn plus(a: RawTensor, b: RawTensor) -> RawTensor {
    Dispatch::float_add(a, b)
}

/// `gated_residual(residual, linear(x))`, `x` being `parts` side by side. Keeps the branch only for the gradient of the gates.
pub(super) fn linear_gated_residual(
    with: With<'_>,
    gated: GatedResidual<'_>,
    parts: &[&DispatchTensor],
    weights: &LinearWeights,
) -> DispatchTensor {
    let GatedResidual {
        residual,
        modulation,
        gate,
    } = gated;
    let mut inputs = vec![residual];
    inputs.extend(parts);
    let of_modulation = inputs.len();
    inputs.push(modulation);
    inputs.extend(weights.tensors());
    let keep_x = has_trained_matrix(weights);
    let keep_branch = is_tracked(modulation) || with.stash.keeps(LINEAR);
    let element = with.element;
    autograd::apply("linear_gated_residual", &inputs, |plain, _| {
        let (parts, ending) = (&plain[1..of_modulation], with.stash.ending());
        let of_x = Operand::read(&parts[0]).element();
        let widths: Vec<usize> = parts.iter().map(|part| shape(part)[2]).collect();
        let reads_x = keep_x || keep_branch || ending.is_none();
        let x = reads_x.then(|| Operand::side_by_side(parts, element));
        let (residual, gated) = Gated::read(&plain[0], &plain[of_modulation], gate, element);
        let x_shape = [gated.call.batch, gated.call.tokens, widths.iter().sum()];
        let layer = with.layer(&plain[of_modulation + 1..], weights);
        let input = x.clone().map(LayerInput::of_numbers);
        let read = || input.as_ref().expect("read where something reads it");
        let branch = keep_branch.then(|| kept(with.stash, || layer.output(read())));
        let output = with.stash.ending_or(ending, || {
            let output = match &branch {
                Some(branch) => gated.with(&residual, branch),
                None => layer.gated(read(), &residual, &gated),
            };
            output.into_plain()
        });
        drop(input);
        let x = x.filter(|_| keep_x);
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let wanted = incoming.wanted;
            let gradient = Operand::read_as(incoming.gradient(), element);
            let (of_parts, of_weights) = (&wanted[1..of_modulation], &wanted[of_modulation + 1..]);
            let want_x = of_parts.contains(&true);
            let branch = branch.as_ref().filter(|_| wanted[of_modulation]);
            let (dbranch, dmodulation) =
                gated.backward(branch, &gradient, want_x || of_weights.contains(&true));
            let mut gradients = vec![None; wanted.len()];
            gradients[0] = wanted[0].then(|| gated.residual_gradient(&gradient));
            gradients[of_modulation] = dmodulation;
            if let Some(dbranch) = dbranch.map(OfSums::new) {
                if want_x {
                    let dx = layer.input_gradient(&dbranch, &x_shape, Then::Nothing);
                    let of_sides = gradients_of_sides(dx.into_plain_as(of_x), &widths, of_parts);
                    gradients.splice(1..of_modulation, of_sides);
                }
                let dbias = layer.bias_gradient(&dbranch, of_weights);
                let found = layer.weight_gradients(x.as_ref(), &dbranch, dbias, of_weights);
                gradients.splice(of_modulation + 1.., found);
            }
            gradients
        });
        (output, backward)
    })
}

/// `linear(modulated_layer_norm(x))`. Keeps `x`, and the sum before the activation if there is one.
pub(super) fn modulated_linear(
    with: With<'_>,
    norm: ModulatedNorm<'_>,
    weights: &LinearWeights,
    activation: Activation,
) -> DispatchTensor {
    let mut inputs = vec![norm.x, norm.modulation];
    inputs.extend(weights.tensors());
    let train_matrix = has_trained_matrix(weights);
    let element = with.element;
    autograd::apply("modulated_linear", &inputs, |plain, tracked| {
        let normed = Normed::read(&plain[0], &plain[1], norm.chunks, element);
        let layer = with.layer(&plain[2..], weights);
        let keep_sum = activation != Activation::None && (tracked || with.stash.keeps(LINEAR));
        let input = || normed.layer_input(layer.input_forms());
        let (output, sum) = layer.through(with.stash, activation, keep_sum, input);
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let wanted = incoming.wanted;
            let gradient = Operand::read_as(incoming.gradient(), element);
            let want_bias = layer.has_bias() && wanted[3];
            let (gradient, dbias) = activation_gradient(sum.as_ref(), activation, gradient, want_bias);
            let of_sums = OfSums::new(gradient);
            let [dx, dmodulation, weights] =
                layer_gradients(&normed, &layer, train_matrix, of_sums, None, dbias, wanted);
            [dx, dmodulation, weights].concat()
        });
        (output.into_plain(), backward)
    })
}

/// Gradients of `x`, of the modulation, and of a layer's weights in their order, as far as they are `wanted`, for the
/// gradient of the layer's sums. The normalised rows are computed again. `added` is another gradient of `x`.
fn layer_gradients(
    normed: &Normed,
    layer: &Layer,
    train_matrix: bool,
    of_sums: OfSums,
    added: Option<&Operand>,
    dbias: Option<Operand>,
    wanted: &[bool],
) -> [Vec<Option<RawTensor>>; 3] {
    let want_norm = wanted[0] || wanted[1];
    let again = (want_norm || train_matrix).then(|| normed.forward());
    let (rows, statistics) = again.unzip();
    let weights = layer.weight_gradients(rows.as_ref(), &of_sums, dbias, &wanted[2..]);
    drop(rows);
    let statistics = statistics.filter(|_| want_norm);
    let (dx, dmodulation) = statistics.map_or((None, None), |statistics| {
        let gradient = layer.input_gradient(&of_sums, &normed.x.shape(), Then::Nothing);
        let (dx, dmodulation) = normed.backward(&statistics, &gradient, added, wanted[1]);
        (Some(dx), dmodulation)
    });
    [vec![dx], vec![dmodulation], weights]
}

/// Several linear layers of one `modulated_layer_norm(x)`. Keeps `x`. What the layers send back to the normalised rows is added
/// up in their products' epilogues, the last layer's first, as the graph does it.
pub(super) fn modulated_linears(
    with: With<'_>,
    norm: ModulatedNorm<'_>,
    weights: &[LinearWeights],
) -> Vec<DispatchTensor> {
    let mut inputs = vec![norm.x, norm.modulation];
    let mut starts = Vec::with_capacity(weights.len() + 1);
    for of in weights {
        starts.push(inputs.len());
        inputs.extend(of.tensors());
    }
    starts.push(inputs.len());
    let train_matrix = weights.iter().any(has_trained_matrix);
    let element = with.element;
    autograd::apply_many("modulated_linears", &inputs, |plain, _| {
        let normed = Normed::read(&plain[0], &plain[1], norm.chunks, element);
        let ranges = || starts.windows(2).map(|ends| ends[0]..ends[1]);
        let read: Vec<(&[RawTensor], &LinearWeights)> =
            ranges().map(|range| &plain[range]).zip(weights).collect();
        let layers = Layer::read_all(&read, element, with.products);
        let layers: Vec<(Layer, Range<usize>)> = layers.into_iter().zip(ranges()).collect();
        // Not computed if the stash has all results. Layers whose products are of codes share those of the rows.
        let forms = layers.iter().map(|(layer, _)| layer.input_forms());
        let forms = forms.fold(InputForms::default(), InputForms::or);
        let input = OnceCell::new();
        let input = || input.get_or_init(|| normed.layer_input(forms));
        let outputs = layers.iter().map(|(layer, _)| {
            let output = kept(with.stash, || layer.output(input()));
            output.into_plain()
        });
        let outputs = outputs.collect();
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let wanted = incoming.wanted;
            let mut gradients = vec![None; wanted.len()];
            let want_norm = wanted[0] || wanted[1];
            let again = (want_norm || train_matrix).then(|| normed.forward());
            let (rows, statistics) = again.unzip();
            let mut sum: Option<Operand> = None;
            for ((layer, range), gradient) in layers.iter().zip(incoming.output_gradients).rev() {
                let Some(gradient) = gradient else { continue };
                let of_sums = OfSums::new(Operand::read_as(gradient, element));
                if want_norm {
                    let then = sum.as_ref().map_or(Then::Nothing, Then::Plus);
                    sum = Some(layer.input_gradient(&of_sums, &normed.x.shape(), then));
                }
                let wanted = &wanted[range.clone()];
                let dbias = layer.bias_gradient(&of_sums, wanted);
                let of_layer = layer.weight_gradients(rows.as_ref(), &of_sums, dbias, wanted);
                gradients.splice(range.clone(), of_layer);
            }
            drop(rows);
            if let (Some(statistics), Some(sum)) = (statistics, sum) {
                let (dx, dmodulation) = normed.backward(&statistics, &sum, None, wanted[1]);
                (gradients[0], gradients[1]) = (Some(dx), dmodulation);
            }
            gradients
        });
        (outputs, backward)
    })
}

/// `gated_residual(x, linear(linear(modulated_layer_norm(x))))`. Backward keeps `x`, the sum before the activation, and, for
/// the gradient of the gates, the branch.
pub(super) fn modulated_feed_forward(
    with: With<'_>,
    norm: ModulatedNorm<'_>,
    weights: &FeedForwardWeights,
    gate: usize,
) -> DispatchTensor {
    let mut inputs = vec![norm.x, norm.modulation];
    inputs.extend(weights.up.tensors());
    let first_down = inputs.len();
    inputs.extend(weights.down.tensors());
    let [train_up, train_down] = [&weights.up, &weights.down].map(has_trained_matrix);
    let keep_branch = is_tracked(norm.modulation) || with.stash.keeps(LINEAR);
    let (element, activation) = (with.element, weights.activation);
    autograd::apply("modulated_feed_forward", &inputs, |plain, tracked| {
        let normed = Normed::read(&plain[0], &plain[1], norm.chunks, element);
        let (residual, gated) = Gated::read(&plain[0], &plain[1], gate, element);
        let up = with.layer(&plain[2..first_down], &weights.up);
        let down = with.layer(&plain[first_down..], &weights.down);
        let keep_sum = tracked || with.stash.keeps(LINEAR);
        let input = || normed.layer_input(up.input_forms());
        let forms = down.input_forms();
        let ending = with.stash.ending();
        // Where the second layer does not run, nothing reads them. Where it reads codes alone, the kernel that makes these activates
        // the sum, and the activated numbers are nowhere.
        let in_product = if forms.numbers && (keep_branch || ending.is_none()) {
            activation
        } else {
            Activation::None
        };
        let mut summed = keep_sum.then(|| up.summed(with.stash, in_product, input));
        let mut inner = || match &mut summed {
            Some(summed) => summed.layer_input(activation, forms),
            None => LayerInput::of_numbers(up.forward(&input(), activation, false).1),
        };
        let branch = keep_branch.then(|| kept(with.stash, || down.output(&inner())));
        let output = with.stash.ending_or(ending, || {
            let output = match &branch {
                Some(branch) => gated.with(&residual, branch),
                None => down.gated(&inner(), &residual, &gated),
            };
            output.into_plain()
        });
        let Some(Summed { sum, .. }) = summed else {
            let nothing: autograd::Backward = Arc::new(|incoming| vec![None; incoming.wanted.len()]);
            return (output, nothing);
        };
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let (wanted, wanted_down) = incoming.wanted.split_at(first_down);
            let gradient = Operand::read_as(incoming.gradient(), element);
            let branch = branch.as_ref().filter(|_| wanted[1]);
            let (dbranch, dgate) = gated.backward(branch, &gradient, true);
            let dbranch = OfSums::new(dbranch.expect("asked for"));
            let inner = train_down.then(|| activated(&sum, activation));
            let dbias = down.bias_gradient(&dbranch, wanted_down);
            let of_down = down.weight_gradients(inner.as_ref(), &dbranch, dbias, wanted_down);
            drop(inner);
            if !wanted.contains(&true) {
                let nothing = vec![None; first_down];
                return [nothing, of_down].concat();
            }
            let dsum = down.input_gradient(&dbranch, &sum.shape(), Then::Through(&sum, activation));
            drop(dbranch);
            let dsum = OfSums::new(dsum);
            let dbias = up.bias_gradient(&dsum, &wanted[2..]);
            // In one pass where the graph would add up what was computed in.
            let added = (normed.of_x() == element).then_some(&gradient);
            let [dx, dmodulation, of_up] =
                layer_gradients(&normed, &up, train_up, dsum, added, dbias, wanted);
            let dx = dx.into_iter().map(|dx| {
                let dx = dx.filter(|_| wanted[0]);
                dx.map(|dx| match added {
                    Some(_) => dx,
                    None => plus(dx, gated.residual_gradient(&gradient)),
                })
            });
            let dmodulation = dmodulation
                .into_iter()
                .map(|of_norm| match (of_norm, dgate.clone()) {
                    (Some(of_norm), Some(dgate)) => Some(plus(of_norm, dgate)),
                    _ => None,
                });
            dx.chain(dmodulation).chain(of_up).chain(of_down).collect()
        });
        (output, backward)
    })
}

#[cfg(all(test, feature = "lavapipe"))]
mod tests {
    use super::*;
    use flow_core::device::ComputeDevice;
    use flow_core::ops::NormChunks;
    use flow_core::tensors::leaf;
    use flow_matmul_cube::problem::Layout;
    use std::sync::Mutex;

    /// Gives what left a region, if there is something, and computes everything else.
    #[derive(Debug)]
    struct Given(Mutex<Option<RawTensor>>);

    impl Stash for Given {
        fn through(&self, _: &'static str, compute: &mut dyn FnMut() -> Vec<RawTensor>) -> Vec<RawTensor> {
            compute()
        }

        fn keeps(&self, _: &'static str) -> bool {
            false
        }

        fn ending(&self) -> Option<RawTensor> {
            self.0.lock().expect("nobody panicked").clone()
        }
    }

    /// Columns of the forward products of a feed-forward part of width 8 and inner width 12, and of a gated layer of 16 inputs
    /// behind it, all with frozen weights.
    fn forward_products(device: &ComputeDevice, ending: Option<RawTensor>) -> Vec<[usize; 2]> {
        let plain = |shape: &[usize]| device.plain(vec![0.5; shape.iter().product()], shape);
        let layer = |outputs, inputs| LinearWeights {
            weight: plain(&[outputs, inputs]),
            low_precision: None,
            bias: None,
            adapter: None,
        };
        let products = Products::storing(Element::F32);
        let stash = Given(Mutex::new(ending));
        let with = With {
            stash: &stash,
            element: Element::F32,
            products: &products,
        };
        let (x, modulation) = (leaf(&plain(&[1, 6, 8])), plain(&[1, 3, 8]));
        let weights = FeedForwardWeights {
            up: layer(12, 8),
            activation: Activation::GeluTanh,
            down: layer(8, 12),
        };
        let chunks = NormChunks {
            shift: 0,
            scale: 1,
            epsilon: 1e-6,
        };
        let norm = ModulatedNorm {
            x: &x,
            modulation: &modulation,
            chunks,
        };
        let y = modulated_feed_forward(with, norm, &weights, 2);
        let gated = GatedResidual {
            residual: &y,
            modulation: &modulation,
            gate: 2,
        };
        let parts = [plain(&[1, 6, 4]), leaf(&plain(&[1, 6, 12]))];
        linear_gated_residual(with, gated, &parts.each_ref(), &layer(8, 16));
        let known = products.known.lock().expect("nobody panicked");
        let forward = known.keys().filter(|call| call.layout == Layout::Nt);
        let mut columns: Vec<[usize; 2]> = forward.map(|call| [call.n, call.k]).collect();
        columns.sort_unstable();
        columns
    }

    #[test]
    fn what_is_given_takes_no_product() {
        let device = ComputeDevice::vulkan().unwrap_or_else(|error| panic!("{error:?}"));
        let ending = device.plain(vec![0.25; 48], &[1, 6, 8]);
        assert_eq!(forward_products(&device, None), [[8, 12], [8, 16], [12, 8]]);
        // Backward needs the sum before the activation.
        assert_eq!(forward_products(&device, Some(ending)), [[12, 8]]);
    }
}
