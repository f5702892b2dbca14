//! Times a reward on the processor: `reward_speed REWARD IMAGES REPEATS` prints a line of JSON with images a second.
//!
//! Networks have the shapes of the published ones and random weights, which are written to a temporary folder first: up to 2 GB. Images
//! are noise of 512 pixels a side with one prompt, as those of a group have. `cargo xtask bench rewards` runs it for every reward.

use flow_core::rng::{Purpose, Stream};
use flow_data::{Image, ImageShape, Prompt};
use flow_rewards::{RewardRegistry, RewardSample};
use flow_text_encoder::{
    BlipText, BlipTextConfig, BlipVision, BlipVisionConfig, ClipConfig, ClipText, ClipVision,
    ClipVisionConfig, TextEncoder,
};
use serde_json::{Map, Value, json};
use std::error::Error;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Names and shapes of weights.
type Shapes = Vec<(String, Vec<usize>)>;

/// Pixels along a side of the images.
const SIDE: usize = 512;

/// A prompt of a length as prompts have it.
const PROMPT: &str = "a photo of a red fox that sits on a wooden bench in a snowy park at night";

/// Manifests with the configs of the published CLIPs.
const LARGE: &str = "clip-vit-l-14.json";
const HUGE: &str = "pickscore-vit-h-14.json";

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, images, repeats] = arguments.as_slice() else {
        return Err("three arguments: a reward, images a call, repeats".into());
    };
    let (count, repeats): (usize, usize) = (images.parse()?, repeats.parse()?);
    if count == 0 || repeats == 0 {
        return Err("images and repeats must be at least 1".into());
    }
    let folder = tempfile::tempdir()?;
    let params = params(kind, folder.path())?;
    let params = params.as_object().ok_or("parameters are a table")?;
    let mut registry = RewardRegistry::with_built_in()?;
    flow_rewards_models::register(&mut registry)?;
    let values = registry.memory(kind, params, folder.path())?.values;
    let begun = Instant::now();
    let reward = registry.build(kind, params, folder.path())?;
    let load_s = begun.elapsed().as_secs_f64();

    let prompt = Prompt::free(0, PROMPT);
    let images = (0..count as u64).map(image).collect::<Outcome<Vec<Image>>>()?;
    let samples: Vec<RewardSample<'_>> = images
        .iter()
        .map(|image| RewardSample {
            image,
            frames: &[],
            prompt: &prompt,
        })
        .collect();
    // What is made at the first call does not count.
    reward.score(&samples[..1])?;
    let mut images_per_s = Vec::with_capacity(repeats);
    for _ in 0..repeats {
        let begun = Instant::now();
        reward.score(&samples)?;
        images_per_s.push(count as f64 / begun.elapsed().as_secs_f64());
    }
    let found = json!({
        "reward": kind, "values": values, "images": count, "side": SIDE, "load_s": load_s, "images_per_s": images_per_s,
    });
    println!("{found}");
    Ok(())
}

/// Parameters of the reward `kind`, with random weights in `folder`.
fn params(kind: &str, folder: &Path) -> Outcome<Value> {
    match kind {
        "jpeg-compressibility" => Ok(json!({})),
        "target-colour" => Ok(json!({ "rgb": [0.5, 0.25, 0.75] })),
        "clip-score" => {
            write_clip(LARGE, folder)?;
            Ok(json!({ "path": folder }))
        }
        "aesthetic" => {
            write_clip(LARGE, folder)?;
            let head = folder.join("head.safetensors");
            write_weights(&head, &head_shapes("", 768))?;
            Ok(json!({ "path": folder, "head": head }))
        }
        "pickscore" | "hpsv2" => {
            write_clip(HUGE, folder)?;
            Ok(json!({ "path": folder }))
        }
        "imagereward" => {
            let file = write_image_reward(folder)?;
            Ok(json!({ "path": file, "tokenizer": folder }))
        }
        other => Err(format!("`{other}` is not timed here").into()),
    }
}

/// Noise of 8 bits.
fn image(number: u64) -> Outcome<Image> {
    let shape = ImageShape {
        channels: 3,
        height: SIDE,
        width: SIDE,
    };
    let mut draws = Stream::new(1, Purpose::Test).at(number, 0);
    let pixels = (0..shape.len()).map(|_| draws.uniform_in(-1.0, 1.0)).collect();
    Ok(Image::new(shape, pixels)?)
}

