//! A diffusers folder of published sizes with random weights, for measuring without a download:
//! `cargo run --release -p flow-pipeline --example full_size_folder -- SMALL OUT sd35-medium|flux1-dev`. `SMALL` is a folder of the same
//! pipeline with other sizes, which gives tokenizers, scheduler and what configs say besides; `OUT` is written, in bf16.

use flow_autoencoder::{Autoencoder, AutoencoderConfig, KlConfig};
use flow_core::ParamLayout;
use flow_core::device::ComputeDevice;
use flow_core::rng::{Purpose, Stream};
use flow_diffusers::safetensors::{Named, StoredDtype, write};
use flow_models::ModelRegistry;
use flow_text_encoder::{ClipText, T5Encoder, TextEncoder};
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Values that are drawn with one address.
const RUN: usize = 1 << 16;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [small, out, which] = arguments.as_slice() else {
        return Err("give SMALL OUT sd35-medium|flux1-dev".into());
    };
    let (small, out) = (Path::new(small), Path::new(out));
    let (transformer, encoders) = match which.as_str() {
        "sd35-medium" => (sd35_medium(), ["clip-l", "clip-g", "t5"].as_slice()),
        "flux1-dev" => (flux1_dev(), ["clip-l", "t5"].as_slice()),
        other => return Err(format!("`{other}` is not known; there are sd35-medium and flux1-dev").into()),
    };
    for entry in fs::read_dir(small)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == "model_index.json" || name == "scheduler" || name.starts_with("tokenizer") {
            copy(&entry.path(), &out.join(name))?;
        }
    }
    let device = ComputeDevice::cpu();
    for (index, encoder) in encoders.iter().enumerate() {
        let name = match index {
            0 => "text_encoder".to_owned(),
            later => format!("text_encoder_{}", later + 1),
        };
        let folder = config(small, out, &name, sizes_of(encoder))?;
        match *encoder {
            "t5" => weights(
                T5Encoder::open(&folder)?.layout(),
                &folder.join("model.safetensors"),
            )?,
            _ => weights(
                ClipText::open(&folder)?.layout(),
                &folder.join("model.safetensors"),
            )?,
        }
    }
    let folder = config(small, out, "vae", autoencoder())?;
    let kl: KlConfig = serde_json::from_slice(&fs::read(folder.join("config.json"))?)?;
    let layout = Autoencoder::new(&AutoencoderConfig::Kl(kl), &device)?
        .layout()
        .clone();
    weights(&layout, &folder.join("diffusion_pytorch_model.safetensors"))?;
    let folder = config(small, out, "transformer", transformer)?;
    let constants = serde_json::from_slice(&fs::read(folder.join("config.json"))?)?;
    let mut models = ModelRegistry::new();
    flow_models::register(&mut models)?;
    let architecture = if which == "flux1-dev" { "flux" } else { "mmdit" };
    let model = models.build(architecture, &constants, &device)?;
    weights(
        model.layout(),
        &folder.join("diffusion_pytorch_model.safetensors"),
    )
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if !from.is_dir() {
        fs::create_dir_all(to.parent().unwrap_or(to))?;
        fs::copy(from, to)?;
        return Ok(());
    }
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

/// Writes the small config of a component with other sizes; gives the component's folder.
fn config(small: &Path, out: &Path, name: &str, sizes: Value) -> Result<std::path::PathBuf> {
    let folder = out.join(name);
    fs::create_dir_all(&folder)?;
    let mut config: Value = serde_json::from_slice(&fs::read(small.join(name).join("config.json"))?)?;
    for (key, value) in sizes.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    fs::write(folder.join("config.json"), serde_json::to_vec_pretty(&config)?)?;
    Ok(folder)
}

/// Random weights: matrices with a deviation of one over the root of their width, vectors of 1 where they scale and 0 elsewhere.
fn weights(layout: &ParamLayout, path: &Path) -> Result<()> {
    let specs = layout.specs();
    let named: Vec<Named> = (specs.iter().enumerate())
        .map(|(index, spec)| (spec.name.clone(), spec.shape.clone(), index))
        .collect();
    let values = |index: usize| {
        let spec = &specs[index];
        let count = spec.shape.iter().product();
        if spec.shape.len() < 2 {
            let scales = spec.name.ends_with("weight");
            return vec![if scales { 1.0 } else { 0.0 }; count];
        }
        let mut values = vec![0.0f32; count];
        let stream = Stream::new(index as u64, Purpose::Weights);
        values.par_chunks_mut(RUN).enumerate().for_each(|(run, values)| {
            stream.at(run as u64, 0).fill_normal(values);
        });
        let fan_in: usize = spec.shape[1..].iter().product();
        let scale = 1.0 / (fan_in as f32).sqrt();
        values.iter_mut().for_each(|value| *value *= scale);
        values
    };
    write(named, &values, path, StoredDtype::Bf16, &BTreeMap::new())?;
    println!("{} of {} weights", path.display(), layout.count_values(|_| true));
    Ok(())
}

/// Sizes of the published text encoders.
fn sizes_of(encoder: &str) -> Value {
    match encoder {
        "clip-l" => json!({
            "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12,
            "projection_dim": 768, "vocab_size": 49408,
        }),
        "clip-g" => json!({
            "hidden_size": 1280, "intermediate_size": 5120, "num_attention_heads": 20, "num_hidden_layers": 32,
            "projection_dim": 1280, "vocab_size": 49408,
        }),
        // T5-XXL, version 1.1.
        _ => json!({
            "d_ff": 10240, "d_kv": 64, "d_model": 4096, "num_heads": 64, "num_layers": 24, "vocab_size": 32128,
        }),
    }
}

/// The autoencoder of SD3 and FLUX.1.
fn autoencoder() -> Value {
    json!({ "block_out_channels": [128, 256, 512, 512], "layers_per_block": 2, "norm_num_groups": 32, "sample_size": 1024 })
}

fn sd35_medium() -> Value {
    json!({
        "attention_head_dim": 64, "caption_projection_dim": 1536, "dual_attention_layers": (0..13).collect::<Vec<_>>(),
        "joint_attention_dim": 4096, "num_attention_heads": 24, "num_layers": 24, "pooled_projection_dim": 2048,
        "pos_embed_max_size": 384, "sample_size": 128,
    })
}

fn flux1_dev() -> Value {
    json!({
        "attention_head_dim": 128, "axes_dims_rope": [16, 56, 56], "in_channels": 64, "joint_attention_dim": 4096,
        "num_attention_heads": 24, "num_layers": 19, "num_single_layers": 38, "pooled_projection_dim": 768,
    })
}
