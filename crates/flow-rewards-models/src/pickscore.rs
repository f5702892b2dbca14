//! `pickscore`: which image people would pick for a prompt, by PickScore.
//!
//! Sources: Kirstain et al. 2023, arXiv:2305.01569; flow_grpo, `flow_grpo/pickscore_scorer.py`, and Flow-Factory,
//! `rewards/pick_score.py`: `exp(logit_scale) · cosine / 26`. The network is `yuvalkirstain/PickScore_v1`, a CLIP ViT-H/14, the tokenizer
//! that of `laion/CLIP-ViT-H-14-laion2B-s32B-b79K`.

use crate::batches::{batch_problem, cosines, in_batches, usual_batch};
use crate::clip::Clip;
use crate::computation::{Computation, RewardDevice};
use crate::memory::{ALL, memory};
use crate::pixels::Resizing;
use crate::problem::BuildError;
use flow_registry::NameTaken;
use flow_rewards::{
    Reward, RewardContext, RewardError, RewardFactory, RewardKind, RewardRegistry, RewardSample,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

const NAME: &str = "pickscore";

/// What both sources divide by: about the largest score, so that most are below 1.
const DIVISOR: f64 = 26.0;

/// Settings of [`PickScore`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PickScoreSettings {
    /// The folder of `yuvalkirstain/PickScore_v1`, relative to the config file.
    #[schemars(with = "String", length(min = 1))]
    pub path: PathBuf,
    /// The folder of its tokenizer, if it is another one: `laion/CLIP-ViT-H-14-laion2B-s32B-b79K`, or any CLIP's of OpenAI's
    /// vocabulary.
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

impl PickScoreSettings {
    /// The network in this folder, and the usual rest.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            tokenizer: None,
            batch_size: usual_batch(),
            device: RewardDevice::default(),
        }
    }
}

/// Which image people would pick; see the module's description.
#[derive(Debug)]
pub struct PickScore {
    clip: Clip,
    factor: f64,
    batch_size: usize,
}

impl PickScore {
    /// The reward with these settings, computed by `computation`.
    ///
    /// # Errors
    /// [`RewardError::Params`] for a value outside its range, [`RewardError::Network`] for files that are not there, damaged, or of
    /// something else.
    pub fn new(settings: &PickScoreSettings, computation: &Computation) -> Result<Self, RewardError> {
        Self::build(settings, computation).map_err(|refused| refused.of(NAME))
    }

    fn build(settings: &PickScoreSettings, computation: &Computation) -> Result<Self, BuildError> {
        if let Some(problem) = batch_problem(settings.batch_size) {
            return Err(BuildError::Params(problem.into()));
        }
        let tokenizer = settings.tokenizer.as_ref().unwrap_or(&settings.path);
        let clip = Clip::open(&settings.path, tokenizer, Resizing::Pillow, computation)?;
        Ok(Self {
            factor: libm::exp(clip.logit_scale) / DIVISOR,
            clip,
            batch_size: settings.batch_size,
        })
    }

    /// Adds the reward to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is a reward of its name.
    pub fn register(registry: &mut RewardRegistry) -> Result<(), NameTaken> {
        let reward = RewardFactory::new::<PickScoreSettings>(
            NAME,
            "Which image people would pick for a prompt, by PickScore: exp(logit_scale) · cosine / 26.",
            RewardKind::Pointwise,
            |context: &RewardContext<'_>, settings| {
                let computation = Computation::of(settings.device, context);
                let computation = computation.map_err(|refused| refused.of(NAME))?;
                Ok(Arc::new(Self::new(&settings, &computation)?))
            },
        );
        let reward = reward
            .with_memory(|settings: &PickScoreSettings| memory(NAME, &settings.path, ALL, settings.device));
        registry.register(reward.with_paths(&["path", "tokenizer"], &[]))
    }
}

impl Reward for PickScore {
    fn name(&self) -> &str {
        NAME
    }

    fn range(&self) -> (f64, f64) {
        (-self.factor, self.factor)
    }

    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
        in_batches(samples, self.batch_size, |batch| {
            let cosines = cosines(&self.clip, batch)?.into_iter();
            Ok(cosines.map(|cosine| (cosine * self.factor) as f32).collect())
        })
    }
}
