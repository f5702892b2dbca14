//! Composed attention against f64 loops.

use super::composed;
use burn::tensor::Tensor;
use flow_core::device::ComputeDevice;
use flow_core::rng::{Purpose, Stream};

const SHAPE: [usize; 3] = [2, 11, 5];

fn drawn(salt: u64) -> (Vec<f32>, Tensor<3>) {
    let mut values = vec![0.0; SHAPE.iter().product()];
    Stream::new(3, Purpose::Test).at(salt, 0).fill_normal(&mut values);
    let tensor = ComputeDevice::cpu().tensor(values.clone(), SHAPE);
    (values, tensor)
}

#[test]
fn it_is_that_of_f64_loops_however_many_queries_at_a_time() {
    let [(q, q_tensor), (k, k_tensor), (v, v_tensor)] = [1, 2, 3].map(drawn);
    let [batch, tokens, channels] = SHAPE;
    let at = |values: &[f32], sample: usize, token: usize, channel: usize| {
        f64::from(values[(sample * tokens + token) * channels + channel])
    };
    let mut expected = Vec::new();
    for sample in 0..batch {
        for query in 0..tokens {
            let score = |key| {
                let products = (0..channels).map(|c| at(&q, sample, query, c) * at(&k, sample, key, c));
                (products.sum::<f64>() / (channels as f64).sqrt()).exp()
            };
            let weights: Vec<f64> = (0..tokens).map(score).collect();
            let sum: f64 = weights.iter().sum();
            expected.extend((0..channels).map(|channel| {
                let terms = weights.iter().enumerate();
                terms
                    .map(|(key, it)| it * at(&v, sample, key, channel))
                    .sum::<f64>()
                    / sum
            }));
        }
    }
    for queries in [1, 4, tokens] {
        let found = composed(q_tensor.clone(), k_tensor.clone(), v_tensor.clone(), queries);
        let found: Vec<f32> = found.into_data().iter().collect();
        let distance = found
            .iter()
            .zip(&expected)
            .fold(0f64, |distance, (found, expected)| {
                distance.max((f64::from(*found) - expected).abs())
            });
        assert!(distance < 1e-6, "{queries} queries at a time: {distance:e}");
    }
}