/// A CLIP with the config of a manifest, random weights, and the small tokenizer of the tests.
fn write_clip(manifest: &str, folder: &Path) -> Outcome<()> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut manifest: Value = serde_json::from_slice(&fs::read(fixtures.join("manifests").join(manifest))?)?;
    let mut config = manifest["config"].take();
    // The end token is the largest one: that of the small tokenizer has another number.
    config["text_config"]["eos_token_id"] = json!(2);
    let from = folder.join("config.json");
    fs::write(&from, config.to_string())?;
    for name in [
        "merges.txt",
        "special_tokens_map.json",
        "tokenizer_config.json",
        "vocab.json",
    ] {
        fs::copy(fixtures.join("clip").join(name), folder.join(name))?;
    }
    let text = ClipText::new(ClipConfig::read(&from, &config, None)?);
    let vision = ClipVision::new(ClipVisionConfig::read(&from, &config)?);
    let specs = text.layout().specs().iter().chain(vision.layout().specs());
    let mut shapes: Shapes = specs
        .map(|spec| (spec.name.clone(), spec.shape.clone()))
        .collect();
    shapes.push(("logit_scale".to_owned(), Vec::new()));
    write_weights(&folder.join("model.safetensors"), &shapes)
}

/// An ImageReward of random weights and a tokenizer of letters; gives the file with the weights.
fn write_image_reward(folder: &Path) -> Outcome<PathBuf> {
    let vision = BlipVision::new(BlipVisionConfig {
        image: 224,
        patch: 16,
        width: 1024,
        inner: 4096,
        layers: 24,
        heads: 16,
        epsilon: 1e-6,
    });
    let text = BlipText::new(BlipTextConfig {
        vocabulary: 30_524,
        positions: 512,
        width: 768,
        image_width: 1024,
        inner: 3072,
        layers: 12,
        heads: 12,
        epsilon: 1e-12,
    });
    let specs = vision.layout().specs().iter().chain(text.layout().specs());
    let mut shapes: Shapes = specs
        .map(|spec| (format!("blip.{}", spec.name), spec.shape.clone()))
        .collect();
    shapes.extend(head_shapes("mlp.", 768));
    let file = folder.join("imagereward.safetensors");
    write_weights(&file, &shapes)?;
    let letters = ('a'..='z').flat_map(|letter| [letter.to_string(), format!("##{letter}")]);
    let specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].map(str::to_owned);
    let vocabulary: Vec<String> = specials.into_iter().chain(letters).collect();
    fs::write(folder.join("vocab.txt"), vocabulary.join("\n"))?;
    Ok(file)
}

/// The five linear layers of LAION's predictor and of ImageReward, on so many features.
fn head_shapes(prefix: &str, features: usize) -> Shapes {
    let layers = [(0, 1024), (2, 128), (4, 64), (6, 16), (7, 1)];
    let mut inputs = features;
    let mut shapes = Shapes::new();
    for (layer, outputs) in layers {
        shapes.push((format!("{prefix}layers.{layer}.weight"), vec![outputs, inputs]));
        shapes.push((format!("{prefix}layers.{layer}.bias"), vec![outputs]));
        inputs = outputs;
    }
    shapes
}

/// A file of safetensors with random numbers of 16 bits, between 2⁻⁷ and 2⁻³ or the same below 0.
fn write_weights(path: &Path, shapes: &Shapes) -> Outcome<()> {
    let (mut header, mut end) = (Map::new(), 0);
    for (name, shape) in shapes {
        let begin = end;
        end += 2 * shape.iter().product::<usize>();
        let tensor = json!({ "dtype": "F16", "shape": shape, "data_offsets": [begin, end] });
        header.insert(name.clone(), tensor);
    }
    let header = Value::Object(header).to_string();
    // How long products take does not depend on the numbers, so that a million of them will do.
    let mut draws = Stream::new(0, Purpose::Test).at(0, 0);
    let block: Vec<u8> = (0..1 << 20).flat_map(|_| half(draws.uniform())).collect();
    let mut file = BufWriter::new(File::create(path)?);
    // The values begin at a multiple of 8 bytes.
    let padded = header.len().next_multiple_of(8);
    file.write_all(&(padded as u64).to_le_bytes())?;
    write!(file, "{header:padded$}")?;
    let mut left = end;
    while left > 0 {
        let count = left.min(block.len());
        file.write_all(&block[..count])?;
        left -= count;
    }
    Ok(file.flush()?)
}

/// A half-precision number of a number in `[0, 1)`: a sign, one of four exponents, ten bits of mantissa.
fn half(uniform: f64) -> [u8; 2] {
    let bits = (uniform * 8192.0) as u16;
    let (sign, exponent, mantissa) = (bits >> 12, 8 + ((bits >> 10) & 3), bits & 0x3ff);
    ((sign << 15) | (exponent << 10) | mantissa).to_le_bytes()
}
