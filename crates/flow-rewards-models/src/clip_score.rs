//! `clip-score`: how near image and prompt are in CLIP's space.
//!
//! Sources: Hessel et al. 2021, arXiv:2104.08718 (without its factor of 2.5 and its floor at 0); Flow-Factory,
//! `rewards/clip.py` (`cosine`); flow_grpo, `flow_grpo/clip_scorer.py` (`logits`, with `preprocessing = "tensor-bilinear"`).

use crate::batches::{batch_problem, cosines, in_batches, usual_batch};
use crate::clip::Clip;
use crate::computation::{Computation, RewardDevice};
use crate::memory::{ALL, memory};
use crate::pixels::Resizing;
use crate::problem::BuildError;
use flow_config::Rules;
use flow_config::codes::RULE_UNUSED;
use flow_registry::NameTaken;
use flow_rewards::{
    Reward, RewardContext, RewardError, RewardFactory, RewardKind, RewardRegistry, RewardSample,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

const NAME: &str = "clip-score";

/// The divisor of flow_grpo's first version.
const USUAL_DIVISOR: f64 = 30.0;

/// What `clip-score` gives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClipScoreFormula {
    /// The cosine between image and prompt, -1 to 1: Flow-Factory's.
    #[default]
    Cosine,
    /// The cosine times the CLIP's own factor (100 for OpenAI's), over `divisor`: flow_grpo's.
    Logits,
}

/// How images are resized for `clip-score`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClipScorePreprocessing {
    /// As Pillow does, by a bicubic filter on 8-bit values: transformers' and Flow-Factory's.
    #[default]
    Pil,
    /// As torchvision does, by a bilinear filter on floating-point values: flow_grpo's.
    TensorBilinear,
}

/// Settings of [`ClipScore`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClipScoreSettings {
    /// The folder of a whole CLIP as transformers saves it, such as that of `openai/clip-vit-large-patch14`, relative to the config
    /// file.
    #[schemars(with = "String", length(min = 1))]
    pub path: PathBuf,
    /// The folder of its tokenizer, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub tokenizer: Option<PathBuf>,
    /// What the reward is.
    #[serde(default)]
    pub score: ClipScoreFormula,
    /// What logits are divided by: 30 in flow_grpo, 100 in programs that came from it.
    #[serde(default = "usual_divisor")]
    #[schemars(range(min = 0.001, max = 100_000.0))]
    pub divisor: f64,
    /// How images are resized.
    #[serde(default)]
    pub preprocessing: ClipScorePreprocessing,
    /// Samples per batch of the network, at most.
    #[serde(default = "usual_batch")]
    #[schemars(range(min = 1, max = 1024))]
    pub batch_size: usize,
    /// Where the network computes.
    #[serde(default)]
    pub device: RewardDevice,
}

const fn usual_divisor() -> f64 {
    USUAL_DIVISOR
}

impl ClipScoreSettings {
    /// The CLIP in this folder, and the usual rest.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            tokenizer: None,
            score: ClipScoreFormula::default(),
            divisor: USUAL_DIVISOR,
            preprocessing: ClipScorePreprocessing::default(),
            batch_size: usual_batch(),
            device: RewardDevice::default(),
        }
    }

    fn problem(&self) -> Option<String> {
        let is_allowed = (0.001..=100_000.0).contains(&self.divisor);
        let divisor =
            (!is_allowed).then(|| format!("`divisor`: {} is not from 0.001 to 100000", self.divisor));
        divisor.or_else(|| batch_problem(self.batch_size))
    }
}

/// How near image and prompt are in CLIP's space; see the module's description.
#[derive(Debug)]
pub struct ClipScore {
    clip: Clip,
    factor: f64,
    batch_size: usize,
}

impl ClipScore {
    /// The reward with these settings, computed by `computation`.
    ///
    /// # Errors
    /// [`RewardError::Params`] for a value outside its range, [`RewardError::Network`] for files that are not there, damaged, or of
    /// something else.
    pub fn new(settings: &ClipScoreSettings, computation: &Computation) -> Result<Self, RewardError> {
        Self::build(settings, computation).map_err(|refused| refused.of(NAME))
    }

    fn build(settings: &ClipScoreSettings, computation: &Computation) -> Result<Self, BuildError> {
        if let Some(problem) = settings.problem() {
            return Err(BuildError::Params(problem.into()));
        }
        let tokenizer = settings.tokenizer.as_ref().unwrap_or(&settings.path);
        let resizing = match settings.preprocessing {
            ClipScorePreprocessing::Pil => Resizing::Pillow,
            ClipScorePreprocessing::TensorBilinear => Resizing::TensorBilinear,
        };
        let clip = Clip::open(&settings.path, tokenizer, resizing, computation)?;
        Ok(Self {
            factor: match settings.score {
                ClipScoreFormula::Cosine => 1.0,
                ClipScoreFormula::Logits => libm::exp(clip.logit_scale) / settings.divisor,
            },
            clip,
            batch_size: settings.batch_size,
        })
    }

    /// Adds the reward to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is a reward of its name.
    pub fn register(registry: &mut RewardRegistry) -> Result<(), NameTaken> {
        let reward = RewardFactory::new::<ClipScoreSettings>(
            NAME,
            "How near image and prompt are by a CLIP: the cosine of their features, or flow_grpo's logits.",
            RewardKind::Pointwise,
            |context: &RewardContext<'_>, settings| {
                let computation = Computation::of(settings.device, context);
                let computation = computation.map_err(|refused| refused.of(NAME))?;
                Ok(Arc::new(Self::new(&settings, &computation)?))
            },
        );
        let reward = reward
            .with_memory(|settings: &ClipScoreSettings| memory(NAME, &settings.path, ALL, settings.device));
        registry.register(reward.with_rules(check).with_paths(&["path", "tokenizer"], &[]))
    }
}

/// Rules that the schema cannot say.
fn check(settings: &ClipScoreSettings, rules: &mut Rules<'_>, path: &str) {
    let divisor = format!("{path}.divisor");
    if settings.score == ClipScoreFormula::Cosine && rules.is_written(&divisor) {
        let message = format!("a cosine is divided by nothing, so `{divisor}` is not read");
        rules
            .warning(RULE_UNUSED, &[&divisor, &format!("{path}.score")], message)
            .help("remove it, or set `score = \"logits\"`");
    }
}

impl Reward for ClipScore {
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
