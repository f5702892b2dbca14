//! What several tests share: a plan on the CPU, inputs from counter-based noise, and comparisons.
#![allow(dead_code)]

use burn::tensor::Tensor;
use flow_attention::CpuAttention;
use flow_core::device::ComputeDevice;
use flow_core::exec::{InferencePass, Stage, TrainingPass};
use flow_core::model::{Condition, LatentShape, ModelInput, Vocabulary};
use flow_core::rng::{Purpose, Stream};
use flow_core::tensors::{RawTensor, leaf, plain};
use flow_core::{Backends, CallContext, FlowModel, ParamLayout, Weights, cpu};
use flow_kernels::CpuKernels;
use flow_models::{DitConfig, MoeConfig, Position};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub mod lora_files;
pub mod parity;
pub mod reference;

/// The CPU's attention and kernels.
pub fn plan() -> Arc<Backends> {
    Arc::new(Backends::new(
        Arc::new(CpuAttention),
        Arc::new(CpuKernels::default()),
    ))
}

/// Normal values; `salt` tells draws apart.
pub fn noise(count: usize, salt: u64) -> Vec<f32> {
    let mut values = vec![0.0; count];
    Stream::new(11, Purpose::Test)
        .at(salt, 0)
        .fill_normal(&mut values);
    values
}

/// A DiT whose sizes no tile divides: 3 × 2 patches, 24 channels, 3 heads of 8.
pub fn small_dit(position: Position) -> DitConfig {
    DitConfig {
        latent: LatentShape {
            channels: 3,
            frames: 1,
            height: 6,
            width: 4,
        },
        patch: 2,
        hidden: 24,
        layers: 2,
        heads: 3,
        mlp_ratio: 2.5,
        vocabulary: Some(Vocabulary { size: 5, length: 3 }),
        qk_norm: position == Position::Rope,
        position,
        moe: None,
    }
}

/// One of each kind: both positions, and both with experts.
pub fn small_dits() -> [DitConfig; 4] {
    let experts = |position, shared, normalize| DitConfig {
        moe: Some(MoeConfig {
            experts: 5,
            top_k: 2,
            inner: 20,
            shared,
            normalize,
        }),
        ..small_dit(position)
    };
    [
        small_dit(Position::Sincos),
        small_dit(Position::Rope),
        experts(Position::Sincos, 28, false),
        experts(Position::Rope, 0, true),
    ]
}

/// Weights that are all different from zero, so that no path is shut by a zero gate.
pub fn noisy_weights(layout: &Arc<ParamLayout>, device: &ComputeDevice) -> Weights {
    let mut weights = Weights::init(layout.clone(), 0, device);
    for (index, spec) in layout.specs().iter().enumerate() {
        let count = spec.shape.iter().product();
        let offset = if spec.name.contains(".norm_") { 1.0 } else { 0.0 };
        let values = noise(count, 1000 + index as u64);
        let values = values.iter().map(|value| offset + 0.2 * value).collect();
        weights.set(index, device.plain(values, &spec.shape)).unwrap();
    }
    weights
}

/// Inputs of a token-conditioned model as host values.
#[derive(Clone, Debug)]
pub struct HostInput {
    pub x: Vec<f32>,
    pub sigma: Vec<f32>,
    pub tokens: Vec<i64>,
}

/// A batch of different rows.
pub fn host_input(config: &DitConfig, batch: usize) -> HostInput {
    let Vocabulary { size, length } = config.vocabulary.unwrap();
    HostInput {
        x: noise(batch * config.latent.values(), 1),
        sigma: (0..batch)
            .map(|row| (row as f32 + 0.6) / (batch as f32 + 0.5))
            .collect(),
        tokens: (0..batch * length)
            .map(|at| ((at * 7 + 3) % size) as i64)
            .collect(),
    }
}

