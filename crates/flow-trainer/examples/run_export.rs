//! Exports what `bench/run_peer.py check` compares itself with, before a run in PyTorch is taken for the same run: random
//! numbers, prompts, images, rewards and advantages of the first iteration, and rewards of images at the edge of the rules.
//!
//! `run_export CONFIG FOLDER [SECTION.KEY=VALUE …]` writes `weights.safetensors` and `wanted.safetensors`, computed in f32 on
//! the processor.

#[path = "common/arrays.rs"]
mod arrays;

use arrays::Arrays;
use flow_accel::AcceleratorRegistry;
use flow_attention::CpuAttention;
use flow_config::Config;
use flow_core::device::ComputeDevice;
use flow_core::rng::{Purpose, Stream};
use flow_core::{Backends, InferencePass, Stage, cpu};
use flow_data::{Image, Prompt, PromptSpec, Shapes, ShapesSettings};
use flow_kernels::CpuKernels;
use flow_models::StoredDtype;
use flow_rewards::RewardSample;
use flow_trainer::Plugins;
use flow_trainer::advantage::{RewardColumn, compute_advantages};
use flow_trainer::conditions::Conditioner;
use flow_trainer::geometry::{BatchGeometry, PromptSampler};
use flow_trainer::geometry_history::GeometryHistory;
use flow_trainer::policy::{CallSite, Policy};
use flow_trainer::rollout::{NoiseSource, SampleRequest, Sampler};
use flow_trainer::setup::{self, Environment, PipelineFolders};
use serde_json::json;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

/// An address of random numbers whose parts do not fit in 32 bits.
const FAR_SAMPLE: u64 = (1 << 40) + 3;
const FAR_STEP: u32 = 5;
/// Random words and normal values that are compared.
const WORDS: usize = 1000;
const NORMALS: usize = 4096;
/// Levels of noise on the pictures at the edge of the rules, whose colours differ by 1.6 from the background.
const EDGE_NOISE: [f32; 6] = [0.0, 0.1, 0.25, 0.4, 0.6, 0.9];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match &arguments[..] {
        [config, folder, set @ ..] => export(config, Path::new(folder), set),
        _ => Err("usage: run_export CONFIG FOLDER [SECTION.KEY=VALUE …]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn export(path: &str, folder: &Path, set: &[String]) -> Result<(), Box<dyn Error>> {
    let plugins = Plugins::built_in()?;
    let base = flow_config::base_dir(path);
    let config = flow_config::load(&plugins.catalog(), path, set)
        .map_err(|report| report.to_string())?
        .config;
    let device = ComputeDevice::cpu();
    let plan = Arc::new(Backends::new(
        Arc::new(CpuAttention),
        Arc::new(CpuKernels::default()),
    ));
    let environment = Environment {
        device: device.clone(),
        plan: plan.clone(),
        accelerators: &AcceleratorRegistry::default(),
        plugins: &plugins,
        base: &base,
        memory_probe: None,
        folders: PipelineFolders::default(),
        exchange: std::sync::Arc::new(flow_trainer::distributed::Alone),
    };
    let model = setup::model(&config, &environment)?;
    let dataset = setup::dataset(&config, &environment)?;
    let spec = model.model.spec();
    let mut wanted = Arrays::default();

    let seed = config.run.seed;
    let sampler = Sampler {
        policy: Policy::new(model.model.clone(), config.sampling.guidance_scale as f32),
        kernels: plan.kernels.clone(),
        device: device.clone(),
        seed,
        size: 0,
    };
    random_numbers(&sampler, &mut wanted);

    // The first iteration.
    let geometry = BatchGeometry::from_config(&config.sampling, &config.optimizer)?;
    let prompts = dataset.train_prompts();
    let drawn = PromptSampler::new(prompts.len(), geometry.prompts(), seed)?.draw(0);
    let of = |sample: usize| &prompts[drawn[geometry.slot(sample).0].prompt];
    let asked: Vec<&Prompt> = (0..geometry.samples()).map(of).collect();
    let tokens: Vec<Vec<u32>> = asked.iter().map(|prompt| prompt.tokens.clone()).collect();
    wanted.tokens("tokens", &tokens);
    let steps = setup::schedule(&config, spec.tokens)?.steps_for(0);
    let conditioner = Conditioner::new(&*dataset, spec, false, &device)?;
    let rollout = InferencePass::new(&model.weights, plan.clone());
    let mut clean = Vec::new();
    let history = GeometryHistory::new(&geometry);
    for range in geometry.micro_batch_samples() {
        let ids: Vec<u64> = range.clone().map(|sample| history.sample_id(0, sample)).collect();
        let request = SampleRequest {
            site: CallSite {
                stage: Stage::Rollout,
                iteration: 0,
                step: 0,
                stochastic: false,
                sigma: None,
                steps: steps.len() as u32,
            },
            source: NoiseSource::Rollout,
            samples: &ids,
            starts: &ids,
            conditions: conditioner.conditions(range.map(of)),
            steps: &steps,
        };
        clean.extend(cpu::to_host(&sampler.run(&rollout, request, |_| {}).clean));
    }
    wanted.floats("clean", &[asked.len(), spec.latent.values()], &clean);

    let side = spec.latent.height;
    let images: Vec<Image> = clean
        .chunks_exact(spec.latent.values())
        .map(|pixels| image(side, pixels.iter().copied()))
        .collect();
    let groups: Vec<u64> = (0..asked.len())
        .map(|sample| drawn[geometry.slot(sample).0].group)
        .collect();
    let first = First {
        asked,
        images,
        groups,
    };
    rewards(&first, (&plugins, &config, &base), (&prompts, side), &mut wanted)?;
    std::fs::create_dir_all(folder)?;
    let weights = folder.join("weights.safetensors");
    flow_models::save(&model.weights, &weights, StoredDtype::F32, &BTreeMap::new())?;
    wanted.write(&folder.join("wanted.safetensors"))
}

/// Random numbers at an address of many bits.
fn random_numbers(sampler: &Sampler, wanted: &mut Arrays) {
    let mut draws = Stream::new(sampler.seed, Purpose::SdeNoise).at(FAR_SAMPLE, FAR_STEP);
    let words: Vec<u32> = (0..WORDS).map(|_| draws.next_u32()).collect();
    wanted.tokens("words", &[words]);
    let normals = sampler.noise(Purpose::SdeNoise, &[0, 1, FAR_SAMPLE], FAR_STEP, NORMALS);
    wanted.plain("normals", &normals);
}

/// The samples of the first iteration.
struct First<'a> {
    asked: Vec<&'a Prompt>,
    images: Vec<Image>,
    groups: Vec<u64>,
}

