//! Encodes tokens with T5-XXL of random weights, and says how long it takes, in a line of JSON.
//!
//! `cargo run --release -p flow-text-encoder --example encode_speed -- [cpu|cuda] [BATCH] [TOKENS] [LAYERS] [compare]`; with `--features
//! cuda` for the GPU, where it computes in bf16, its weights in bf16 and in no other type, as a run has them. `compare` compares
//! values with the processor's, for which few layers are enough. `bench/parts_peer.py t5` is the same in PyTorch.

use burn::backend::{Dispatch, ops::FloatTensorOps};
use burn::tensor::{DType, FloatDType, Tensor, TensorData};
use flow_attention::AttentionRegistry;
use flow_core::device::ComputeDevice;
use flow_core::error::CoreError;
use flow_core::exec::{Backends, CallContext, InferencePass, Stage};
use flow_core::rng::{Purpose, Stream};
use flow_core::{ParamLayout, ParamSpec, RawTensor, Weights};
use flow_kernels::KernelRegistry;
use flow_text_encoder::{Padding, T5Config, T5Encoder, TextEncoder, Tokens};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

type Failure = Box<dyn std::error::Error>;

/// Values of the table that matrices are made of: a prime, so that no width divides it and no two rows are alike.
const TABLE: usize = 1_048_583;
/// How far apart in the table neighbouring weights begin.
const STRIDE: usize = 7919;
/// Standard deviation of matrices.
const DEVIATION: f32 = 0.02;

fn main() -> Result<(), Failure> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let compare = arguments.last().is_some_and(|it| it == "compare");
    arguments.truncate(arguments.len() - usize::from(compare));
    let mut arguments = arguments.into_iter();
    let on = arguments.next().unwrap_or_else(|| "cpu".into());
    let mut number = |or: usize| arguments.next().map_or(Ok(or), |it| it.parse());
    let (batch, tokens, layers) = (number(16)?, number(256)?, number(24)?);
    let job = Job::new(&on, [batch, tokens, layers])?;
    let mut times = Vec::new();
    for _ in 0..if job.device.is_processor() { 1 } else { 25 } {
        let start = Instant::now();
        let text = job.encode()?;
        let _value = text.slice([0..1, 0..1, 0..1]).into_data();
        times.push(1e3 * start.elapsed().as_secs_f64());
    }
    // The first ones compile.
    let mut times = times.split_off(times.len() / 5);
    times.sort_by(f64::total_cmp);
    let attention: Vec<String> = (job.plan.attention_log.since(0).iter())
        .map(ToString::to_string)
        .collect();
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    println!(
        "{}",
        json!({
            "program": "flow-train", "part": "t5", "batch": batch, "size": tokens, "layers": layers,
            "device": job.device.name(), "attention": attention,
            "median_ms": times[times.len() / 2], "least_ms": times[0], "samples": times.len(),
            "peak_gib": job.device.taken_bytes().map(gib), "driver_gib": job.device.driver_bytes().map(gib),
        })
    );
    if compare {
        let found = values(job.encode()?);
        let wanted = values(Job::new("cpu", [batch, tokens, layers])?.encode()?);
        let square = |of: &mut dyn Iterator<Item = f32>| of.map(|it| f64::from(it).powi(2)).sum::<f64>();
        let apart = square(&mut found.iter().zip(&wanted).map(|(a, b)| a - b));
        let relative = (apart / square(&mut wanted.iter().copied())).sqrt();
        println!(
            "{}",
            json!({ "part": "t5", "relative_l2_to_the_processor": relative })
        );
    }
    Ok(())
}

fn values(text: Tensor<3>) -> Vec<f32> {
    text.into_data().iter::<f32>().collect()
}

/// What is encoded, and where.
struct Job {
    device: ComputeDevice,
    plan: Arc<Backends>,
    encoder: T5Encoder,
    weights: Weights,
    tokens: Tokens,
}

impl Job {
    fn new(on: &str, [batch, tokens, layers]: [usize; 3]) -> Result<Self, Failure> {
        let config = json!({
            "model_type": "t5", "feed_forward_proj": "gated-gelu", "vocab_size": 32128, "d_model": 4096, "d_ff": 10240, "d_kv": 64,
            "num_heads": 64, "num_layers": layers
        });
        let encoder = T5Encoder::new(T5Config::read(Path::new("config.json"), &config)?);
        let (device, plan) = open(on)?;
        let row = |row: usize| (0..tokens).map(move |at| ((row * tokens + at) * 7919 % 32_000) as u32);
        Ok(Self {
            weights: made(encoder.layout(), &device)?,
            tokens: Tokens::new((0..batch).map(|index| row(index).collect()).collect())?,
            device,
            plan,
            encoder,
        })
    }

    fn encode(&self) -> Result<Tensor<3>, Failure> {
        let pass = InferencePass::new(&self.weights, self.plan.clone());
        let exec = pass.exec(CallContext::single(Stage::Evaluation));
        Ok(self.encoder.encode(&exec, &self.tokens, Padding::Attended)?)
    }
}

/// Random weights in the type that `device` computes in: vectors of ones, which scale norms, and matrices that are stretches of one table of
/// normal values.
fn made(layout: &Arc<ParamLayout>, device: &ComputeDevice) -> Result<Weights, CoreError> {
    let mut table = vec![0.0f32; TABLE];
    Stream::new(1, Purpose::Weights).at(0, 0).fill_normal(&mut table);
    table.iter_mut().for_each(|value| *value *= DEVIATION);
    let value = |index: usize, spec: &ParamSpec| -> Result<RawTensor, CoreError> {
        let count: usize = spec.shape.iter().product();
        let stretch = table.iter().cycle().skip(index * STRIDE % TABLE);
        let values: Vec<f32> = match spec.shape.len() {
            1 => vec![1.0; count],
            _ => stretch.take(count).copied().collect(),
        };
        let row = Tensor::<1>::from_data(TensorData::new(values, [count]), (device.burn(), DType::F32));
        let row = match device.compute_dtype() {
            Some(FloatDType::BF16) => row.cast(DType::BF16),
            _ => row,
        };
        Ok(Dispatch::float_reshape(
            row.into_dispatch(),
            spec.shape.clone().into(),
        ))
    };
    let lasting = |index: usize, spec: &ParamSpec| device.with_persistent_allocation(|| value(index, spec));
    let weights = Weights::from_values(layout.clone(), device, lasting)?;
    device.release_unused();
    Ok(weights)
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
