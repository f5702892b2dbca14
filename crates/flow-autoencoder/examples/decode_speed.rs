//! Decodes random latents with random weights at the size of a published autoencoder, and says how long it takes, in a line of JSON.
//!
//! `cargo run --release -p flow-autoencoder --example decode_speed -- [kl|causal] [SIDE] [FRAMES] [BATCH] [cpu|cuda]
//! [compare]`; with `--features cuda` for the GPU, where it computes in bf16. `SIDE` may be `HEIGHTxWIDTH`, as in `240x416`. `compare`
//! compares values with the processor's. `bench/parts_peer.py decode` and `bench/causal_peer.py decode-causal` are the same in PyTorch.

use burn::tensor::{FloatDType, Tensor};
use flow_attention::AttentionRegistry;
use flow_autoencoder::{Autoencoder, AutoencoderConfig, BurnConvolutions, Latent, Options};
use flow_core::device::ComputeDevice;
use flow_core::exec::{Backends, CallContext, InferencePass, Stage};
use flow_core::rng::{Purpose, Stream};
use flow_core::{Weights, cpu, tensors};
use flow_kernels::KernelRegistry;
use serde_json::json;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().unwrap_or_else(|| "kl".into());
    let [height, width] = rows_and_columns(&arguments.next().unwrap_or_else(|| "64".into()))?;
    let mut count = |name| arguments.next().map_or(Ok(1), |it| number(name, &it));
    let (frames, batch) = (count("FRAMES")?, count("BATCH")?);
    let on = arguments.next().unwrap_or_else(|| "cpu".into());
    let compare = arguments.next().is_some_and(|it| it == "compare");
    let sizes = [batch, frames, height, width];
    let job = Job::new(&kind, &on, sizes)?;
    let numbers = job.autoencoder.layout().count_values(|_| true);
    let mean_ms = job.milliseconds()?;
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    println!(
        "{}",
        json!({
            "program": "flow-train", "part": "decode", "kind": kind, "numbers": numbers, "batch": batch, "frames": frames, "size": [height, width],
            "device": job.device.name(), "mean_ms": mean_ms,
            "peak_gib": job.device.taken_bytes().map(gib), "driver_gib": job.device.driver_bytes().map(gib),
        })
    );
    if compare {
        let found = job.decoded()?;
        let wanted = Job::new(&kind, "cpu", sizes)?.decoded()?;
        let largest = wanted.iter().fold(0.0f32, |most, it| most.max(it.abs()));
        let far = |found: &[f32]| {
            let each = found.iter().zip(&wanted).map(|(a, b)| (a - b).abs());
            let mean = each.clone().sum::<f32>() / found.len() as f32;
            (each.fold(0.0, f32::max) / largest, mean / largest)
        };
        println!(
            "largest and mean difference to the processor, of the largest value: {:.5?}",
            far(&found)
        );
        let autoencoder = job.autoencoder.with_convolutions(Arc::new(BurnConvolutions));
        let found = Job { autoencoder, ..job }.decoded()?;
        println!("those of Burn's convolutions: {:.5?}", far(&found));
    }
    Ok(())
}

/// Rows and columns of `SIDE`, as many of both, or of `HEIGHTxWIDTH`.
fn rows_and_columns(text: &str) -> Result<[usize; 2], Failure> {
    let (height, width) = text.split_once('x').unwrap_or((text, text));
    let what = "SIDE (PIXELS or HEIGHTxWIDTH)";
    Ok([number(what, height)?, number(what, width)?])
}

fn number(name: &str, text: &str) -> Result<usize, Failure> {
    let wrong = || format!("{name} must be a whole number of at least 1, and is `{text}`");
    let number: NonZeroUsize = text.parse().ok().ok_or_else(wrong)?;
    Ok(number.get())
}

/// What is decoded, and where.
struct Job {
    device: ComputeDevice,
    plan: Arc<Backends>,
    autoencoder: Autoencoder,
    weights: Weights,
    latent: Tensor<5>,
}

impl Job {
    /// Of `[B, F, H, W]` in pixels.
    fn new(kind: &str, on: &str, [batch, frames, height, width]: [usize; 4]) -> Result<Self, Failure> {
        let settings = match kind {
            "kl" => json!({
                "_class_name": "AutoencoderKL", "block_out_channels": [128, 256, 512, 512], "layers_per_block": 2,
                "latent_channels": 16, "use_quant_conv": false, "use_post_quant_conv": false,
            }),
            "causal" => json!({ "_class_name": "AutoencoderKLWan" }),
            other => return Err(format!("`{other}` is none of `kl`, `causal`").into()),
        };
        let (device, plan) = open(on)?;
        let config = AutoencoderConfig::read(&settings, Path::new("config.json"))?;
        let autoencoder = Autoencoder::new(&config, &device)?;
        let mut weights = Weights::init(autoencoder.layout().clone(), 1, &device);
        // As a run has them: in the type that the device computes in, and in no other.
        weights.freeze(&vec![false; autoencoder.layout().len()]);
        device.release_unused();
        let shape = autoencoder.latent_shape(frames, height, width)?;
        let mut values = vec![0.0; batch * shape.values()];
        Stream::new(1, Purpose::InitialNoise)
            .at(0, 0)
            .fill_normal(&mut values);
        let axes = [batch, shape.channels, shape.frames, shape.height, shape.width];
        let latent = device.tensor(values, axes);
        Ok(Self {
            device,
            plan,
            autoencoder,
            weights,
            latent,
        })
    }

    fn decode(&self) -> Result<Tensor<5>, Failure> {
        let pass = InferencePass::new(&self.weights, self.plan.clone());
        let exec = pass.exec(CallContext::single(Stage::Evaluation));
        let latent = Latent::new(self.latent.clone());
        let pictures = self.autoencoder.decode(&exec, latent, &Options::default())?;
        Ok(pictures.into_tensor())
    }

    /// The values.
    fn decoded(&self) -> Result<Vec<f32>, Failure> {
        Ok(cpu::to_host(&tensors::plain(&self.decode()?.into_dispatch())))
    }

    /// Milliseconds of one decoding, of several one after another.
    fn milliseconds(&self) -> Result<f64, Failure> {
        let (warm, repeats) = if self.device.is_processor() {
            (0, 1)
        } else {
            (5, 20)
        };
        for _ in 0..warm {
            self.decode()?;
        }
        // Asking for it waits until everything is done.
        let _bytes = self.device.taken_bytes();
        let start = Instant::now();
        for _ in 0..repeats {
            self.decode()?;
        }
        let _bytes = self.device.taken_bytes();
        Ok(start.elapsed().as_secs_f64() * 1e3 / f64::from(repeats))
    }
}

/// A device with its own kernels and attention.
fn open(kind: &str) -> Result<(ComputeDevice, Arc<Backends>), Failure> {
    let (mut kernels, mut attention) = (KernelRegistry::default(), AttentionRegistry::default());
    flow_kernels::register(&mut kernels)?;
    flow_attention::register(&mut attention)?;
    let device = ComputeDevice::open(kind, 0)?;
    let (device, name) = match kind {
        "cuda" => (device.computing_in(FloatDType::BF16), "cuda-bf16"),
        _ => (device, kind),
    };
    let plan = Backends::new(attention.get(kind)?, kernels.get(name)?);
    Ok((device, Arc::new(plan)))
}
