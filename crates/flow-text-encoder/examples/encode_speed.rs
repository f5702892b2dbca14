//! Encodes tokens with T5-XXL of random weights, and says how long it takes.
//!
//! `cargo run --release -p flow-text-encoder --example encode_speed -- [cpu|cuda] [BATCH] [TOKENS] [LAYERS]`; with `--features
//! cuda` for the GPU, where it computes in bf16. `bench/parts_peer.py t5` is the same in PyTorch.

use burn::tensor::FloatDType;
use flow_attention::AttentionRegistry;
use flow_core::Weights;
use flow_core::device::ComputeDevice;
use flow_core::exec::{Backends, CallContext, InferencePass, Stage};
use flow_kernels::KernelRegistry;
use flow_text_encoder::{Padding, T5Config, T5Encoder, TextEncoder, Tokens};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let on = arguments.next().unwrap_or_else(|| "cpu".into());
    let mut number = |or: usize| arguments.next().map_or(Ok(or), |it| it.parse());
    let (batch, tokens, layers) = (number(16)?, number(256)?, number(24)?);
    let config = json!({
        "model_type": "t5", "feed_forward_proj": "gated-gelu", "vocab_size": 32128, "d_model": 4096, "d_ff": 10240, "d_kv": 64,
        "num_heads": 64, "num_layers": layers
    });
    let encoder = T5Encoder::new(T5Config::read(Path::new("config.json"), &config)?);
    let (device, plan) = open(&on)?;
    let weights = Weights::init(encoder.layout().clone(), 1, &device);
    let row = |row: usize| (0..tokens).map(move |at| ((row * tokens + at) * 7919 % 32_000) as u32);
    let ids = Tokens::new((0..batch).map(|index| row(index).collect()).collect())?;
    let pass = InferencePass::new(&weights, plan.clone());
    let exec = pass.exec(CallContext::single(Stage::Rollout));
    println!(
        "{batch} of {tokens} tokens through {layers} layers on {}",
        device.name()
    );
    for _ in 0..if device.is_processor() { 1 } else { 20 } {
        let start = Instant::now();
        let text = encoder.encode(&exec, &ids, Padding::Attended)?;
        let _value = text.slice([0..1, 0..1, 0..1]).into_data();
        println!("{:.2} ms", 1e3 * start.elapsed().as_secs_f64());
    }
    for used in plan.attention_log.since(0) {
        println!("attention {used}");
    }
    if let Some(bytes) = device.taken_bytes() {
        println!("{:.3} GiB taken", bytes as f64 / (1u64 << 30) as f64);
    }
    Ok(())
}

/// A device with its own kernels and attention.
fn open(kind: &str) -> Result<(ComputeDevice, Arc<Backends>), Box<dyn std::error::Error>> {
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
