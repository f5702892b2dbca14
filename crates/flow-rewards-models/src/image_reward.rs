//! `imagereward`: which image people would prefer for a prompt, by ImageReward.
//!
//! Source: Xu et al. 2023, arXiv:2304.05977; ImageReward, `ImageReward/ImageReward.py` and `ImageReward/models/BLIP`: a BLIP whose BERT
//! reads the prompt and, by cross attention, the image; five linear layers without activations on its first token; and
//! `(x - 0.1672) / 1.0333`. The prompt has at most 35 tokens of `bert-base-uncased`.

use crate::aesthetic::Affine;
use crate::batches::{batch_problem, images, in_batches, usual_batch};
use crate::clip::{BadItem, frozen, on, pixel_tensor};
use crate::computation::{Computation, RewardDevice};
use crate::memory::{ALL, memory};
use crate::pixels::{Preprocessor, Resizing};
use crate::problem::BuildError;
use crate::weight_file::{Placed, WeightFile, absent};
use flow_core::tensors::plain;
use flow_core::{Weights, cpu};
use flow_registry::{NameTaken, Refusal};
use flow_rewards::{
    Reward, RewardContext, RewardError, RewardFactory, RewardKind, RewardRegistry, RewardSample,
};
use flow_text_encoder::weights::{Wanted, load_tensors};
use flow_text_encoder::{BlipText, BlipTextConfig, BlipVision, BlipVisionConfig, TextEncoder, Tokens};
use flow_tokenizer::{Length, Tokenizer, TokenizerClass};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const NAME: &str = "imagereward";

/// Mean and standard deviation of what the layers give, by which scores are normalised.
const MEAN: f64 = 0.16717362830052426;
const STD: f64 = 1.0333394966054072;
/// Tokens of a prompt.
const TOKENS: usize = 35;
/// Before the names of the layers on BERT's first token.
const HEAD: &str = "mlp.";
/// Channels of an attention head of ViT-L and of BERT-base.
const HEAD_CHANNELS: usize = 64;
/// Added to the variance in layer norms, of images and of texts.
const EPSILON: (f32, f32) = (1e-6, 1e-12);

/// Settings of [`ImageReward`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageRewardSettings {
    /// The file `ImageReward.pt` of `zai-org/ImageReward`, as it is (nothing in it is run) or as safetensors. Relative to the config
    /// file.
    #[schemars(with = "String", length(min = 1))]
    pub path: PathBuf,
    /// The folder of BERT's tokenizer, such as that of `google-bert/bert-base-uncased`.
    #[schemars(with = "String", length(min = 1))]
    pub tokenizer: PathBuf,
    /// Samples per batch of the network, at most.
    #[serde(default = "usual_batch")]
    #[schemars(range(min = 1, max = 1024))]
    pub batch_size: usize,
    /// Where the network computes.
    #[serde(default)]
    pub device: RewardDevice,
}

impl ImageRewardSettings {
    /// The network in this file, the tokenizer in that folder, and the usual rest.
    pub fn new(path: impl Into<PathBuf>, tokenizer: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            tokenizer: tokenizer.into(),
            batch_size: usual_batch(),
            device: RewardDevice::default(),
        }
    }
}

/// Which image people would prefer; see the module's description.
#[derive(Debug)]
pub struct ImageReward {
    images: (BlipVision, Weights),
    texts: (BlipText, Weights),
    head: Affine,
    tokenizer: Tokenizer,
    preprocessor: Preprocessor,
    computation: Computation,
    batch_size: usize,
}

impl ImageReward {
    /// The reward with these settings, computed by `computation`.
    ///
    /// # Errors
    /// [`RewardError::Params`] for a value outside its range, [`RewardError::Network`] for files that are not there, damaged, or of
    /// something else.
    pub fn new(settings: &ImageRewardSettings, computation: &Computation) -> Result<Self, RewardError> {
        Self::build(settings, computation).map_err(|refused| refused.of(NAME))
    }

