//! What several tests share: fixtures, a plan on the processor, and comparisons.
#![allow(dead_code)]

use burn::tensor::Tensor;
use flow_attention::CpuAttention;
use flow_autoencoder::{Autoencoder, Latent, Options, Pictures, open, open_weights};
use flow_core::device::ComputeDevice;
use flow_core::rng::{Purpose, Stream};
use flow_core::tensors::{RawTensor, leaf, plain};
use flow_core::{Backends, CallContext, Exec, InferencePass, Stage, TrainingPass, Weights, autograd, cpu};
use flow_kernels::CpuKernels;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What another implementation in f32 may differ by, of the largest value.
pub const TOLERANCE: f32 = 5e-5;

/// The folder of the network that `kl` is recorded of.
pub const KL: &str = "pipelines/sd3/vae";

/// Tensors by name, with their shapes.
pub type Named = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// The processor's attention and kernels.
pub fn plan() -> Arc<Backends> {
    Arc::new(Backends::new(
        Arc::new(CpuAttention),
        Arc::new(CpuKernels::default()),
    ))
}

/// Normal values; `salt` tells draws apart.
pub fn noise(count: usize, salt: u64) -> Vec<f32> {
    let mut values = vec![0.0; count];
    Stream::new(23, Purpose::Test)
        .at(salt, 0)
        .fill_normal(&mut values);
    values
}

/// A normal tensor; `salt` tells draws apart.
pub fn normal<const D: usize>(shape: [usize; D], salt: u64) -> Tensor<D> {
    ComputeDevice::cpu().tensor(noise(shape.iter().product(), salt), shape)
}

/// A file or folder of the fixtures.
pub fn fixture(name: &str) -> PathBuf {
    // Cargo runs tests in the package's folder.
    Path::new("tests/fixtures").join(name)
}

/// Tensors of a fixture, but for masks.
pub fn tensors(name: &str) -> Named {
    floats_of(&fixture(name))
}

/// What diffusers recorded of a whole small pipeline.
pub fn recorded_pipeline(name: &str) -> Named {
    floats_of(&Path::new("../../tests/pipelines").join(name))
}

fn floats_of(path: &Path) -> Named {
    let bytes = std::fs::read(path).unwrap();
    let parsed = flow_models::weights::parse(&bytes).unwrap();
    let tensors = parsed.tensors.iter();
    tensors
        .filter_map(|it| Some((it.name.clone(), (it.shape.clone(), it.to_f32()?))))
        .collect()
}

/// One of them, pictures as videos of one frame.
pub fn tensor(io: &Named, name: &str) -> Tensor<5> {
    let (shape, values) = &io[name];
    let shape = match *shape.as_slice() {
        [batch, channels, height, width] => [batch, channels, 1, height, width],
        [batch, channels, frames, height, width] => [batch, channels, frames, height, width],
        ref other => panic!("{name} has {other:?}"),
    };
    ComputeDevice::cpu().tensor(values.clone(), shape)
}

/// Values of a tensor, tracked or not.
pub fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    cpu::to_host(&plain(&tensor.into_dispatch()))
}

/// A tensor as a leaf that wants a gradient.
pub fn tracked<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(leaf(&plain(&tensor.into_dispatch())))
}

/// The largest difference, of the largest value.
pub fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len(), "values to compare");
    let largest = expected.iter().fold(0f32, |largest, it| largest.max(it.abs()));
    let pairs = found.iter().zip(expected);
    let distance = pairs.fold(0f32, |distance, (a, b)| distance.max((a - b).abs()));
    assert!(found.iter().all(|it| it.is_finite()));
    distance / largest.max(f32::MIN_POSITIVE)
}

/// That two lists of values are the same but for rounding.
#[track_caller]
pub fn assert_near(what: &str, found: &[f32], expected: &[f32]) {
    let difference = difference(found, expected);
    assert!(difference <= TOLERANCE, "{what}: {difference:e}");
}

/// An autoencoder of the fixtures with its weights. Those of `qwenimage`, which has the layers of `wan`, are `wan`'s.
pub fn fixture_autoencoder(name: &str) -> (Autoencoder, Weights) {
    let device = ComputeDevice::cpu();
    let opened = match name {
        "kl" => open(&fixture(KL), &device),
        "qwenimage" => open_weights(&fixture(name), &fixture("wan"), &device),
        _ => open(&fixture(name), &device),
    };
    opened.unwrap()
}

