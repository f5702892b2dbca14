//! A custom operation with its gradient: the Snake activation with a learned frequency per channel.
//!
//! `y = x + sin²(a x) / a` (Ziyin, Hartwig and Ueda 2020, arXiv:2006.08195), `x [.., D]`, `a [D]`.

use burn::backend::DispatchTensor;
use flow_core::autograd::{self, Backward};
use flow_core::cpu::{CpuTensor, from_vec, to_host};
use flow_core::rng::{Purpose, Stream};
use flow_core::tensors::{leaf, plain};
use std::sync::Arc;

/// `x + sin²(a x) / a`; `x` and `a` may be tracked or not.
fn snake(x: &DispatchTensor, frequency: &DispatchTensor) -> DispatchTensor {
    autograd::apply("snake", &[x, frequency], |inputs, _| {
        let (x, a) = (CpuTensor::read(&inputs[0]), CpuTensor::read(&inputs[1]));
        let frequencies = a.values().iter().cycle();
        let output = x
            .values()
            .iter()
            .zip(frequencies)
            .map(|(x, a)| x + (a * x).sin().powi(2) / a)
            .collect();
        let output = from_vec(output, x.shape());

        let backward: Backward = Arc::new(move |incoming| {
            let gradient = CpuTensor::read(incoming.gradient());
            let (_, channels) = x.rows_and_columns();
            let mut dx = vec![0.0; x.values().len()];
            let mut da = vec![0.0f64; channels];
            for (index, (x, g)) in x.values().iter().zip(gradient.values()).enumerate() {
                let a = a.values()[index % channels];
                let (sine, double) = ((a * x).sin(), (2.0 * a * x).sin());
                dx[index] = g * (1.0 + double);
                da[index % channels] += f64::from(g * (x * double / a - sine * sine / (a * a)));
            }
            let da = da.into_iter().map(|value| value as f32).collect();
            vec![
                incoming.wanted[0].then(|| from_vec(dx, gradient.shape())),
                incoming.wanted[1].then(|| from_vec(da, &[channels])),
            ]
        });
        (output, backward)
    })
}

fn main() {
    let (rows, channels) = (64, 3);
    let mut values = vec![0.0; rows * channels];
    Stream::new(1, Purpose::Test).at(0, 0).fill_normal(&mut values);
    let (x, frequency) = (
        from_vec(values, &[rows, channels]),
        from_vec(vec![0.5, 1.0, 2.0], &[channels]),
    );

    // The same kernel runs with and without a graph, so a rollout and a training step agree to the last bit.
    let in_rollout = snake(&x, &frequency);
    let leaves = (leaf(&x), leaf(&frequency));
    let in_training = snake(&leaves.0, &leaves.1);
    assert_eq!(to_host(&in_rollout), to_host(&plain(&in_training)));

    // The gradient of the sum of the outputs, against central differences.
    let ones = from_vec(vec![1.0; rows * channels], &[rows, channels]);
    let mut gradients =
        autograd::backward_from(vec![in_training], vec![Some(ones)]).expect("the output is tracked");
    let found = autograd::take_gradient(&leaves.1, &mut gradients).expect("the frequency is tracked");
    let x = to_host(&x);
    let sum = |a: f64, channel: usize| -> f64 {
        let column = x.iter().skip(channel).step_by(channels).map(|x| f64::from(*x));
        column.map(|x| x + (a * x).sin().powi(2) / a).sum()
    };
    for (channel, (found, a)) in to_host(&found).into_iter().zip([0.5, 1.0, 2.0]).enumerate() {
        let numeric = (sum(a + 1e-5, channel) - sum(a - 1e-5, channel)) / 2e-5;
        println!("channel {channel}: gradient {found:.5}, numerically {numeric:.5}");
        assert!((f64::from(found) - numeric).abs() < 1e-3 * numeric.abs().max(1.0));
    }
}
