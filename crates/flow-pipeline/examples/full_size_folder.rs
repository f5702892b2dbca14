//! A diffusers folder of published sizes with random weights, for measuring without a download:
//! `cargo run --release -p flow-pipeline --example full_size_folder -- SMALL OUT NAME [holes]`. `SMALL` is a folder of the same pipeline
//! with other sizes, which gives tokenizers, scheduler and what configs say besides; `OUT` is written, in bf16.
//!
//! With `holes` the files have their headers and their length, and in the place of values holes that take nothing of the disk: enough for
//! `flow-train check --device`, which counts memory by configs and headers.

use flow_autoencoder::{Autoencoder, AutoencoderConfig};
use flow_core::ParamLayout;
use flow_core::device::ComputeDevice;
use flow_core::rng::{Purpose, Stream};
use flow_diffusers::safetensors::{Named, StoredDtype, write};
use flow_models::ModelRegistry;
use flow_text_encoder::AnyTextEncoder;
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::Path;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Values that are drawn with one address.
const RUN: usize = 1 << 16;

const USAGE: &str = "give SMALL OUT sd35-medium|sd35-large|flux1-dev|qwen-image|wan21-1.3b [holes]; SMALL is a folder of the same \
                     pipeline";

/// Text encoders by pipeline, in their order.
const SD3: &[&str] = &["clip-l", "clip-g", "t5"];
const FLUX: &[&str] = &["clip-l", "t5"];
const QWEN: &[&str] = &["qwen"];
const WAN: &[&str] = &["umt5"];

/// What a published pipeline has: its architecture, its transformer, its text encoders, its autoencoder.
struct Published {
    architecture: &'static str,
    transformer: Value,
    encoders: &'static [&'static str],
    autoencoder: Value,
}