/// Runs `task` with untracked weights.
pub fn with_exec<T>(weights: &Weights, task: impl FnOnce(&Exec<'_>) -> T) -> T {
    let rollout = InferencePass::new(weights, plan());
    task(&rollout.exec(CallContext::single(Stage::Evaluation)))
}

/// Decoded pictures, as they are.
pub fn decode(
    autoencoder: &Autoencoder,
    weights: &Weights,
    latent: Tensor<5>,
    options: &Options,
) -> Vec<f32> {
    with_exec(weights, |exec| {
        let pictures = autoencoder.decode(exec, Latent::new(latent), options).unwrap();
        host(pictures.into_tensor())
    })
}

/// Moments, as they are.
pub fn encode(
    autoencoder: &Autoencoder,
    weights: &Weights,
    pictures: Tensor<5>,
    options: &Options,
) -> Vec<f32> {
    with_exec(weights, |exec| {
        let moments = autoencoder
            .encode(exec, Pictures::new(pictures), options)
            .unwrap();
        host(moments.tensor().clone())
    })
}

/// Decoded pictures with tracked latents and weights, and the gradients under `cotangent`: of the latent, and of the weights
/// by name.
pub fn decode_gradients(
    autoencoder: &Autoencoder,
    weights: &Weights,
    latent: Tensor<5>,
    cotangent: RawTensor,
) -> (Vec<f32>, Vec<f32>, BTreeMap<String, Vec<f32>>) {
    let trained: Arc<[bool]> = vec![true; autoencoder.layout().len()].into();
    let training = TrainingPass::new(weights, plan(), trained);
    let exec = training.exec(CallContext::single(Stage::Training));
    let latent = tracked(latent);
    let pictures = autoencoder
        .decode(&exec, Latent::new(latent.clone()), &Options::default())
        .unwrap();
    let output = pictures.into_tensor().into_dispatch();
    let values = cpu::to_host(&plain(&output));
    let mut gradients = autograd::backward_from(vec![output], vec![Some(cotangent)]).unwrap();
    let of_latent = autograd::take_gradient(&latent.into_dispatch(), &mut gradients).unwrap();
    let found = exec.params().take_gradients(&mut gradients);
    let specs = autoencoder.layout().specs().iter();
    let by_name = specs
        .zip(found)
        .filter_map(|(spec, gradient)| Some((spec.name.clone(), cpu::to_host(&gradient?))));
    (values, cpu::to_host(&of_latent), by_name.collect())
}

/// Compares everything that a folder of fixtures has: moments, mode, decoded pictures, tiles, gradients.
pub fn check_parity(name: &str, picture: &str, tiling: flow_autoencoder::Tiling) {
    let (autoencoder, weights) = fixture_autoencoder(name);
    let io = tensors(&format!("{name}/io.safetensors"));
    let plain = Options::default();
    let tiled = Options {
        tiling: Some(tiling),
        ..Options::default()
    };
    let (whole, in_tiles) = (format!("in.{picture}"), format!("in.{picture}_tiled"));
    with_exec(&weights, |exec| {
        let pictures = Pictures::new(tensor(&io, &whole));
        let moments = autoencoder.encode(exec, pictures, &plain).unwrap();
        assert_near("moments", &host(moments.tensor().clone()), &io["moments"].1);
        assert_near("mode", &host(moments.mode().into_tensor()), &io["mode"].1);
        if let Some((_, deviation)) = io.get("std") {
            assert_near("std", &host(moments.deviation()), deviation);
        }
    });
    let found = encode(&autoencoder, &weights, tensor(&io, &in_tiles), &tiled);
    assert_near("moments_tiled", &found, &io["moments_tiled"].1);
    let found = decode(&autoencoder, &weights, tensor(&io, "in.latent"), &plain);
    assert_near("decoded", &found, &io["decoded"].1);
    let found = decode(&autoencoder, &weights, tensor(&io, "in.latent_tiled"), &tiled);
    let mut expected = io["decoded_tiled"].1.clone();
    // Diffusers clamps what `AutoencoderKLQwenImage` decodes whole, but leaves it in tiles as it is: only its image processor clamps
    // that. We clamp both.
    if name == "qwenimage" {
        let values = expected.iter_mut();
        values.for_each(|value| *value = value.clamp(-1.0, 1.0));
    }
    assert_near("decoded_tiled", &found, &expected);

    let cotangent = plain_of(tensor(&io, "grad_out"));
    let (values, of_latent, of_weights) =
        decode_gradients(&autoencoder, &weights, tensor(&io, "in.latent"), cotangent);
    let untracked = decode(&autoencoder, &weights, tensor(&io, "in.latent"), &plain);
    assert_eq!(
        values, untracked,
        "a forward pass does not know whether it is tracked"
    );
    assert_near("grad_in.latent", &of_latent, &io["grad_in.latent"].1);
    let mut compared = 0;
    for (name, (_, expected)) in &io {
        if let Some(name) = name.strip_prefix("grad_param.") {
            assert_near(name, &of_weights[name], expected);
            compared += 1;
        }
    }
    assert!(compared >= 4, "{compared} gradients of weights");
}

/// A tensor whose rank is erased.
pub fn plain_of<const D: usize>(tensor: Tensor<D>) -> RawTensor {
    plain(&tensor.into_dispatch())
}
