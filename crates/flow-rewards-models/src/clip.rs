//! CLIP with both towers, loaded: features of images and of prompts.

use crate::computation::Computation;
use crate::open_clip;
use crate::pixels::{CLIP_MEAN, CLIP_STD, Preprocessor, Resizing};
use crate::problem::BuildError;
use crate::weight_file::{WeightFile, absent};
use burn::tensor::{Tensor, TensorData};
use flow_core::exec::{CallContext, Exec, InferencePass, Stage};
use flow_core::tensors::{cast, plain};
use flow_core::{Weights, cpu};
use flow_data::Image;
use flow_registry::Refusal;
use flow_text_encoder::weights::{Wanted, load_tensors};
use flow_text_encoder::{ClipConfig, ClipText, ClipVision, ClipVisionConfig, TextEncoder, Tokens};
use flow_tokenizer::{Length, Tokenizer, TokenizerClass};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The natural logarithm of the factor on cosines.
const LOGIT_SCALE: &str = "logit_scale";

/// The image tower with what makes its pixels.
#[derive(Debug)]
pub struct ImageTower {
    encoder: ClipVision,
    weights: Weights,
    preprocessor: Preprocessor,
    computation: Computation,
}

/// The text tower with its tokenizer.
#[derive(Debug)]
pub struct TextTower {
    encoder: ClipText,
    weights: Weights,
    tokenizer: Tokenizer,
    computation: Computation,
}

/// A whole CLIP.
#[derive(Debug)]
pub struct Clip {
    /// Its image tower.
    pub images: ImageTower,
    /// Its text tower.
    pub texts: TextTower,
    /// The natural logarithm of the factor on cosines.
    pub logit_scale: f64,
}

/// What is wrong with one item of a batch.
#[derive(Debug)]
pub struct BadItem {
    /// Its place.
    pub index: usize,
    /// What is wrong.
    pub problem: String,
}

/// Weights of a tower that are never trained.
pub fn frozen(mut weights: Weights) -> Weights {
    // On a device that computes in 16 bits, nothing else is kept of them.
    weights.freeze(&vec![false; weights.layout().len()]);
    weights
}

impl ImageTower {
    /// That of the CLIP in `folder`, as transformers saves it.
    ///
    /// # Errors
    /// What is missing, damaged or of something else.
    pub fn open(folder: &Path, resizing: Resizing, computation: &Computation) -> Result<Self, BuildError> {
        let preprocessor = |side: usize| preprocessor(folder, resizing, side);
        let encoder = ClipVision::open(check_folder(folder)?)?;
        let file = WeightFile::open(folder)?;
        let (weights, _) = load_tensors(
            Wanted {
                layout: encoder.layout(),
                role: &|name| encoder.role(name),
            },
            folder,
            file.tensors()?,
            &file.placed(),
            &computation.device,
        )?;
        Ok(Self {
            preprocessor: preprocessor(encoder.config().image)?,
            weights: frozen(weights),
            encoder,
            computation: computation.clone(),
        })
    }

    /// Channels of the features.
    pub fn channels(&self) -> usize {
        let config = self.encoder.config();
        config.projection.unwrap_or(config.width)
    }

    /// Features of `images`, one row of unit length for each.
    ///
    /// # Errors
    /// The first image of which there are no pixels.
    pub fn features(&self, images: &[&Image]) -> Result<Vec<Vec<f32>>, BadItem> {
        let pixels = pixel_tensor(images, &self.preprocessor, &self.computation)?;
        let output = on(&self.weights, &self.computation, |exec| {
            self.encoder.encode(exec, pixels)
        });
        let output = output.map_err(|error| BadItem {
            index: 0,
            problem: error.to_string(),
        })?;
        let features = output.projected.unwrap_or(output.pooled);
        Ok(unit_rows(&features))
    }
}

impl TextTower {
    /// Features of `prompts`, one row of unit length for each.
    ///
    /// Rows are padded to the longest that there can be, so that a prompt has the same features in every batch. How a prompt is padded
    /// makes no difference to the rest: tokens see those before them only, and the row of the first end token is what is read.
    ///
    /// # Errors
    /// The first prompt that has no tokens.
    pub fn features(&self, prompts: &[&str]) -> Result<Vec<Vec<f32>>, BadItem> {
        let length = Length::Exactly(self.encoder.config().positions);
        let batch = self.tokenizer.encode(prompts, length);
        let failed = |problem: String| BadItem { index: 0, problem };
        let batch = batch.map_err(|error| failed(error.to_string()))?;
        let rows = (0..batch.rows()).map(|row| batch.row_ids(row).to_vec());
        let tokens = Tokens::new(rows.collect()).map_err(|error| failed(error.to_string()))?;
        let output = on(&self.weights, &self.computation, |exec| {
            self.encoder.encode(exec, &tokens)
        });
        let output = output.map_err(|error| failed(error.to_string()))?;
        Ok(unit_rows(&output.projected.unwrap_or(output.pooled)))
    }
}