fn published(name: &str) -> Option<Published> {
    let (architecture, transformer, encoders, autoencoder) = match name {
        "sd35-medium" => ("mmdit", sd35_medium(), SD3, kl()),
        "sd35-large" => ("mmdit", sd35_large(), SD3, kl()),
        "flux1-dev" => ("flux", flux1_dev(), FLUX, kl()),
        "qwen-image" => ("qwen-image", qwen_image(), QWEN, causal()),
        "wan21-1.3b" => ("wan", wan21(), WAN, causal()),
        _ => return None,
    };
    Some(Published {
        architecture,
        transformer,
        encoders,
        autoencoder,
    })
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (small, out, which, holes) = match arguments.as_slice() {
        [small, out, which] => (Path::new(small), Path::new(out), which, false),
        [small, out, which, how] if how == "holes" => (Path::new(small), Path::new(out), which, true),
        _ => return Err(USAGE.into()),
    };
    let Some(published) = published(which) else {
        return Err(format!("`{which}` is not known; {USAGE}").into());
    };
    for entry in fs::read_dir(small)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == "model_index.json" || name == "scheduler" || name.starts_with("tokenizer") {
            copy(&entry.path(), &out.join(name))?;
        }
    }
    let file = |layout: &ParamLayout, path: &Path| match holes {
        true => write_holes(layout, path),
        false => write_weights(layout, path),
    };
    let device = ComputeDevice::cpu();
    for (index, encoder) in published.encoders.iter().enumerate() {
        let name = match index {
            0 => "text_encoder".to_owned(),
            later => format!("text_encoder_{}", later + 1),
        };
        let folder = config(small, out, &name, &sizes_of(encoder))?;
        let any = AnyTextEncoder::open(&folder)?;
        file(any.encoder().layout(), &folder.join("model.safetensors"))?;
    }
    let folder = config(small, out, "vae", &published.autoencoder)?;
    let path = folder.join("config.json");
    let settings: Value = serde_json::from_slice(&fs::read(&path)?)?;
    let autoencoder = Autoencoder::new(&AutoencoderConfig::read(&settings, &path)?, &device)?;
    file(
        autoencoder.layout(),
        &folder.join("diffusion_pytorch_model.safetensors"),
    )?;
    let folder = config(small, out, "transformer", &published.transformer)?;
    let mut constants: Map<String, Value> = serde_json::from_slice(&fs::read(folder.join("config.json"))?)?;
    // What a file of diffusers does not say, and no weight depends on.
    let latent: &[&str] = match published.architecture {
        "mmdit" => &[],
        "wan" => &["latent_frames", "latent_height", "latent_width"],
        _ => &["latent_height", "latent_width"],
    };
    for side in latent {
        constants.insert((*side).to_owned(), json!(64));
    }
    let mut models = ModelRegistry::new();
    flow_models::register(&mut models)?;
    let model = models.build(published.architecture, &Value::Object(constants), &device)?;
    file(
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

/// Writes the small config of a component with other sizes, tables within it as well; gives the component's folder.
fn config(small: &Path, out: &Path, name: &str, sizes: &Value) -> Result<std::path::PathBuf> {
    let folder = out.join(name);
    fs::create_dir_all(&folder)?;
    let mut config: Value = serde_json::from_slice(&fs::read(small.join(name).join("config.json"))?)?;
    set(&mut config, sizes);
    fs::write(folder.join("config.json"), serde_json::to_vec_pretty(&config)?)?;
    Ok(folder)
}

fn set(config: &mut Value, sizes: &Value) {
    for (key, value) in sizes.as_object().into_iter().flatten() {
        match value.is_object() {
            true => set(&mut config[key], value),
            false => config[key] = value.clone(),
        }
    }
}

/// A file of safetensors whose values are a hole.
fn write_holes(layout: &ParamLayout, path: &Path) -> Result<()> {
    let (mut tensors, mut end) = (Map::new(), 0);
    for spec in layout.specs() {
        let begin = end;
        end += 2 * spec.shape.iter().product::<usize>();
        let tensor = json!({ "dtype": "BF16", "shape": spec.shape, "data_offsets": [begin, end] });
        tensors.insert(spec.name.clone(), tensor);
    }
    let mut header = serde_json::to_vec(&tensors)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = fs::File::create(path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    file.set_len((8 + header.len() + end) as u64)?;
    println!("{} of {} holes", path.display(), end / 2);
    Ok(())
}

/// Random weights: matrices with a deviation of one over the root of their width, vectors of 1 where they scale and 0 elsewhere.
fn write_weights(layout: &ParamLayout, path: &Path) -> Result<()> {
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
        // Qwen2.5-VL 7B; its tokenizer is the small one.
        "qwen" => json!({ "text_config": {
            "hidden_size": 3584, "intermediate_size": 18944, "layer_types": vec!["full_attention"; 28], "num_attention_heads": 28,
            "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152_064,
            "rope_parameters": { "mrope_section": [16, 24, 24] },
        } }),
        // T5-XXL, version 1.1, and UMT5-XXL.
        other => json!({
            "d_ff": 10240, "d_kv": 64, "d_model": 4096, "num_heads": 64, "num_layers": 24,
            "vocab_size": if other == "umt5" { 256_384 } else { 32_128 },
        }),
    }
}

/// The autoencoder of SD3 and FLUX.1.
fn kl() -> Value {
    json!({ "block_out_channels": [128, 256, 512, 512], "layers_per_block": 2, "norm_num_groups": 32, "sample_size": 1024 })
}

/// That of Wan 2.1 and Qwen-Image.
fn causal() -> Value {
    json!({ "base_dim": 96, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2 })
}

fn sd35_medium() -> Value {
    json!({
        "attention_head_dim": 64, "caption_projection_dim": 1536, "dual_attention_layers": (0..13).collect::<Vec<_>>(),
        "joint_attention_dim": 4096, "num_attention_heads": 24, "num_layers": 24, "pooled_projection_dim": 2048,
        "pos_embed_max_size": 384, "sample_size": 128,
    })
}

fn sd35_large() -> Value {
    json!({
        "attention_head_dim": 64, "caption_projection_dim": 2432, "dual_attention_layers": [],
        "joint_attention_dim": 4096, "num_attention_heads": 38, "num_layers": 38, "pooled_projection_dim": 2048,
        "pos_embed_max_size": 192, "sample_size": 128,
    })
}

fn qwen_image() -> Value {
    json!({
        "attention_head_dim": 128, "axes_dims_rope": [16, 56, 56], "in_channels": 64, "joint_attention_dim": 3584,
        "num_attention_heads": 24, "num_layers": 60, "out_channels": 16,
    })
}

fn wan21() -> Value {
    json!({
        "attention_head_dim": 128, "ffn_dim": 8960, "freq_dim": 256, "num_attention_heads": 12, "num_layers": 30,
        "rope_max_seq_len": 1024, "text_dim": 4096,
    })
}

fn flux1_dev() -> Value {
    json!({
        "attention_head_dim": 128, "axes_dims_rope": [16, 56, 56], "in_channels": 64, "joint_attention_dim": 4096,
        "num_attention_heads": 24, "num_layers": 19, "num_single_layers": 38, "pooled_projection_dim": 768,
    })
}
