//! Times a reward: `reward_speed REWARD IMAGES REPEATS [--device cpu|cuda] [--dtype f32|bf16] [--kernels NAME] [--folder DIR]
//! [--fixtures DIR]` prints a line of JSON with images a second.
//!
//! Networks have the shapes of the published ones and random weights, which are written first, up to 2 GB: to a temporary folder, or to
//! `--folder`, which is kept; what is there is not written again, and `bench/reward_peer.py` reads the same. Images are noise of 512
//! pixels a side with one prompt, as those of a group have. With feature `cuda`, `--device cuda` computes as a run with `device = "run"`
//! does, by `--kernels` (`cuda`, `cuda-bf16`, `cuda-bf16-fused`). `--fixtures` names `tests/fixtures` where the program was built elsewhere.
//! `pixels_per_s` is of the making of pixels alone, which the processor does. `cargo xtask bench rewards` runs it for every reward.

use burn::tensor::FloatDType;
use flow_attention::AttentionRegistry;
use flow_core::Backends;
use flow_core::device::ComputeDevice;
use flow_core::rng::{Purpose, Stream};
use flow_data::{Image, ImageShape, Prompt};
use flow_kernels::KernelRegistry;
use flow_rewards::{Lent, RewardRegistry, RewardSample};
use flow_rewards_models::Computation;
use flow_rewards_models::pixels::{Preprocessor, Resizing};
use flow_text_encoder::{
    BlipText, BlipTextConfig, BlipVision, BlipVisionConfig, ClipConfig, ClipText, ClipVision,
    ClipVisionConfig, TextEncoder,
};
use serde_json::{Map, Value, json};
use std::error::Error;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Names and shapes of weights.
type Shapes = Vec<(String, Vec<usize>)>;

/// Pixels along a side of the images.
const SIDE: usize = 512;

/// Pixels along a side of what the networks see.
const SEEN: usize = 224;

/// Calls on a GPU that do not count: they compile and measure.
const FIRST_CALLS: usize = 4;

/// A prompt of a length as prompts have it.
const PROMPT: &str = "a photo of a red fox that sits on a wooden bench in a snowy park at night";

/// Ends the names of kernels that compute operations made of others as one, as accelerator `fused_kernels` has them.
const FUSED: &str = "-fused";

/// Manifests with the configs of the published CLIPs.
const LARGE: &str = "clip-vit-l-14.json";
const HUGE: &str = "pickscore-vit-h-14.json";

/// What is timed, and how.
struct Options {
    kind: String,
    images: usize,
    repeats: usize,
    device: String,
    dtype: FloatDType,
    kernels: Option<String>,
    folder: Option<PathBuf>,
    fixtures: PathBuf,
}

impl Options {
    fn read(mut arguments: impl Iterator<Item = String>) -> Outcome<Self> {
        let mut places = Vec::new();
        let (mut device, mut dtype) = ("cpu".to_owned(), FloatDType::F32);
        let (mut kernels, mut folder) = (None, None);
        let mut fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        while let Some(argument) = arguments.next() {
            if !argument.starts_with("--") {
                places.push(argument);
                continue;
            }
            let value = arguments.next();
            let value = value.ok_or_else(|| format!("`{argument}` needs a value"))?;
            match (argument.as_str(), value.as_str()) {
                ("--dtype", "f32") => dtype = FloatDType::F32,
                ("--dtype", "bf16") => dtype = FloatDType::BF16,
                ("--device", _) => device = value,
                ("--kernels", _) => kernels = Some(value),
                ("--folder", _) => folder = Some(value.into()),
                ("--fixtures", _) => fixtures = value.into(),
                _ => return Err(format!("`{argument} {value}` is no option of this program").into()),
            }
        }
        let [kind, images, repeats] = places.as_slice() else {
            return Err("three arguments: a reward, images a call, repeats".into());
        };
        let (images, repeats): (usize, usize) = (images.parse()?, repeats.parse()?);
        if images == 0 || repeats == 0 {
            return Err("images and repeats must be at least 1".into());
        }
        if device == "cpu" && dtype != FloatDType::F32 {
            return Err("on the processor rewards compute in f32".into());
        }
        Ok(Self {
            kind: kind.clone(),
            images,
            repeats,
            device,
            dtype,
            kernels,
            folder,
            fixtures,
        })
    }

    /// What a run on the device lends to its rewards.
    fn computation(&self) -> Outcome<Computation> {
        if self.device == "cpu" {
            return Ok(Computation::processor());
        }
        let (mut kernels, mut attention) = (KernelRegistry::default(), AttentionRegistry::default());
        flow_kernels::register(&mut kernels)?;
        flow_attention::register(&mut attention)?;
        let usual = match self.dtype {
            FloatDType::BF16 => format!("{}-bf16", self.device),
            _ => self.device.clone(),
        };
        let name = self.kernels.as_ref().unwrap_or(&usual);
        let plain = name.strip_suffix(FUSED);
        let mut used = kernels.get(plain.unwrap_or(name))?;
        if plain.is_some() {
            let fused = used.fused(Arc::new(|| {}));
            used = fused.ok_or_else(|| format!("`{name}`: these kernels have no fused form"))?;
        }
        let plan = Backends::new(attention.get(&self.device)?, used);
        Ok(Computation {
            device: ComputeDevice::open(&self.device, 0)?.computing_in(self.dtype),
            plan: Arc::new(plan),
        })
    }
}

