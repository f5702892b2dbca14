//! Operands, host helpers and losses of the tests.

use burn::backend::DispatchTensor;
use flow_core::RawTensor;
use flow_core::autograd::{self, Backward};
use flow_core::cpu::{CpuTensor, from_vec, to_host};
use flow_core::rng::{Purpose, Stream};
use flow_core::tensors::leaf;
use std::sync::Arc;

/// Standard normal values; every `seed` gives others.
pub fn normal(seed: u64, count: usize) -> Vec<f32> {
    let mut values = vec![0.0; count];
    Stream::new(seed, Purpose::Test).at(0, 0).fill_normal(&mut values);
    values
}

/// A plain tensor of standard normal values.
pub fn operand(seed: u64, shape: &[usize]) -> RawTensor {
    from_vec(normal(seed, shape.iter().product()), shape)
}

/// The same as a leaf.
pub fn tracked_operand(seed: u64, shape: &[usize]) -> DispatchTensor {
    leaf(&operand(seed, shape))
}

pub fn bits(tensor: &RawTensor) -> Vec<u32> {
    to_host(tensor).iter().map(|value| value.to_bits()).collect()
}

pub fn wide(tensor: &RawTensor) -> Vec<f64> {
    to_host(tensor).iter().map(|value| f64::from(*value)).collect()
}

/// Fails unless every value lies within a few roundings of `expected`.
pub fn assert_close(found: &RawTensor, expected: &[f64]) {
    let found = to_host(found);
    assert_eq!(found.len(), expected.len(), "number of values");
    let largest = expected.iter().fold(1.0f64, |most, value| most.max(value.abs()));
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs() / largest;
        assert!(error < 1e-6, "value {index}: {found}, expected {expected}");
    }
}

/// `sum of weights · x`, of shape `[1]`: a loss whose gradient in `x` is `weights`, exactly.
pub fn weighted_sum(x: &DispatchTensor, weights: &RawTensor) -> DispatchTensor {
    let weights = weights.clone();
    autograd::apply("weighted-sum", &[x], |inputs, _| {
        let (x, w) = (CpuTensor::read(&inputs[0]), CpuTensor::read(&weights));
        let sum: f64 = x
            .values()
            .iter()
            .zip(w.values())
            .map(|(x, w)| f64::from(*x) * f64::from(*w))
            .sum();
        let backward: Backward = Arc::new(move |incoming| {
            let seed = to_host(incoming.gradient())[0];
            let gradient = w.values().iter().map(|w| seed * w).collect();
            vec![Some(from_vec(gradient, w.shape()))]
        });
        (from_vec(vec![sum as f32], &[1]), backward)
    })
}

/// `a + b`, of one shape, with exact gradients.
pub fn add(a: &DispatchTensor, b: &DispatchTensor) -> DispatchTensor {
    autograd::apply("add", &[a, b], |inputs, _| {
        let (a, b) = (CpuTensor::read(&inputs[0]), CpuTensor::read(&inputs[1]));
        let sum = a.values().iter().zip(b.values()).map(|(a, b)| a + b).collect();
        let backward: Backward = Arc::new(|incoming| vec![Some(incoming.gradient().clone()); 2]);
        (from_vec(sum, a.shape()), backward)
    })
}