impl Clip {
    /// The CLIP in `folder`, as transformers saves it, with the tokenizer in `tokenizer`.
    ///
    /// # Errors
    /// What is missing, damaged or of something else.
    pub fn open(
        folder: &Path,
        tokenizer: &Path,
        resizing: Resizing,
        computation: &Computation,
    ) -> Result<Self, BuildError> {
        let (from, config) = config_of(check_folder(folder)?)?;
        let towers = Towers {
            text: ClipConfig::read(&from, &config, None)?,
            vision: ClipVisionConfig::read(&from, &config)?,
        };
        let file = WeightFile::open(folder)?;
        let preprocessor = preprocessor(folder, resizing, towers.vision.image)?;
        let tensors = file.tensors()?;
        let loaded = Loading {
            from: folder,
            tensors,
            placed: file.placed(),
        };
        loaded.clip(towers, preprocessor, open_tokenizer(tokenizer)?, computation)
    }

    /// The CLIP in `file`, which open_clip wrote, with the tokenizer in `tokenizer`.
    ///
    /// # Errors
    /// What is missing, damaged or of something else.
    pub fn open_of_open_clip(
        file: &Path,
        tokenizer: &Path,
        resizing: Resizing,
        computation: &Computation,
    ) -> Result<Self, BuildError> {
        let weights = WeightFile::open(file)?;
        let published = weights.tensors()?;
        let towers = open_clip::towers(&published).map_err(|problem| {
            Refusal::because(format!(
                "`{}` holds no CLIP as open_clip writes it: {problem}",
                file.display()
            ))
        })?;
        let turned = open_clip::Turned::of(&published);
        let loaded = Loading {
            from: file,
            tensors: open_clip::renamed(published, &turned),
            placed: BTreeMap::new(),
        };
        let preprocessor = Preprocessor::clip(resizing, towers.vision.image);
        loaded.clip(towers, preprocessor, open_tokenizer(tokenizer)?, computation)
    }
}

/// Dimensions of both towers.
#[derive(Debug)]
pub struct Towers {
    /// Of the text tower.
    pub text: ClipConfig,
    /// Of the image tower.
    pub vision: ClipVisionConfig,
}

/// Tensors with transformers' names, and where they are from.
struct Loading<'t> {
    from: &'t Path,
    tensors: Vec<crate::weight_file::Placed<'t>>,
    placed: BTreeMap<String, std::path::PathBuf>,
}

impl Loading<'_> {
    fn clip(
        self,
        towers: Towers,
        preprocessor: Preprocessor,
        tokenizer: Tokenizer,
        computation: &Computation,
    ) -> Result<Clip, BuildError> {
        if towers.text.projection != towers.vision.projection || towers.text.projection.is_none() {
            let problem = format!(
                "`{}`: its towers make features of {:?} (texts) and {:?} (images) channels",
                self.from.display(),
                towers.text.projection,
                towers.vision.projection
            );
            let help = "a score needs both alike. Name the folder of a whole CLIP (`CLIPModel`)";
            return Err(Refusal::new(problem, help).into());
        }
        if tokenizer.vocabulary_size() > towers.text.vocabulary {
            let problem = format!(
                "the tokenizer has {} tokens, the text tower of `{}` has {}",
                tokenizer.vocabulary_size(),
                self.from.display(),
                towers.text.vocabulary
            );
            return Err(Refusal::new(problem, "it is the tokenizer of another model").into());
        }
        let scale = self.tensors.iter().find(|(_, tensor)| tensor.name == LOGIT_SCALE);
        let logit_scale = scale
            .and_then(|(_, tensor)| tensor.scalar())
            .filter(|scale| scale.is_finite());
        let logit_scale = logit_scale.ok_or_else(|| {
            Refusal::because(format!(
                "`{}` has no number `{LOGIT_SCALE}`, which a whole CLIP has",
                self.from.display()
            ))
        })?;
        let (text, vision) = (ClipText::new(towers.text), ClipVision::new(towers.vision));
        let load = |wanted: Wanted<'_>| {
            let loaded = load_tensors(
                wanted,
                self.from,
                self.tensors.clone(),
                &self.placed,
                &computation.device,
            );
            loaded.map(|(weights, _)| frozen(weights))
        };
        let text_weights = load(Wanted {
            layout: text.layout(),
            role: &|name| text.role(name),
        })?;
        let vision_weights = load(Wanted {
            layout: vision.layout(),
            role: &|name| vision.role(name),
        })?;
        Ok(Clip {
            images: ImageTower {
                encoder: vision,
                weights: vision_weights,
                preprocessor,
                computation: computation.clone(),
            },
            texts: TextTower {
                encoder: text,
                weights: text_weights,
                tokenizer,
                computation: computation.clone(),
            },
            logit_scale,
        })
    }
}

