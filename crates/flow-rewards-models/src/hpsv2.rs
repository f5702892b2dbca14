//! `hpsv2`: which image people would prefer for a prompt, by Human Preference Score v2.
//!
//! Source: Wu et al. 2023, arXiv:2306.09341; HPSv2, `hpsv2/img_score.py`: the cosine of features, without a factor. The network is a
//! CLIP ViT-H/14 of open_clip, `HPS_v2_compressed.pt` or `HPS_v2.1_compressed.pt` of `xswu/HPSv2`. There it computes with f16 operands.

use crate::batches::{batch_problem, cosines, in_batches, usual_batch};
use crate::clip::Clip;
use crate::computation::{Computation, RewardDevice};
use crate::memory::{ALL, memory};
use crate::pixels::Resizing;
use crate::problem::BuildError;
use crate::weight_file::absent;
use flow_registry::{NameTaken, Refusal};
use flow_rewards::{
    Reward, RewardContext, RewardError, RewardFactory, RewardKind, RewardRegistry, RewardSample,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

const NAME: &str = "hpsv2";

/// Settings of [`HpsV2`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HpsV2Settings {
    /// The file of `xswu/HPSv2`, as it is or as safetensors; or the folder of one that was converted for transformers. Relative to the
    /// config file.
    #[schemars(with = "String", length(min = 1))]
    pub path: PathBuf,
    /// The folder of CLIP's tokenizer, such as that of `openai/clip-vit-large-patch14`; needed if `path` is a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub tokenizer: Option<PathBuf>,
    /// Samples per batch of the network, at most.
    #[serde(default = "usual_batch")]
    #[schemars(range(min = 1, max = 1024))]
    pub batch_size: usize,
    /// Where the network computes.
    #[serde(default)]
    pub device: RewardDevice,
}

impl HpsV2Settings {
    /// The network at this path, the tokenizer in that folder, and the usual rest.
    pub fn new(path: impl Into<PathBuf>, tokenizer: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            tokenizer: Some(tokenizer.into()),
            batch_size: usual_batch(),
            device: RewardDevice::default(),
        }
    }
}

/// Which image people would prefer; see the module's description.
#[derive(Debug)]
pub struct HpsV2 {
    clip: Clip,
    batch_size: usize,
}

impl HpsV2 {
    /// The reward with these settings, computed by `computation`.
    ///
    /// # Errors
    /// [`RewardError::Params`] for a value outside its range or a tokenizer that is not named, [`RewardError::Network`] for files that
    /// are not there, damaged, or of something else.
    pub fn new(settings: &HpsV2Settings, computation: &Computation) -> Result<Self, RewardError> {
        Self::build(settings, computation).map_err(|refused| refused.of(NAME))
    }

    fn build(settings: &HpsV2Settings, computation: &Computation) -> Result<Self, BuildError> {
        if let Some(problem) = batch_problem(settings.batch_size) {
            return Err(BuildError::Params(problem.into()));
        }
        let (path, resizing) = (&settings.path, Resizing::TensorBicubic);
        if !path.exists() {
            return Err(absent(path));
        }
        let clip = if path.is_dir() {
            let tokenizer = settings.tokenizer.as_ref().unwrap_or(path);
            Clip::open(path, tokenizer, resizing, computation)?
        } else {
            let tokenizer = settings.tokenizer.as_ref().ok_or_else(|| {
                BuildError::Params(Refusal::new(
                    "`tokenizer`: is missing, and a file of HPSv2 holds none",
                    "set it to a folder with CLIP's tokenizer, such as that of `openai/clip-vit-large-patch14`",
                ))
            })?;
            Clip::open_of_open_clip(path, tokenizer, resizing, computation)?
        };
        Ok(Self {
            clip,
            batch_size: settings.batch_size,
        })
    }

    /// Adds the reward to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is a reward of its name.
    pub fn register(registry: &mut RewardRegistry) -> Result<(), NameTaken> {
        let reward = RewardFactory::new::<HpsV2Settings>(
            NAME,
            "Which image people would prefer for a prompt, by HPSv2: the cosine of its features.",
            RewardKind::Pointwise,
            |context: &RewardContext<'_>, settings| {
                let computation = Computation::of(settings.device, context);
                let computation = computation.map_err(|refused| refused.of(NAME))?;
                Ok(Arc::new(Self::new(&settings, &computation)?))
            },
        );
        let reward =
            reward.with_memory(|settings: &HpsV2Settings| memory(NAME, &settings.path, ALL, settings.device));
        registry.register(reward.with_paths(&["path", "tokenizer"], &[]))
    }
}

impl Reward for HpsV2 {
    fn name(&self) -> &str {
        NAME
    }

    fn range(&self) -> (f64, f64) {
        (-1.0, 1.0)
    }

    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
        in_batches(samples, self.batch_size, |batch| {
            let cosines = cosines(&self.clip, batch)?.into_iter();
            Ok(cosines.map(|cosine| cosine as f32).collect())
        })
    }
}
