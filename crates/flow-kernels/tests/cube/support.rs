//! Both devices with their kernels, and comparisons of what they compute.

use burn::backend::{AutodiffBackend, Dispatch, DispatchTensor};
use flow_core::cpu::to_host;
use flow_core::device::ComputeDevice;
use flow_core::ops::{LinearWeights, Stash};
use flow_core::tensors::{is_tracked, leaf, plain};
use flow_core::{Kernels, RawTensor, autograd};
use flow_kernels::{CpuKernels, CubeKernels};
use std::sync::{Arc, Mutex};

/// Values of a shape that differ from draw to draw.
pub fn values(draw: u64, shape: &[usize]) -> Vec<f32> {
    let purpose = flow_core::rng::Purpose::Weights;
    let mut values = vec![0.0; shape.iter().product()];
    flow_core::rng::Stream::new(3, purpose)
        .at(draw, 0)
        .fill_normal(&mut values);
    values
}

/// Where an operation is computed.
pub struct Side {
    pub device: ComputeDevice,
    pub kernels: Arc<dyn Kernels>,
}

pub fn sides() -> [Side; 2] {
    let cpu = Side {
        device: ComputeDevice::cpu(),
        kernels: Arc::new(CpuKernels::default()),
    };
    #[cfg(feature = "lavapipe")]
    let (device, kernels) = (ComputeDevice::vulkan(), CubeKernels::vulkan());
    #[cfg(not(feature = "lavapipe"))]
    let (device, kernels) = (ComputeDevice::cuda(0), CubeKernels::cuda());
    let cube = Side {
        device: device.unwrap_or_else(|error| panic!("{error:?}")),
        kernels: Arc::new(kernels),
    };
    [cpu, cube]
}

/// The device with each of its kernels.
pub fn computing() -> Vec<Side> {
    let [_, cube] = sides();
    #[cfg(all(feature = "cuda", not(feature = "lavapipe")))]
    let bf16 = vec![Side {
        device: cube.device.clone(),
        kernels: Arc::new(CubeKernels::cuda_bf16()),
    }];
    #[cfg(not(all(feature = "cuda", not(feature = "lavapipe"))))]
    let bf16 = Vec::new();
    std::iter::once(cube).chain(bf16).collect()
}

/// A tensor that an operation reads: shape, and whether a gradient is wanted.
pub type Input<'a> = (&'a [usize], bool);
/// An operation of some tensors.
pub type Operation<'a> = &'a dyn Fn(&Side, &[DispatchTensor]) -> Vec<DispatchTensor>;

pub fn inputs(side: &Side, of: &[Input<'_>]) -> Vec<DispatchTensor> {
    let made = of.iter().enumerate().map(|(draw, (shape, tracked))| {
        let tensor = side.device.plain(values(draw as u64, shape), shape);
        if *tracked { leaf(&tensor) } else { tensor }
    });
    made.collect()
}

/// Results, and the gradients of the inputs that want one.
pub fn run(side: &Side, of: &[Input<'_>], operation: Operation<'_>) -> Vec<Vec<f32>> {
    let inputs = inputs(side, of);
    let outputs = operation(side, &inputs);
    let mut found: Vec<Vec<f32>> = outputs.iter().map(|output| to_host(&plain(output))).collect();
    let seeds = outputs.iter().enumerate().map(|(number, output)| {
        let shape = burn::backend::TensorMetadata::shape(output).to_vec();
        Some(side.device.plain(values(100 + number as u64, &shape), &shape))
    });
    let seeds = seeds.collect();
    if let Some(mut gradients) = autograd::backward_from(outputs, seeds) {
        for input in inputs.iter().filter(|input| is_tracked(input)) {
            let gradient = <Dispatch as AutodiffBackend>::grad_remove(input, &mut gradients);
            found.extend(gradient.as_ref().map(to_host));
        }
    }
    found
}

/// Compares both devices, with gradients and without. Each is within the rounding of f32 sums of `terms` numbers of the
/// truth: an error that grows with the root of their number, of the size of the largest result.
pub fn compare(name: &str, terms: usize, of: &[Input<'_>], operation: Operation<'_>) {
    let [cpu, cube] = sides();
    let (expected, found) = (run(&cpu, of, operation), run(&cube, of, operation));
    assert_eq!(expected.len(), found.len(), "{name}");
    for (number, (expected, found)) in expected.iter().zip(&found).enumerate() {
        assert_eq!(expected.len(), found.len(), "{name}, tensor {number}");
        let largest = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let bound = 2f32.powi(-24) * 32.0 * (terms as f32).sqrt() * largest;
        for (at, (expected, found)) in expected.iter().zip(found).enumerate() {
            let error = (expected - found).abs();
            assert!(
                error <= bound,
                "{name}, tensor {number}, value {at}: {found}, on the CPU {expected}, bound {bound:e}"
            );
        }
    }
    let untracked: Vec<Input<'_>> = of.iter().map(|(shape, _)| (*shape, false)).collect();
    let alone = run(&cube, &untracked, operation);
    for (number, (alone, tracked)) in alone.iter().zip(&found).enumerate() {
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(
            bits(alone),
            bits(tracked),
            "{name}, tensor {number} without gradients"
        );
    }
}

/// Weights of a layer of `in` values among the inputs from `first` on: matrix, bias, and `A` and `B` of an adapter.
pub fn layer(inputs: &[DispatchTensor], first: usize) -> LinearWeights {
    let at = |number: usize| inputs[first + number].clone();
    LinearWeights {
        low_precision: None,
        weight: at(0),
        bias: Some(at(1)),
        adapter: Some((at(2), at(3), 0.5)),
    }
}

/// Keeps every result, and gives it again when it is asked for the second time.
#[derive(Debug, Default)]
pub struct Keep(Mutex<(usize, Vec<Vec<RawTensor>>)>);

impl Keep {
    /// What follows asks from the beginning again.
    pub fn again(&self) {
        self.0.lock().expect("no test panics meanwhile").0 = 0;
    }
}

impl Stash for Keep {
    fn through(&self, _: &'static str, compute: &mut dyn FnMut() -> Vec<RawTensor>) -> Vec<RawTensor> {
        let mut kept = self.0.lock().expect("no test panics meanwhile");
        let at = kept.0;
        kept.0 += 1;
        if at == kept.1.len() {
            let made = compute();
            kept.1.push(made);
        }
        kept.1[at].clone()
    }
}
