//! Builds a small DiT by name, adapts it, predicts a velocity and writes the weights.
//!
//! `cargo run --release -p flow-models --example velocity`

use flow_attention::CpuAttention;
use flow_core::device::ComputeDevice;
use flow_core::exec::{Backends, CallContext, InferencePass, Stage};
use flow_core::model::{Condition, ModelInput};
use flow_core::rng::{Purpose, Stream};
use flow_kernels::CpuKernels;
use flow_models::{ModelRegistry, StoredDtype, add_lora, initialize, load_into, register, save};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = ComputeDevice::cpu();
    let mut registry = ModelRegistry::new();
    register(&mut registry).expect("a new registry");
    println!("architectures: {}", registry.names().join(", "));

    let settings = json!({
        "latent": { "channels": 1, "height": 8, "width": 8 },
        "patch": 2, "hidden": 96, "layers": 4, "heads": 4, "qk_norm": true,
        "vocabulary": { "size": 11, "length": 1 },
    });
    let model = registry.build("dit", &settings, &device)?;
    println!(
        "{} values in {} weights",
        model.layout().count_values(|_| true),
        model.layout().len()
    );

    let mut layout = (**model.layout()).clone();
    let adapted = add_lora(
        &*model,
        &mut layout,
        &["attn.to_q".into(), "attn.to_v".into()],
        4,
        8.0,
    )?;
    println!("adapted: {}", adapted.join(", "));
    let mut weights = initialize(&*model, &Arc::new(layout), 42, &device);

    let (batch, values) = (2, model.spec().latent.values());
    let mut noise = vec![0.0; batch * values];
    Stream::new(42, Purpose::InitialNoise)
        .at(0, 0)
        .fill_normal(&mut noise);
    let input = ModelInput {
        x: device.tensor(noise, [batch, values]),
        sigma: device.tensor(vec![1.0, 0.5], [batch]),
        condition: Condition {
            tokens: Some(device.int_tensor(vec![3, 10], [batch, 1])),
            ..Condition::default()
        },
    };
    let plan = Arc::new(Backends::new(
        Arc::new(CpuAttention),
        Arc::new(CpuKernels::default()),
    ));
    let rollout = InferencePass::new(&weights, plan);
    let velocity = model.velocity(&rollout.exec(CallContext::single(Stage::Rollout)), input);
    let velocity: Vec<f32> = velocity.into_data().iter().collect();
    let largest = velocity
        .iter()
        .fold(0f32, |largest, value| largest.max(value.abs()));
    println!(
        "largest of {} values: {largest}, since adaLN-zero starts shut",
        velocity.len()
    );

    let path = std::env::temp_dir().join("flow-models-example.safetensors");
    save(&weights, &path, StoredDtype::Bf16, &BTreeMap::new())?;
    let loaded = load_into(&mut weights, &path)?;
    println!("read back {}; metadata {:?}", path.display(), loaded.metadata);
    std::fs::remove_file(&path)?;
    Ok(())
}