/// The same on the device.
pub fn model_input(config: &DitConfig, host: &HostInput, device: &ComputeDevice) -> ModelInput {
    let batch = host.sigma.len();
    ModelInput {
        x: device.tensor(host.x.clone(), [batch, config.latent.values()]),
        sigma: device.tensor(host.sigma.clone(), [batch]),
        condition: Condition {
            tokens: Some(device.int_tensor(host.tokens.clone(), [batch, config.vocabulary.unwrap().length])),
            ..Condition::default()
        },
    }
}

/// The velocity on plain tensors.
pub fn velocity(model: &dyn FlowModel, weights: &Weights, input: ModelInput) -> Vec<f32> {
    let rollout = InferencePass::new(weights, plan());
    let exec = rollout.exec(CallContext::single(Stage::Rollout));
    host(model.velocity(&exec, input))
}

/// Values of a tensor, tracked or not.
pub fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    cpu::to_host(&plain(&tensor.into_dispatch()))
}

/// A tensor as a leaf that wants a gradient.
pub fn tracked<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(leaf(&plain(&tensor.into_dispatch())))
}

/// The velocity on tracked weights, and the gradient of each weight under `cotangent`.
pub fn velocity_and_gradients(
    model: &dyn FlowModel,
    weights: &Weights,
    trained: Arc<[bool]>,
    input: ModelInput,
    cotangent: &RawTensor,
) -> (Vec<f32>, Vec<Option<Vec<f32>>>) {
    velocity_and_gradients_of(plan(), model, weights, trained, input, cotangent)
}

/// As [`velocity_and_gradients`], through another plan.
pub fn velocity_and_gradients_of(
    plan: Arc<Backends>,
    model: &dyn FlowModel,
    weights: &Weights,
    trained: Arc<[bool]>,
    input: ModelInput,
    cotangent: &RawTensor,
) -> (Vec<f32>, Vec<Option<Vec<f32>>>) {
    let training = TrainingPass::new(weights, plan, trained);
    let exec = training.exec(CallContext::single(Stage::Training));
    let output = model.velocity(&exec, input).into_dispatch();
    let values = cpu::to_host(&plain(&output));
    let gradients = flow_core::autograd::backward_from(vec![output], vec![Some(cotangent.clone())]);
    let mut gradients = gradients.expect("something is trained");
    let gradients = exec.params().take_gradients(&mut gradients);
    let gradients = gradients
        .iter()
        .map(|gradient| gradient.as_ref().map(cpu::to_host));
    (values, gradients.collect())
}

/// `|a - b| / |b|` in the Euclidean norm; `|a|` where `b` is zero, as the gradients of unused weights are.
pub fn relative_distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "values to compare");
    let square = |sum: f64, value: f64| sum + value * value;
    let pairs = a.iter().zip(b);
    let distance = pairs.fold(0.0, |sum, (a, b)| square(sum, f64::from(*a) - f64::from(*b)));
    let length = b.iter().fold(0.0, |sum, b| square(sum, f64::from(*b)));
    if length == 0.0 {
        distance.sqrt()
    } else {
        (distance / length).sqrt()
    }
}

/// A file of the vendored fixtures.
pub fn fixture(name: &str) -> PathBuf {
    // Cargo runs tests in the package's folder.
    Path::new("tests/fixtures").join(name)
}

/// Tensors of a fixture by name, with their shapes.
pub fn tensors(name: &str) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let bytes = std::fs::read(fixture(name)).unwrap();
    let parsed = flow_models::weights::parse(&bytes).unwrap();
    let whole_numbers = |bytes: &[u8]| -> Vec<f32> {
        let numbers = bytes
            .chunks_exact(8)
            .map(|it| i64::from_le_bytes(it.try_into().unwrap()));
        numbers.map(|number| number as f32).collect()
    };
    let tensors = parsed.tensors.iter();
    tensors
        .map(|it| {
            // Masks are the only tensors of fixtures that are no floats.
            let values = it.to_f32().unwrap_or_else(|| whole_numbers(it.bytes));
            (it.name.clone(), (it.shape.clone(), values))
        })
        .collect()
}
