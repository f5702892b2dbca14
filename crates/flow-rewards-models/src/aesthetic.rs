//! `aesthetic`: how much people like an image, whatever the prompt, by LAION's aesthetic predictor.
//!
//! Source: `christophschuhmann/improved-aesthetic-predictor`, and flow_grpo, `flow_grpo/aesthetic_scorer.py`: five linear layers without
//! activations (768, 1024, 128, 64, 16, 1) on CLIP-L's image features of unit length. Without activations they are one: it is made in
//! f64 when the reward is built.

use crate::batches::{batch_problem, images, in_batches, usual_batch};
use crate::clip::ImageTower;
use crate::computation::{Computation, RewardDevice};
use crate::memory::{IMAGE_SIDE, memory};
use crate::pixels::Resizing;
use crate::problem::BuildError;
use crate::weight_file::{Placed, WeightFile};
use flow_registry::{NameTaken, Refusal};
use flow_rewards::{
    Reward, RewardContext, RewardError, RewardFactory, RewardKind, RewardRegistry, RewardSample,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const NAME: &str = "aesthetic";

/// The layers' places in `nn.Sequential`, between which dropout is.
const LAYERS: [usize; 5] = [0, 2, 4, 6, 7];

/// Settings of [`Aesthetic`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AestheticSettings {
    /// The folder of `openai/clip-vit-large-patch14`, relative to the config file.
    #[schemars(with = "String", length(min = 1))]
    pub path: PathBuf,
    /// The layers upon it: `sac+logos+ava1-l14-linearMSE.pth`, as it is (nothing in it is run) or as safetensors.
    #[schemars(with = "String", length(min = 1))]
    pub head: PathBuf,
    /// Samples per batch of the network, at most.
    #[serde(default = "usual_batch")]
    #[schemars(range(min = 1, max = 1024))]
    pub batch_size: usize,
    /// Where the network computes.
    #[serde(default)]
    pub device: RewardDevice,
}

impl AestheticSettings {
    /// The CLIP in this folder, the layers in that file, and the usual rest.
    pub fn new(path: impl Into<PathBuf>, head: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            head: head.into(),
            batch_size: usual_batch(),
            device: RewardDevice::default(),
        }
    }
}

/// How much people like an image; see the module's description.
#[derive(Debug)]
pub struct Aesthetic {
    images: ImageTower,
    head: Affine,
    batch_size: usize,
}

/// `weights · x + bias`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Affine {
    pub weights: Vec<f64>,
    pub bias: f64,
}

impl Affine {
    /// The five layers called `PREFIXlayers.N` of `file` as one.
    pub fn read(file: &Path, prefix: &str) -> Result<Self, BuildError> {
        let opened = WeightFile::open(file)?;
        Self::of(file, &opened.tensors()?, prefix)
    }

