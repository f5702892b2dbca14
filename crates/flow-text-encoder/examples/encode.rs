//! Encodes tokens by the text encoder of a folder: `cargo run --release -p flow-text-encoder --example encode -- FOLDER ID ID …`.
//! Without arguments, by a small T5 of random weights.

use burn::tensor::Tensor;
use flow_attention::CpuAttention;
use flow_core::device::ComputeDevice;
use flow_core::exec::{CallContext, Exec, InferencePass, Stage};
use flow_core::{Backends, Weights};
use flow_kernels::CpuKernels;
use flow_text_encoder::{AnyTextEncoder, EncoderError, Padding, Tokens, load};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = ComputeDevice::cpu();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (any, weights, ids) = match arguments.split_first() {
        Some((folder, ids)) => {
            let folder = Path::new(folder);
            let any = AnyTextEncoder::open(folder)?;
            let (weights, found) = load(any.encoder(), folder, None, &device)?;
            println!("{} tensors of the files are no part of it", found.ignored.len());
            let ids: Vec<u32> = ids.iter().map(|id| id.parse()).collect::<Result<_, _>>()?;
            (any, weights, ids)
        }
        None => {
            let any = small()?;
            let weights = Weights::init(any.encoder().layout().clone(), 42, &device);
            (any, weights, vec![3, 9, 17, 1, 0, 0])
        }
    };
    let encoder = any.encoder();
    let values = encoder.layout().count_values(|_| true);
    println!("{}: {values} weights", encoder.class_name());

    let plan = Arc::new(Backends::new(
        Arc::new(CpuAttention),
        Arc::new(CpuKernels::default()),
    ));
    let exec = InferencePass::new(&weights, plan.clone()).exec(CallContext::single(Stage::Rollout));
    let mask = vec![vec![true; ids.len()]];
    let text = encode(&any, &exec, &Tokens::with_mask(vec![ids], mask)?)?;
    println!("text {:?}", text.dims());
    let first = text.slice([0..1, 0..1, 0..4]).into_data();
    println!("first values: {:.5?}", first.iter::<f32>().collect::<Vec<_>>());
    for used in plan.attention_log.since(0) {
        println!("attention {used}");
    }
    Ok(())
}

/// The last hidden state, `[1, S, D]`.
fn encode(any: &AnyTextEncoder, exec: &Exec<'_>, tokens: &Tokens) -> Result<Tensor<3>, EncoderError> {
    match any {
        AnyTextEncoder::Clip(encoder) => Ok(encoder.encode(exec, tokens)?.normed),
        AnyTextEncoder::T5(encoder) => encoder.encode(exec, tokens, Padding::Attended),
        AnyTextEncoder::Qwen(encoder) => encoder.encode(exec, tokens),
    }
}

fn small() -> Result<AnyTextEncoder, EncoderError> {
    let config = json!({
        "model_type": "t5", "feed_forward_proj": "gated-gelu", "vocab_size": 100, "d_model": 32, "d_ff": 64, "d_kv": 8,
        "num_heads": 4, "num_layers": 2
    });
    AnyTextEncoder::read(Path::new("config.json"), &config, None)
}
