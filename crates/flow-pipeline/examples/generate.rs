//! Pictures for prompts from a folder of diffusers, on the processor:
//! `cargo run --release -p flow-pipeline --example generate -- FOLDER WIDTH HEIGHT STEPS PROMPT…`. Writes `generated-N.ppm`, the first
//! frame of videos.

use flow_attention::CpuAttention;
use flow_autoencoder::{Options, ScaledLatent};
use flow_core::Backends;
use flow_core::device::ComputeDevice;
use flow_core::exec::{CallContext, InferencePass, Stage};
use flow_core::rng::{Purpose, Stream};
use flow_kernels::CpuKernels;
use flow_models::ModelRegistry;
use flow_pipeline::{Generation, Guidance, Pipeline, PromptSettings, Size, conditions, generate};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

/// The seed of the noise.
const SEED: u64 = 42;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, width, height, steps, prompts @ ..] = arguments.as_slice() else {
        return Err("give FOLDER WIDTH HEIGHT STEPS PROMPT…".into());
    };
    let (device, size) = (
        ComputeDevice::cpu(),
        Size::picture(width.parse()?, height.parse()?),
    );
    let plan = Arc::new(Backends::new(
        Arc::new(CpuAttention),
        Arc::new(CpuKernels::default()),
    ));
    let pipeline = Pipeline::open(Path::new(folder), None)?;
    let (defaults, latent) = (pipeline.defaults(), pipeline.latent(size)?);
    println!("{}, {size}, {steps} steps", pipeline.folder().class());

    let settings = PromptSettings {
        text_tokens: defaults.text_tokens,
        micro_batch: 4,
    };
    let texts: Vec<&str> = prompts.iter().map(String::as_str).chain([""]).collect();
    let encoded = pipeline.encode_prompts(&texts, settings, &device, &plan)?;
    let (empty, encoded) = encoded.split_last().ok_or("give a prompt")?;

    let mut models = ModelRegistry::new();
    flow_models::register(&mut models)?;
    let model = pipeline.transformer(size, &models, &device)?;
    let weights = pipeline.transformer_weights(&*model, &device)?;
    let embedded = pipeline.embeds_guidance();
    let scale = embedded.then_some(defaults.guidance_scale as f32);
    let guidance = (!embedded && defaults.guidance_scale != 1.0).then(|| Guidance {
        unconditional: conditions(&vec![empty; encoded.len()], scale, &device),
        scale: defaults.guidance_scale,
    });
    let generation = Generation {
        model: &*model,
        weights: &weights,
        plan: &plan,
        condition: conditions(&encoded.iter().collect::<Vec<_>>(), scale, &device),
        guidance,
        steps: steps.parse()?,
    };
    let mut noise = vec![0.0; encoded.len() * latent.values()];
    for (sample, noise) in noise.chunks_mut(latent.values()).enumerate() {
        Stream::new(SEED, Purpose::InitialNoise)
            .at(sample as u64, 0)
            .fill_normal(noise);
    }
    let start = device.tensor(noise, [encoded.len(), latent.values()]);
    let made = generate(&pipeline, &generation, start, |step, _| {
        println!("step {}", step + 1)
    })?;

    let (autoencoder, weights) = pipeline.autoencoder(&device)?;
    let pass = InferencePass::new(&weights, plan.clone());
    let exec = pass.exec(CallContext::single(Stage::Evaluation));
    let made = autoencoder
        .scaling()
        .unscale(ScaledLatent::of_rows(made, latent)?);
    let pictures = autoencoder.decode(&exec, made, &Options::default())?;
    for (sample, prompt) in prompts.iter().enumerate() {
        let mut file = format!("P6\n{} {}\n255\n", size.width, size.height).into_bytes();
        file.extend_from_slice(&pictures.frames(sample)?[0]);
        let path = format!("generated-{}.ppm", sample + 1);
        std::fs::write(&path, file)?;
        println!("{path}: {prompt}");
    }
    Ok(())
}
