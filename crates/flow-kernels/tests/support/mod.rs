//! Random operands, f64 references' gradients by central differences, and the checks every operation must pass.
#![allow(dead_code)]

use burn::backend::{AutodiffBackend, Dispatch, DispatchTensor};
use flow_core::cpu::{from_vec, to_host};
use flow_core::tensors::leaf;
use flow_core::{RawTensor, autograd};

/// An operand.
#[derive(Clone, Debug)]
pub struct Operand {
    pub values: Vec<f32>,
    pub shape: Vec<usize>,
}

impl Operand {
    pub fn plain(&self) -> RawTensor {
        from_vec(self.values.clone(), &self.shape)
    }
    pub fn wide(&self) -> Vec<f64> {
        self.values.iter().map(|value| f64::from(*value)).collect()
    }
}

/// Values in `[-1, 1)` from a linear congruential generator; every `seed` gives others.
pub fn operand(seed: u64, shape: &[usize]) -> Operand {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1);
    let count = shape.iter().product();
    let values = (0..count).map(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32) / (1u32 << 23) as f32 - 1.0
    });
    Operand {
        values: values.collect(),
        shape: shape.to_vec(),
    }
}

/// As [`operand`], with values that a bf16 number holds exactly.
pub fn coarse(seed: u64, shape: &[usize]) -> Operand {
    let mut operand = operand(seed, shape);
    for value in &mut operand.values {
        *value = (*value * 64.0).round() / 64.0;
    }
    operand
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Euclidean distance relative to the length of `expected`, or absolute if that is below one.
pub fn distance(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len(), "number of values");
    let square = |x: f64| x * x;
    let error: f64 = found
        .iter()
        .zip(expected)
        .map(|(f, e)| square(f64::from(*f) - e))
        .sum();
    let length: f64 = expected.iter().map(|e| square(*e)).sum();
    (error / length.max(1.0)).sqrt()
}

/// Runs `work` on a pool of `threads` threads.
pub fn on_threads<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .expect("a pool")
        .install(work)
}

/// Output and gradients of `kernel` with those inputs tracked that `tracked` marks, the output's gradient being `seed`.
pub fn run(
    operands: &[Operand],
    tracked: &[bool],
    kernel: &(dyn Fn(&[DispatchTensor]) -> DispatchTensor + Sync),
    seed: &Operand,
) -> (Vec<f32>, Vec<Option<Vec<f32>>>) {
    let inputs: Vec<DispatchTensor> = operands
        .iter()
        .zip(tracked)
        .map(|(operand, tracked)| {
            if *tracked {
                leaf(&operand.plain())
            } else {
                operand.plain()
            }
        })
        .collect();
    let output = kernel(&inputs);
    let values = to_host(&flow_core::tensors::plain(&output));
    let mut gradients = autograd::backward_from(vec![output], vec![Some(seed.plain())]);
    let found = inputs.iter().zip(tracked).map(|(input, tracked)| {
        let gradients = gradients.as_mut().filter(|_| *tracked)?;
        let gradient = <Dispatch as AutodiffBackend>::grad_remove(input, gradients);
        Some(to_host(&gradient.expect("a tracked input gets a gradient")))
    });
    let found = found.collect();
    (values, found)
}

/// Gradients of `sum(seed · reference(operands))` by central differences in f64.
pub fn numeric_gradients(
    operands: &[Operand],
    reference: &dyn Fn(&[Vec<f64>]) -> Vec<f64>,
    seed: &Operand,
) -> Vec<Vec<f64>> {
    const STEP: f64 = 1e-5;
    let mut values: Vec<Vec<f64>> = operands.iter().map(Operand::wide).collect();
    let loss = |values: &[Vec<f64>]| -> f64 {
        reference(values)
            .iter()
            .zip(&seed.values)
            .map(|(y, s)| y * f64::from(*s))
            .sum()
    };
    (0..operands.len())
        .map(|operand| {
            (0..values[operand].len())
                .map(|at| {
                    let value = values[operand][at];
                    values[operand][at] = value + STEP;
                    let above = loss(&values);
                    values[operand][at] = value - STEP;
                    let below = loss(&values);
                    values[operand][at] = value;
                    (above - below) / (2.0 * STEP)
                })
                .collect()
        })
        .collect()
}

/// Checks `kernel` against `reference`: the output, each gradient, the same bits on plain and tracked inputs, whatever
/// else is tracked, and on one thread and three.
pub fn check(
    operands: &[Operand],
    reference: &dyn Fn(&[Vec<f64>]) -> Vec<f64>,
    kernel: &(dyn Fn(&[DispatchTensor]) -> DispatchTensor + Sync),
) {
    let wide: Vec<Vec<f64>> = operands.iter().map(Operand::wide).collect();
    let expected = reference(&wide);
    let all = vec![true; operands.len()];
    let plain_inputs: Vec<RawTensor> = operands.iter().map(Operand::plain).collect();
    let output = kernel(&plain_inputs);
    let shape = burn::backend::TensorMetadata::shape(&output).to_vec();
    let plain = to_host(&output);
    assert!(
        distance(&plain, &expected) < 1e-6,
        "output: {:e} off",
        distance(&plain, &expected)
    );
    let seed = coarse(99, &shape);
    let (values, gradients) = run(operands, &all, kernel, &seed);
    assert_eq!(bits(&values), bits(&plain), "plain and tracked inputs");
    for (index, (found, expected)) in gradients
        .iter()
        .zip(numeric_gradients(operands, reference, &seed))
        .enumerate()
    {
        let error = distance(found.as_ref().expect("tracked"), &expected);
        assert!(error < 3e-6, "gradient of input {index}: {error:e} off");
    }
    for only in 0..operands.len() {
        let tracked: Vec<bool> = (0..operands.len()).map(|index| index == only).collect();
        let (values, alone) = run(operands, &tracked, kernel, &seed);
        assert_eq!(bits(&values), bits(&plain), "only input {only} tracked");
        assert_eq!(alone[only], gradients[only], "gradient of input {only} alone");
    }
    for threads in [1, 3] {
        let (values, found) = on_threads(threads, || run(operands, &all, kernel, &seed));
        assert_eq!(bits(&values), bits(&plain), "{threads} threads");
        assert_eq!(found, gradients, "gradients on {threads} threads");
    }
}

/// Checks that one thread and three give the same bits, output and gradients, on operands too large for [`check`].
pub fn check_threads(operands: &[Operand], kernel: &(dyn Fn(&[DispatchTensor]) -> DispatchTensor + Sync)) {
    let all = vec![true; operands.len()];
    let plain_inputs: Vec<RawTensor> = operands.iter().map(Operand::plain).collect();
    let output = kernel(&plain_inputs);
    let seed = operand(98, &burn::backend::TensorMetadata::shape(&output).to_vec());
    let one = on_threads(1, || run(operands, &all, kernel, &seed));
    let three = on_threads(3, || run(operands, &all, kernel, &seed));
    assert_eq!(bits(&one.0), bits(&three.0), "output");
    assert_eq!(bits(&one.0), bits(&to_host(&output)), "plain output");
    for (index, (one, three)) in one.1.iter().zip(&three.1).enumerate() {
        assert_eq!(
            bits(one.as_ref().expect("tracked")),
            bits(three.as_ref().expect("tracked")),
            "gradient {index}"
        );
    }
}

/// GELU, tanh approximation, in f64.
pub fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
}

/// SiLU in f64.
pub fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}
