//! Elementwise activations as operations of their own.

use crate::host::{math, threads};
use burn::backend::DispatchTensor;
use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::{Activation, autograd};
use std::sync::Arc;

/// `activation(x)`; backward keeps `x`.
pub(crate) fn activation(x: &DispatchTensor, activation: Activation) -> DispatchTensor {
    autograd::apply("activation", &[x], |inputs, _| {
        let x = CpuTensor::read(&inputs[0]);
        let y = threads::build_zeros(x.values().len(), threads::PIECE, |index, y| {
            let start = index * threads::PIECE;
            math::activate_into(activation, &x.values()[start..start + y.len()], y);
        });
        let y = from_vec(y, x.shape());
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let gradient = CpuTensor::read(incoming.gradient());
            let dx = activation_gradient(activation, x.values(), gradient.values());
            vec![Some(from_vec(dx, x.shape()))]
        });
        (y, backward)
    })
}

/// `gradient · activation'(input)`.
pub(crate) fn activation_gradient(activation: Activation, input: &[f32], gradient: &[f32]) -> Vec<f32> {
    threads::build_zeros(input.len(), threads::PIECE, |index, result| {
        let range = index * threads::PIECE..index * threads::PIECE + result.len();
        math::activate_backward(activation, &input[range.clone()], &gradient[range], result);
    })
}
