//! A linear layer of a modulated layer norm: the normalised rows are never a tensor.

use super::{LINEAR, Normed, build_rows};
use crate::cpu::activation::activation_gradient;
use crate::cpu::linear::{StoredValues, activated_again, has_trained_matrix};
use crate::host::{math, matrix::Precision};
use burn::backend::DispatchTensor;
use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::ops::{LinearWeights, ModulatedNorm, Stash};
use flow_core::{Activation, autograd};
use std::sync::Arc;

/// `linear(modulated_layer_norm(x))`. Keeps `x`, and the sum before the activation if there is one.
pub(crate) fn modulated_linear(
    stash: &dyn Stash,
    norm: ModulatedNorm<'_>,
    weights: &LinearWeights,
    activation: Activation,
    precision: Precision,
) -> DispatchTensor {
    let ModulatedNorm {
        x,
        modulation,
        chunks,
    } = norm;
    let mut inputs = vec![x, modulation];
    inputs.extend(weights.tensors());
    let train_matrix = has_trained_matrix(weights);
    autograd::apply("modulated_linear", &inputs, |plain, tracked| {
        let normed = Normed::read(&plain[0], &plain[1], chunks);
        let stored = StoredValues::read(&plain[2..], weights, precision);
        let layer = stored.for_forward();
        let keep_sum = activation != Activation::None && (tracked || stash.keeps(LINEAR));
        let (output, sum) = if keep_sum {
            let mut kept = stash.through(LINEAR, &mut || vec![normed.layer(&layer)]);
            let sum = kept.pop().expect("a linear layer keeps one tensor");
            (activated_again(&sum, activation), Some(sum))
        } else {
            let mut kept = stash.through(LINEAR, &mut || {
                let (rows, columns) = (normed.rows(), layer.outputs());
                let y = build_rows(rows, columns, layer.work(rows), layer.start(), |start, y| {
                    normed.layer_rows(&layer, start, y);
                    math::activate(activation, y);
                });
                vec![from_vec(y, &normed.shape(&layer))]
            });
            (kept.pop().expect("a linear layer keeps one tensor"), None)
        };
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let gradient = CpuTensor::read(incoming.gradient());
            let sum = sum.as_ref().map(CpuTensor::read);
            let through = sum.map(|sum| activation_gradient(activation, sum.values(), gradient.values()));
            let gradient = through.as_deref().unwrap_or(gradient.values());
            let (dx, dmodulation, weights) =
                normed.layer_gradients(&stored.for_backward(), train_matrix, gradient, incoming.wanted);
            let mut gradients = vec![
                dx.map(|values| from_vec(values, normed.x.shape())),
                dmodulation.map(|values| from_vec(values, normed.modulation.shape())),
            ];
            gradients.extend(weights);
            gradients
        });
        (output, backward)
    })
}
