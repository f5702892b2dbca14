//! `clip-diversity`: how far an image is from the image of its group that is nearest to it, by features of a CLIP.
//!
//! Source: GARDO (He et al. 2025, arXiv:2512.24138; flow_grpo, `stat_tracking.py`, 94e23ee), which has the formula and takes the features
//! of a DINOv3.

use crate::batches::{batch_problem, images, in_batches, usual_batch};
use crate::clip::ImageTower;
use crate::computation::{Computation, RewardDevice};
use crate::memory::{IMAGE_SIDE, memory};
use crate::pixels::Resizing;
use crate::problem::BuildError;
use flow_registry::NameTaken;
use flow_rewards::{
    Reward, RewardContext, RewardError, RewardFactory, RewardKind, RewardRegistry, RewardSample, diversity,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

const NAME: &str = "clip-diversity";

/// Settings of [`ClipDiversity`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClipDiversitySettings {
    /// The folder of a CLIP as transformers saves it, such as that of `openai/clip-vit-large-patch14`, relative to the config file.
    #[schemars(with = "String", length(min = 1))]
    pub path: PathBuf,
    /// Samples per batch of the network, at most.
    #[serde(default = "usual_batch")]
    #[schemars(range(min = 1, max = 1024))]
    pub batch_size: usize,
    /// Where the network computes.
    #[serde(default)]
    pub device: RewardDevice,
}

impl ClipDiversitySettings {
    /// The CLIP in this folder, and the usual rest.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            batch_size: usual_batch(),
            device: RewardDevice::default(),
        }
    }
}

/// How far an image is from the nearest other one of its group; see the module's description.
#[derive(Debug)]
pub struct ClipDiversity {
    images: ImageTower,
    batch_size: usize,
}

impl ClipDiversity {
    /// The reward with these settings, computed by `computation`.
    ///
    /// # Errors
    /// [`RewardError::Params`] for a value outside its range, [`RewardError::Network`] for files that are not there, damaged, or of
    /// something else.
    pub fn new(settings: &ClipDiversitySettings, computation: &Computation) -> Result<Self, RewardError> {
        Self::build(settings, computation).map_err(|refused| refused.of(NAME))
    }

    fn build(settings: &ClipDiversitySettings, computation: &Computation) -> Result<Self, BuildError> {
        if let Some(problem) = batch_problem(settings.batch_size) {
            return Err(BuildError::Params(problem.into()));
        }
        Ok(Self {
            images: ImageTower::open(&settings.path, Resizing::Pillow, computation)?,
            batch_size: settings.batch_size,
        })
    }

    /// Adds the reward to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is a reward of its name.
    pub fn register(registry: &mut RewardRegistry) -> Result<(), NameTaken> {
        let reward = RewardFactory::new::<ClipDiversitySettings>(
            NAME,
            "How far an image is from the nearest other one of its group, by features of a CLIP: 0 (the same) to 2.",
            RewardKind::Groupwise,
            |context: &RewardContext<'_>, settings| {
                let computation = Computation::of(settings.device, context);
                let computation = computation.map_err(|refused| refused.of(NAME))?;
                Ok(Arc::new(Self::new(&settings, &computation)?))
            },
        );
        let reward = reward.with_memory(|settings: &ClipDiversitySettings| {
            memory(NAME, &settings.path, IMAGE_SIDE, settings.device)
        });
        registry.register(reward.with_paths(&["path"], &[]))
    }
}

impl Reward for ClipDiversity {
    fn name(&self) -> &str {
        NAME
    }

    fn kind(&self) -> RewardKind {
        RewardKind::Groupwise
    }

    fn range(&self) -> (f64, f64) {
        (0.0, 2.0)
    }

    /// Of a video the features of its first frame.
    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
        let features = in_batches(samples, self.batch_size, |batch| {
            self.images.features(&images(batch))
        })?;
        Ok(diversity(&features))
    }
}
