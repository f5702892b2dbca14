//! `[[rewards]]` and `[[eval_rewards]]`: what images are scored by.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One reward, chosen by `kind`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "kebab-case")]
pub enum RewardConfig {
    /// How surely a small classifier reads the image as the prompted digit.
    DigitClassifier(DigitClassifierReward),
    /// Whether the scene is the prompted one: count, colour, shape, position, found by rules.
    ShapesRules(ShapesRulesReward),
    /// How small the image is as JPEG: minus its size in kilobytes (1 kB = 1000 bytes), as in flow_grpo.
    JpegCompressibility(JpegReward),
    /// How near the image's mean colour is to one colour: minus their distance in sRGB, each channel from 0 to 1.
    TargetColour(TargetColourReward),
}

impl RewardConfig {
    /// Its name in metrics and reports: `name` if it is given, else the kind.
    pub fn name(&self) -> &str {
        let given = match self {
            Self::DigitClassifier(reward) => &reward.name,
            Self::ShapesRules(reward) => &reward.name,
            Self::JpegCompressibility(reward) => &reward.name,
            Self::TargetColour(reward) => &reward.name,
        };
        given.as_deref().unwrap_or(self.kind())
    }

    /// Its kind, as written in the config.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::DigitClassifier(_) => "digit-classifier",
            Self::ShapesRules(_) => "shapes-rules",
            Self::JpegCompressibility(_) => "jpeg-compressibility",
            Self::TargetColour(_) => "target-colour",
        }
    }

    /// Its weight in the sum of rewards.
    pub fn weight(&self) -> f64 {
        match self {
            Self::DigitClassifier(reward) => reward.weight,
            Self::ShapesRules(reward) => reward.weight,
            Self::JpegCompressibility(reward) => reward.weight,
            Self::TargetColour(reward) => reward.weight,
        }
    }
}

/// `kind = "digit-classifier"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DigitClassifierReward {
    /// Name in metrics and reports; without it, the kind. Unique in its list.
    #[serde(default)]
    #[schemars(length(min = 1, max = 100))]
    pub name: Option<String>,
    /// Weight in the sum of rewards; may be negative.
    #[serde(default = "one")]
    #[schemars(range(min = -1e30, max = 1e30))]
    pub weight: f64,
    /// The classifier's weights: `built-in`, `judge` (a second one, for evaluation), or a safetensors file relative to
    /// the config file.
    pub weights: PathBuf,
    /// What the reward is.
    #[serde(default)]
    pub mode: ClassifierMode,
}

/// What the digit classifier's reward is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClassifierMode {
    /// The probability of the prompted digit, 0 to 1.
    #[default]
    Probability,
    /// Its natural logarithm.
    LogProbability,
}

/// `kind = "shapes-rules"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ShapesRulesReward {
    /// Name in metrics and reports; without it, the kind. Unique in its list.
    #[schemars(length(min = 1, max = 100))]
    pub name: Option<String>,
    /// Weight in the sum of rewards; may be negative.
    #[schemars(range(min = -1e30, max = 1e30))]
    pub weight: f64,
    /// How the rules add up.
    pub mode: RulesMode,
}

impl Default for ShapesRulesReward {
    fn default() -> Self {
        Self {
            name: None,
            weight: 1.0,
            mode: RulesMode::Mean,
        }
    }
}

/// How the rules of a scene add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RulesMode {
    /// The mean of the rules that hold: smooth.
    #[default]
    Mean,
    /// 1 if every rule holds, else 0: GenEval's.
    All,
}

/// `kind = "jpeg-compressibility"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct JpegReward {
    /// Name in metrics and reports; without it, the kind. Unique in its list.
    #[schemars(length(min = 1, max = 100))]
    pub name: Option<String>,
    /// Weight in the sum of rewards; negative rewards images that compress badly.
    #[schemars(range(min = -1e30, max = 1e30))]
    pub weight: f64,
    /// JPEG quality.
    #[schemars(range(min = 1, max = 100))]
    pub quality: u8,
}

impl Default for JpegReward {
    fn default() -> Self {
        Self {
            name: None,
            weight: 1.0,
            quality: 95,
        }
    }
}

/// `kind = "target-colour"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetColourReward {
    /// Name in metrics and reports; without it, the kind. Unique in its list.
    #[serde(default)]
    #[schemars(length(min = 1, max = 100))]
    pub name: Option<String>,
    /// Weight in the sum of rewards; may be negative.
    #[serde(default = "one")]
    #[schemars(range(min = -1e30, max = 1e30))]
    pub weight: f64,
    /// The colour: red, green, blue, each 0 to 1. A grey image counts as three equal channels.
    #[schemars(inner(range(min = 0.0, max = 1.0)))]
    pub rgb: [f64; 3],
}

fn one() -> f64 {
    1.0
}