    fn build(settings: &ImageRewardSettings, computation: &Computation) -> Result<Self, BuildError> {
        if let Some(problem) = batch_problem(settings.batch_size) {
            return Err(BuildError::Params(problem.into()));
        }
        let path = &settings.path;
        if !path.exists() {
            return Err(absent(path));
        }
        if path.is_dir() {
            let problem = format!("`{}` is a folder", path.display());
            return Err(Refusal::new(problem, "name the file `ImageReward.pt` in it").into());
        }
        let file = WeightFile::open(path)?;
        let tensors = file.tensors()?;
        let (vision, text) = towers(&tensors).map_err(|problem| {
            Refusal::because(format!("`{}` holds no ImageReward: {problem}", path.display()))
        })?;
        let (vision, text) = (BlipVision::new(vision), BlipText::new(text));
        let tokenizer = tokenizer(&settings.tokenizer, text.config())?;
        let head = Affine::of(path, &tensors, HEAD)?;
        if head.weights.len() != text.config().width {
            return Err(BuildError::Files(Refusal::because(format!(
                "`{}`: its layers read {} features, and its BERT makes {}",
                path.display(),
                head.weights.len(),
                text.config().width
            ))));
        }
        let load = |wanted: Wanted<'_>| {
            let loaded = load_tensors(
                wanted,
                path,
                tensors.clone(),
                &BTreeMap::new(),
                &computation.device,
            );
            loaded.map(|(weights, _)| frozen(weights))
        };
        let of_images = load(Wanted {
            layout: vision.layout(),
            role: &|name| vision.role(name),
        })?;
        let of_texts = load(Wanted {
            layout: text.layout(),
            role: &|name| text.role(name),
        })?;
        Ok(Self {
            preprocessor: Preprocessor::clip(Resizing::PillowTorchCrop, vision.config().image),
            images: (vision, of_images),
            texts: (text, of_texts),
            head,
            tokenizer,
            computation: computation.clone(),
            batch_size: settings.batch_size,
        })
    }

    /// Adds the reward to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is a reward of its name.
    pub fn register(registry: &mut RewardRegistry) -> Result<(), NameTaken> {
        let reward = RewardFactory::new::<ImageRewardSettings>(
            NAME,
            "Which image people would prefer for a prompt, by ImageReward: about -2 to 2.",
            RewardKind::Pointwise,
            |context: &RewardContext<'_>, settings| {
                let computation = Computation::of(settings.device, context);
                let computation = computation.map_err(|refused| refused.of(NAME))?;
                Ok(Arc::new(Self::new(&settings, &computation)?))
            },
        );
        let reward = reward
            .with_memory(|settings: &ImageRewardSettings| memory(NAME, &settings.path, ALL, settings.device));
        registry.register(reward.with_paths(&["path", "tokenizer"], &[]))
    }

    /// Scores of a batch.
    fn scores(&self, batch: &[RewardSample<'_>]) -> Result<Vec<f32>, BadItem> {
        let failed = |problem: String| BadItem { index: 0, problem };
        let prompts: Vec<&str> = batch.iter().map(|sample| sample.prompt.text.as_str()).collect();
        let rows = self.tokenizer.encode(&prompts, Length::Exactly(TOKENS));
        let rows = rows.map_err(|error| failed(error.to_string()))?;
        let (ids, mask) = (0..rows.rows())
            .map(|row| (rows.row_ids(row).to_vec(), rows.row_mask(row).to_vec()))
            .unzip();
        let tokens = Tokens::with_mask(ids, mask).map_err(|error| failed(error.to_string()))?;
        let pixels = pixel_tensor(&images(batch), &self.preprocessor, &self.computation)?;
        let (vision, weights) = &self.images;
        let seen = on(weights, &self.computation, |exec| vision.encode(exec, pixels));
        let seen = seen.map_err(|error| failed(error.to_string()))?;
        let (text, weights) = &self.texts;
        let read = on(weights, &self.computation, |exec| {
            text.encode(exec, &tokens, seen)
        });
        let read = read.map_err(|error| failed(error.to_string()))?;
        let width = text.config().width;
        let first = read.narrow(1, 0, 1).reshape([batch.len(), width]);
        let values = cpu::to_host(&plain(&first.into_dispatch()));
        let score = |row: &[f32]| ((self.head.at(row) - MEAN) / STD) as f32;
        Ok(values.chunks_exact(width).map(score).collect())
    }
}