/// Rewards of the first images and of pictures at the edge, and the advantages of the reward that the config trains on. Pictures at the
/// edge are `side` pixels wide, and of all `prompts`.
fn rewards(
    first: &First<'_>,
    (plugins, config, base): (&Plugins, &Config, &Path),
    (prompts, side): (&[Prompt], usize),
    wanted: &mut Arrays,
) -> Result<(), Box<dyn Error>> {
    let (edge_prompts, edge_images) = edge(prompts, side)?;
    let floats: Vec<f32> = edge_images
        .iter()
        .flat_map(|one| one.pixels_chw.clone())
        .collect();
    wanted.floats("edge.images", &[edge_images.len(), 3, side, side], &floats);
    let rows: Vec<f32> = edge_prompts.iter().flat_map(|prompt| content(prompt)).collect();
    wanted.floats("edge.prompts", &[edge_prompts.len(), 4], &rows);
    for mode in ["mean", "all"] {
        let params = serde_json::Map::from_iter([("mode".to_owned(), json!(mode))]);
        let rules = plugins.rewards.build("shapes-rules", &params, base)?;
        let score = |prompts: &[&Prompt], images: &[Image]| {
            let pairs = prompts.iter().zip(images);
            let samples: Vec<RewardSample<'_>> = pairs
                .map(|(prompt, image)| RewardSample {
                    image,
                    frames: &[],
                    prompt,
                })
                .collect();
            rules.score(&samples)
        };
        let scores = score(&first.asked, &first.images)?;
        wanted.floats(&format!("rewards.{mode}"), &[scores.len()], &scores);
        let edge = score(&edge_prompts, &edge_images)?;
        wanted.floats(&format!("edge.rewards.{mode}"), &[edge.len()], &edge);
        let trained_on = config.rewards.first().map(serde_json::to_value).transpose()?;
        if trained_on.is_some_and(|reward| reward["mode"] == mode) {
            let column = RewardColumn {
                name: mode,
                weight: 1.0,
                values: &scores,
            };
            let advantages =
                compute_advantages(&[column], &first.groups, &(&config.advantage).into())?.values;
            wanted.floats("advantages", &[advantages.len()], &advantages);
        }
    }
    Ok(())
}

/// Pixels as a reward sees them.
fn image(side: usize, pixels: impl Iterator<Item = f32>) -> Image {
    Image {
        channels: 3,
        height: side,
        width: side,
        pixels_chw: pixels.map(|value| value.clamp(-1.0, 1.0)).collect(),
    }
}

/// Prompts, and a picture of each.
type Drawn<'a> = (Vec<&'a Prompt>, Vec<Image>);

/// For each level of noise: right scenes of all prompts, and scenes of others.
fn edge(prompts: &[Prompt], side: usize) -> Result<Drawn<'_>, Box<dyn Error>> {
    let shapes = Shapes::new(ShapesSettings {
        image_size: side,
        ..ShapesSettings::default()
    })?;
    let (mut asked, mut images) = (Vec::new(), Vec::new());
    for (level, noise) in EDGE_NOISE.into_iter().enumerate() {
        for (index, prompt) in prompts.iter().enumerate() {
            let shown = &prompts[(index + 7 * level) % prompts.len()];
            let scene = shapes.scene_for(shown, 1, index as u64)?.render();
            let mut draws = Stream::new(level as u64, Purpose::Test).at(index as u64, 0);
            let pixels = scene
                .pixels_chw
                .iter()
                .map(|value| value + noise * draws.normal() as f32);
            asked.push(prompt);
            images.push(image(side, pixels));
        }
    }
    Ok((asked, images))
}

/// Count, colour, shape and position of a prompt, -1 for none.
fn content(prompt: &Prompt) -> [f32; 4] {
    match prompt.spec {
        PromptSpec::Shapes {
            count,
            colour,
            shape,
            position,
        } => {
            let position = position.map_or(-1.0, |position| f32::from(position as u8));
            [
                f32::from(count),
                f32::from(colour as u8),
                f32::from(shape as u8),
                position,
            ]
        }
        PromptSpec::Digit { .. } | PromptSpec::Text => [-1.0; 4],
    }
}