    /// The five layers called `PREFIXlayers.N` among `tensors`, which are those of `file`, as one.
    pub fn of(file: &Path, tensors: &[Placed<'_>], prefix: &str) -> Result<Self, BuildError> {
        let wrong = |problem: String| {
            BuildError::Files(Refusal::because(format!(
                "`{}` is no head of five linear layers (`layers.0` to `layers.7`): {problem}",
                file.display()
            )))
        };
        let values = |name: String| {
            let found = tensors.iter().find(|(_, tensor)| tensor.name == name);
            let (_, tensor) = found.ok_or_else(|| wrong(format!("`{name}` is missing")))?;
            let values = tensor
                .to_f32()
                .filter(|values| values.iter().all(|value| value.is_finite()));
            let values = values.ok_or_else(|| {
                wrong(format!(
                    "values of `{name}` are not finite numbers of 16 or 32 bits"
                ))
            })?;
            Ok::<_, BuildError>((tensor.shape.clone(), values))
        };
        // From the last layer to the first: y = a x + b of what the layers below give.
        let mut whole = Self {
            weights: vec![1.0],
            bias: 0.0,
        };
        for layer in LAYERS.iter().rev() {
            let name = format!("{prefix}layers.{layer}");
            let (shape, weights) = values(format!("{name}.weight"))?;
            let (_, bias) = values(format!("{name}.bias"))?;
            let (&[outputs, inputs], true) = (shape.as_slice(), bias.len() == whole.weights.len()) else {
                return Err(wrong(format!(
                    "`{name}` has the shapes {shape:?} and [{}]",
                    bias.len()
                )));
            };
            if outputs != bias.len() {
                return Err(wrong(format!(
                    "`{name}` has the shapes {shape:?} and [{}]",
                    bias.len()
                )));
            }
            whole = whole.of_layer(&weights, &bias, inputs);
        }
        Ok(whole)
    }

    /// This after a layer with `weights` `[outputs, inputs]` and `bias`.
    fn of_layer(&self, weights: &[f32], bias: &[f32], inputs: usize) -> Self {
        let mut below = vec![0.0; inputs];
        for (own, row) in self.weights.iter().zip(weights.chunks_exact(inputs.max(1))) {
            for (sum, weight) in below.iter_mut().zip(row) {
                *sum += own * f64::from(*weight);
            }
        }
        let products = self
            .weights
            .iter()
            .zip(bias)
            .map(|(own, bias)| own * f64::from(*bias));
        Self {
            bias: self.bias + products.sum::<f64>(),
            weights: below,
        }
    }

    /// Its value.
    pub fn at(&self, x: &[f32]) -> f64 {
        let products = self
            .weights
            .iter()
            .zip(x)
            .map(|(weight, x)| weight * f64::from(*x));
        self.bias + products.sum::<f64>()
    }
}

impl Aesthetic {
    /// The reward with these settings, computed by `computation`.
    ///
    /// # Errors
    /// [`RewardError::Params`] for a value outside its range, [`RewardError::Network`] for files that are not there, damaged, or of
    /// something else.
    pub fn new(settings: &AestheticSettings, computation: &Computation) -> Result<Self, RewardError> {
        Self::build(settings, computation).map_err(|refused| refused.of(NAME))
    }

    fn build(settings: &AestheticSettings, computation: &Computation) -> Result<Self, BuildError> {
        if let Some(problem) = batch_problem(settings.batch_size) {
            return Err(BuildError::Params(problem.into()));
        }
        let head = Affine::read(&settings.head, "")?;
        let images = ImageTower::open(&settings.path, Resizing::Pillow, computation)?;
        if images.channels() != head.weights.len() {
            let problem = format!(
                "the head `{}` reads {} features, the CLIP in `{}` makes {}",
                settings.head.display(),
                head.weights.len(),
                settings.path.display(),
                images.channels()
            );
            let help = "the head of LAION is for `openai/clip-vit-large-patch14`";
            return Err(Refusal::new(problem, help).into());
        }
        Ok(Self {
            images,
            head,
            batch_size: settings.batch_size,
        })
    }

    /// Adds the reward to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is a reward of its name.
    pub fn register(registry: &mut RewardRegistry) -> Result<(), NameTaken> {
        let reward = RewardFactory::new::<AestheticSettings>(
            NAME,
            "How much people like an image, whatever the prompt, by LAION's aesthetic predictor: about 1 to 10.",
            RewardKind::Pointwise,
            |context: &RewardContext<'_>, settings| {
                let computation = Computation::of(settings.device, context);
                let computation = computation.map_err(|refused| refused.of(NAME))?;
                Ok(Arc::new(Self::new(&settings, &computation)?))
            },
        );
        let reward = reward.with_memory(|settings: &AestheticSettings| {
            memory(NAME, &settings.path, IMAGE_SIDE, settings.device)
        });
        registry.register(reward.with_paths(&["path", "head"], &[]))
    }
}

impl Reward for Aesthetic {
    fn name(&self) -> &str {
        NAME
    }

    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
        in_batches(samples, self.batch_size, |batch| {
            let features = self.images.features(&images(batch))?;
            Ok(features.iter().map(|row| self.head.at(row) as f32).collect())
        })
    }
}