impl Reward for ImageReward {
    fn name(&self) -> &str {
        NAME
    }

    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
        in_batches(samples, self.batch_size, |batch| self.scores(batch))
    }
}

/// BERT's tokenizer in `folder`, whose tokens `config` has embeddings of.
fn tokenizer(folder: &Path, config: &BlipTextConfig) -> Result<Tokenizer, BuildError> {
    let tokenizer = Tokenizer::open_as(folder, TokenizerClass::Bert).map_err(|error| {
        Refusal::because(format!(
            "{error}. `tokenizer` names a folder with BERT's tokenizer, such as that of `google-bert/bert-base-uncased`"
        ))
    })?;
    if tokenizer.vocabulary_size() > config.vocabulary {
        let problem = format!(
            "the tokenizer in `{}` has {} tokens, and the network has embeddings of {}",
            folder.display(),
            tokenizer.vocabulary_size(),
            config.vocabulary
        );
        return Err(Refusal::new(problem, "it is the tokenizer of another model").into());
    }
    Ok(tokenizer)
}

/// Dimensions, which the shapes of the weights tell.
fn towers(tensors: &[Placed<'_>]) -> Result<(BlipVisionConfig, BlipTextConfig), String> {
    let shape = |name: &str| {
        let found = tensors.iter().find(|(_, tensor)| tensor.name == name);
        found
            .map(|(_, tensor)| tensor.shape.as_slice())
            .ok_or_else(|| format!("there is no `{name}`"))
    };
    let matrix = |name: &str| match shape(name)? {
        [a, b] => Ok((*a, *b)),
        other => Err(format!("`{name}` is {other:?}; it must have two axes")),
    };
    let layers = |before: &str, ending: &str| {
        let names = tensors.iter().map(|(_, tensor)| tensor.name.as_str());
        names
            .filter(|name| name.starts_with(before) && name.ends_with(ending))
            .count()
    };
    let heads = |width: usize| match width.is_multiple_of(HEAD_CHANNELS) {
        true => (width / HEAD_CHANNELS).max(1),
        false => 1,
    };
    let kernel = "blip.visual_encoder.patch_embed.proj.weight";
    let [width, 3, patch, _] = *shape(kernel)? else {
        return Err(format!(
            "`{kernel}` is {:?}; it must be [channels, 3, patch, patch]",
            shape(kernel)?
        ));
    };
    let table = "blip.visual_encoder.pos_embed";
    let [1, tokens, _] = *shape(table)? else {
        return Err(format!(
            "`{table}` is {:?}; it must be [1, tokens, channels]",
            shape(table)?
        ));
    };
    if width == 0 || patch == 0 {
        return Err(format!("`{kernel}` is {:?}", shape(kernel)?));
    }
    let vision = BlipVisionConfig {
        image: tokens.saturating_sub(1).isqrt() * patch,
        patch,
        width,
        inner: matrix("blip.visual_encoder.blocks.0.mlp.fc1.weight")?.0,
        layers: layers("blip.visual_encoder.blocks.", ".attn.qkv.weight"),
        heads: heads(width),
        epsilon: EPSILON.0,
    };
    let (vocabulary, width) = matrix("blip.text_encoder.embeddings.word_embeddings.weight")?;
    let text = BlipTextConfig {
        vocabulary,
        positions: matrix("blip.text_encoder.embeddings.position_embeddings.weight")?.0,
        width,
        image_width: matrix("blip.text_encoder.encoder.layer.0.crossattention.self.key.weight")?.1,
        inner: matrix("blip.text_encoder.encoder.layer.0.intermediate.dense.weight")?.0,
        layers: layers("blip.text_encoder.encoder.layer.", ".attention.self.query.weight"),
        heads: heads(width),
        epsilon: EPSILON.1,
    };
    if text.image_width != vision.width {
        return Err(format!(
            "its BERT reads images in {} channels, and its encoder of images makes {}",
            text.image_width, vision.width
        ));
    }
    Ok((vision, text))
}
