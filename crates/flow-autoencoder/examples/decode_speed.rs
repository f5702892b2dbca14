//! Decodes random latents with random weights at the size of a published autoencoder, and says how long it takes.
//!
//! `cargo run --release -p flow-autoencoder --example decode_speed -- [kl|causal] [SIDE] [FRAMES]`

use flow_attention::CpuAttention;
use flow_autoencoder::{Autoencoder, AutoencoderConfig, Latent, Options};
use flow_core::device::ComputeDevice;
use flow_core::exec::{Backends, CallContext, InferencePass, Stage};
use flow_core::rng::{Purpose, Stream};
use flow_core::{Weights, cpu, tensors};
use flow_kernels::CpuKernels;
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().unwrap_or_else(|| "kl".into());
    let side: usize = arguments.next().map_or(Ok(64), |it| it.parse())?;
    let frames: usize = arguments.next().map_or(Ok(1), |it| it.parse())?;
    let settings = match &*kind {
        "kl" => json!({
            "_class_name": "AutoencoderKL", "block_out_channels": [128, 256, 512, 512], "layers_per_block": 2,
            "latent_channels": 16, "use_quant_conv": false, "use_post_quant_conv": false,
        }),
        "causal" => json!({ "_class_name": "AutoencoderKLWan" }),
        other => return Err(format!("`{other}` is none of `kl`, `causal`").into()),
    };
    let device = ComputeDevice::cpu();
    let config = AutoencoderConfig::read(&settings, Path::new("config.json"))?;
    let autoencoder = Autoencoder::new(&config, &device)?;
    let weights = Weights::init(autoencoder.layout().clone(), 1, &device);
    let shape = autoencoder.latent_shape(frames, side, side)?;
    let mut values = vec![0.0; shape.values()];
    Stream::new(1, Purpose::InitialNoise)
        .at(0, 0)
        .fill_normal(&mut values);
    let latent = device.tensor(
        values,
        [1, shape.channels, shape.frames, shape.height, shape.width],
    );

    let plan = Arc::new(Backends::new(
        Arc::new(CpuAttention),
        Arc::new(CpuKernels::default()),
    ));
    let rollout = InferencePass::new(&weights, plan);
    let exec = rollout.exec(CallContext::single(Stage::Evaluation));
    println!(
        "{kind}: {} numbers, {frames} frames of {side} by {side} pixels on {}",
        autoencoder.layout().count_values(|_| true),
        device.name()
    );
    for _ in 0..3 {
        let start = Instant::now();
        let pictures = autoencoder.decode(&exec, Latent::new(latent.clone()), &Options::default())?;
        let values = cpu::to_host(&tensors::plain(&pictures.into_tensor().into_dispatch()));
        let (low, high) = values.iter().fold((f32::MAX, f32::MIN), |(low, high), it| {
            (low.min(*it), high.max(*it))
        });
        println!(
            "{:.2} s, from {low:.3} to {high:.3}",
            start.elapsed().as_secs_f64()
        );
    }
    Ok(())
}