/// Pixels of `images`, `[B, 3, side, side]`, where `computation` computes, in its precision.
///
/// # Errors
/// The first image of which there are no pixels.
pub fn pixel_tensor(
    images: &[&Image],
    preprocessor: &Preprocessor,
    computation: &Computation,
) -> Result<Tensor<4>, BadItem> {
    let pixels = preprocessor.pixels_of_all(images);
    let pixels = pixels.map_err(|(index, problem)| BadItem { index, problem })?;
    let side = preprocessor.side;
    let data = TensorData::new(pixels, [images.len(), 3, side, side]);
    let device = &computation.device;
    let pixels = Tensor::<4>::from_data(data, device.burn());
    Ok(match device.compute_dtype() {
        Some(dtype) => Tensor::from_dispatch(cast(&plain(&pixels.into_dispatch()), dtype)),
        None => pixels,
    })
}

/// Runs `encode` with weights.
pub fn on<T>(weights: &Weights, computation: &Computation, encode: impl FnOnce(&Exec<'_>) -> T) -> T {
    let pass = InferencePass::new(weights, computation.plan.clone());
    encode(&pass.exec(CallContext::single(Stage::Evaluation)))
}

/// Rows of a tensor on the host, each divided by its length.
fn unit_rows(rows: &Tensor<2>) -> Vec<Vec<f32>> {
    let width = rows.dims()[1];
    let values = cpu::to_host(&plain(&rows.clone().into_dispatch()));
    let unit = |row: &[f32]| {
        let square: f64 = row.iter().map(|value| f64::from(*value).powi(2)).sum();
        let length = square.sqrt();
        row.iter()
            .map(|value| (f64::from(*value) / length) as f32)
            .collect()
    };
    values.chunks_exact(width).map(unit).collect()
}

/// The cosine of two rows of unit length.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
    products.sum::<f64>().clamp(-1.0, 1.0)
}

fn check_folder(folder: &Path) -> Result<&Path, BuildError> {
    match folder.exists() {
        true => Ok(folder),
        false => Err(absent(folder)),
    }
}

fn config_of(folder: &Path) -> Result<(std::path::PathBuf, Value), BuildError> {
    Ok(flow_text_encoder::config_of_folder(folder)?)
}

/// CLIP's tokenizer in `folder`.
fn open_tokenizer(folder: &Path) -> Result<Tokenizer, BuildError> {
    Tokenizer::open_as(folder, TokenizerClass::Clip).map_err(|error| {
        BuildError::Files(Refusal::because(format!(
            "{error}. `tokenizer` may name another folder with CLIP's tokenizer, such as that of `openai/clip-vit-large-patch14`"
        )))
    })
}

/// What the folder's `preprocessor_config.json` says, if it has one: mean and standard deviation; a size or a filter other than the
/// one that is computed is refused.
fn preprocessor(folder: &Path, resizing: Resizing, side: usize) -> Result<Preprocessor, BuildError> {
    const FILE: &str = "preprocessor_config.json";
    let path = folder.join(FILE);
    let usual = Preprocessor::clip(resizing, side);
    // What a tensor was trained on is said by its reward, not by this file, which is that of the other way.
    if !path.exists() || resizing != Resizing::Pillow {
        return Ok(usual);
    }
    let wrong = |problem: String, help: Option<String>| {
        let why = format!("`{}`: {problem}", path.display());
        BuildError::Files(Refusal { why, help })
    };
    let text = fs::read(&path).map_err(|error| wrong(format!("cannot be read: {error}"), None))?;
    let config: Value =
        serde_json::from_slice(&text).map_err(|error| wrong(format!("is no JSON: {error}"), None))?;
    let colours = |key: &str, usual: [f32; 3]| match config.get(key) {
        None | Some(Value::Null) => Ok(usual),
        Some(value) => serde_json::from_value(value.clone()).map_err(|_| {
            wrong(
                format!("`{key}` is {value}"),
                Some("it must be three numbers".into()),
            )
        }),
    };
    // A number, or a table of them.
    let sizes = |key: &str| match config.get(key) {
        Some(Value::Object(table)) => table.values().filter_map(Value::as_u64).collect(),
        Some(value) => value.as_u64().into_iter().collect::<Vec<u64>>(),
        None => Vec::new(),
    };
    for key in ["size", "crop_size"] {
        if let Some(other) = sizes(key).into_iter().find(|size| *size != side as u64) {
            return Err(wrong(
                format!("`{key}` is {other}"),
                Some(format!("the network reads images of {side}")),
            ));
        }
    }
    const BICUBIC: u64 = 3;
    match config.get("resample").and_then(Value::as_u64) {
        None | Some(BICUBIC) => {}
        Some(other) => {
            return Err(wrong(
                format!("`resample` is {other}"),
                Some(format!("CLIP's bicubic filter, {BICUBIC}, is computed here")),
            ));
        }
    }
    Ok(Preprocessor {
        mean: colours("image_mean", CLIP_MEAN)?,
        std: colours("image_std", CLIP_STD)?,
        ..usual
    })
}