fn main() -> Outcome<()> {
    let options = Options::read(std::env::args().skip(1))?;
    let kind = options.kind.as_str();
    // Removed at the end, unlike a folder that was named.
    let temporary = tempfile::tempdir()?;
    let folder = options.folder.as_deref().unwrap_or(temporary.path());
    fs::create_dir_all(folder)?;
    // Relative paths among parameters would start in the folder itself.
    let folder = folder.canonicalize()?;
    let folder = folder.as_path();
    let mut params = params(kind, folder, &options.fixtures)?;
    let computation = options.computation()?;
    if !computation.device.is_processor() {
        params["device"] = json!("run");
    }
    let params = params.as_object().ok_or("parameters are a table")?;
    let mut registry = RewardRegistry::with_built_in()?;
    flow_rewards_models::register(&mut registry)?;
    let values = registry.memory(kind, params, folder)?.values;
    let lent = Lent::default().with(computation.clone());
    let begun = Instant::now();
    let reward = registry.build_with(kind, params, folder, &lent)?;
    let load_s = begun.elapsed().as_secs_f64();

    let prompt = Prompt::free(0, PROMPT);
    let images = (0..options.images as u64)
        .map(image)
        .collect::<Outcome<Vec<Image>>>()?;
    let samples: Vec<RewardSample<'_>> = images
        .iter()
        .map(|image| RewardSample {
            image,
            frames: &[],
            prompt: &prompt,
        })
        .collect();
    // What is made at the first call does not count.
    if computation.device.is_processor() {
        reward.score(&samples[..1])?;
    } else {
        for _ in 0..FIRST_CALLS {
            reward.score(&samples)?;
        }
    }
    let mut images_per_s = Vec::with_capacity(options.repeats);
    for _ in 0..options.repeats {
        let begun = Instant::now();
        reward.score(&samples)?;
        images_per_s.push(images.len() as f64 / begun.elapsed().as_secs_f64());
    }
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    let dtype = match options.dtype {
        FloatDType::BF16 => "bf16",
        _ => "f32",
    };
    let found = json!({
        "reward": kind, "values": values, "images": images.len(), "side": SIDE, "load_s": load_s, "images_per_s": images_per_s,
        "pixels_per_s": pixels_per_s(kind, &images)?, "device": computation.device.name(), "dtype": dtype,
        "kernels": computation.plan.kernels.name(),
        "peak_gib": computation.device.taken_bytes().map(gib), "driver_gib": computation.device.driver_bytes().map(gib),
    });
    println!("{found}");
    Ok(())
}

/// Images a second of which pixels are made for the network of `kind`, if it has one.
fn pixels_per_s(kind: &str, images: &[Image]) -> Outcome<Option<f64>> {
    let resizing = match kind {
        "clip-score" | "aesthetic" | "pickscore" => Resizing::Pillow,
        "hpsv2" => Resizing::TensorBicubic,
        "imagereward" => Resizing::PillowTorchCrop,
        _ => return Ok(None),
    };
    let preprocessor = Preprocessor::clip(resizing, SEEN);
    let images: Vec<&Image> = images.iter().collect();
    let begun = Instant::now();
    let pixels = preprocessor.pixels_of_all(&images);
    black_box(pixels.map_err(|(_, problem)| problem)?);
    Ok(Some(images.len() as f64 / begun.elapsed().as_secs_f64()))
}

/// Parameters of the reward `kind`, with random weights in `folder`.
fn params(kind: &str, folder: &Path, fixtures: &Path) -> Outcome<Value> {
    match kind {
        "jpeg-compressibility" => Ok(json!({})),
        "target-colour" => Ok(json!({ "rgb": [0.5, 0.25, 0.75] })),
        "clip-score" => {
            write_clip(LARGE, folder, fixtures)?;
            Ok(json!({ "path": folder }))
        }
        "aesthetic" => {
            write_clip(LARGE, folder, fixtures)?;
            let head = folder.join("head.safetensors");
            write_weights(&head, &head_shapes("", 768))?;
            Ok(json!({ "path": folder, "head": head }))
        }
        "pickscore" | "hpsv2" => {
            write_clip(HUGE, folder, fixtures)?;
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
fn write_clip(manifest: &str, folder: &Path, fixtures: &Path) -> Outcome<()> {
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

/// A file of safetensors with random numbers of 16 bits, between 2⁻⁷ and 2⁻³ or the same below 0; unless it is there.
fn write_weights(path: &Path, shapes: &Shapes) -> Outcome<()> {
    if path.exists() {
        return Ok(());
    }
    // A file that was left half written is not taken for a whole one.
    let partial = path.with_extension("partial");
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
    let mut file = BufWriter::new(File::create(&partial)?);
    // The values begin at a multiple of 8 bytes.
    let padded = header.len().next_multiple_of(8);
    file.write_all(&(padded as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    file.write_all(&b" ".repeat(padded - header.len()))?;
    let mut left = end;
    while left > 0 {
        let count = left.min(block.len());
        file.write_all(&block[..count])?;
        left -= count;
    }
    file.flush()?;
    Ok(fs::rename(&partial, path)?)
}

/// A half-precision number of a number in `[0, 1)`: a sign, one of four exponents, ten bits of mantissa.
fn half(uniform: f64) -> [u8; 2] {
    let bits = (uniform * 8192.0) as u16;
    let (sign, exponent, mantissa) = (bits >> 12, 8 + ((bits >> 10) & 3), bits & 0x3ff);
    ((sign << 15) | (exponent << 10) | mantissa).to_le_bytes()
}
