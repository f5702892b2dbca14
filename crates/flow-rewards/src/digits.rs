//! `digit-classifier`: how surely a small CNN reads the image as the digit that the prompt asks for.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use flow_data::PromptSpec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::classifier::Classifier;
use flow_registry::NameTaken;

use crate::error::RewardError;
use crate::registry::{RewardFactory, RewardRegistry};
use crate::reward::{Reward, RewardKind, RewardSample, check_finite};
use crate::rules::of_data;

const NAME: &str = "digit-classifier";

/// What the digit classifier's reward is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClassifierMode {
    /// The probability of the prompted digit, 0 to 1.
    #[default]
    Probability,
    /// Its natural logarithm.
    LogProbability,
}

/// Which classifier scores.
///
/// As text: `built-in`, `judge`, or the path of a file that `train_classifier` wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum ClassifierWeights {
    /// The one that comes with the crate.
    #[default]
    BuiltIn,
    /// A second one that comes with the crate, wider and trained on another split with another seed.
    ///
    /// Score held-out images by it while training on the first: where the first goes up and the judge does not, the
    /// model has learnt to please the classifier and not to write digits.
    Judge,
    /// A safetensors file.
    File(PathBuf),
}

impl From<String> for ClassifierWeights {
    fn from(text: String) -> Self {
        match text.as_str() {
            "built-in" => Self::BuiltIn,
            "judge" => Self::Judge,
            _ => Self::File(PathBuf::from(text)),
        }
    }
}

impl From<ClassifierWeights> for String {
    fn from(weights: ClassifierWeights) -> Self {
        weights.to_string()
    }
}

impl fmt::Display for ClassifierWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("built-in"),
            Self::Judge => f.write_str("judge"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Settings of [`DigitClassifier`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DigitClassifierSettings {
    /// The classifier's weights: `built-in`, `judge` (a second one, for evaluation), or a safetensors file relative to
    /// the config file.
    #[schemars(with = "String")]
    pub weights: ClassifierWeights,
    /// What the reward is.
    #[serde(default)]
    pub mode: ClassifierMode,
}

/// The probability of the prompted digit; see the module's description.
#[derive(Debug, Clone)]
pub struct DigitClassifier {
    classifier: Classifier,
    mode: ClassifierMode,
}

impl DigitClassifier {
    /// The reward with these settings.
    ///
    /// # Errors
    /// [`RewardError::Weights`] if the classifier cannot be read.
    pub fn new(settings: &DigitClassifierSettings) -> Result<Self, RewardError> {
        let classifier = match &settings.weights {
            ClassifierWeights::BuiltIn => Classifier::built_in()?,
            ClassifierWeights::Judge => Classifier::judge()?,
            ClassifierWeights::File(path) => Classifier::load(path)?,
        };
        Ok(Self::with_classifier(classifier, settings.mode))
    }

    /// The reward with a classifier at hand.
    pub fn with_classifier(classifier: Classifier, mode: ClassifierMode) -> Self {
        Self { classifier, mode }
    }
}

impl Reward for DigitClassifier {
    fn name(&self) -> &str {
        NAME
    }

    fn range(&self) -> (f64, f64) {
        match self.mode {
            ClassifierMode::Probability => (0.0, 1.0),
            ClassifierMode::LogProbability => (f64::NEG_INFINITY, 0.0),
        }
    }

    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
        let score = |(index, sample): (usize, &RewardSample<'_>)| {
            check_finite(index, sample)?;
            let PromptSpec::Digit { digit, .. } = sample.prompt.spec else {
                return Err(RewardError::Sample {
                    index,
                    problem: format!(
                        "the prompt \"{}\" asks for no digit; `{NAME}` goes with the data set `digits` (for scenes \
                         there is `shapes-rules`)",
                        sample.prompt.text
                    ),
                });
            };
            let log_probabilities = self
                .classifier
                .log_probabilities(sample.image)
                .map_err(|problem| RewardError::Sample { index, problem })?;
            let log_probability =
                *log_probabilities
                    .get(usize::from(digit))
                    .ok_or_else(|| RewardError::Sample {
                        index,
                        problem: format!(
                            "the prompt \"{}\" asks for digit {digit}, and digits are 0 to 9",
                            sample.prompt.text
                        ),
                    })?;
            Ok(match self.mode {
                ClassifierMode::Probability => libm::expf(log_probability),
                ClassifierMode::LogProbability => log_probability,
            })
        };
        samples.iter().enumerate().map(score).collect()
    }
}

impl DigitClassifier {
    /// Adds the reward to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is a reward of its name.
    pub fn register(registry: &mut RewardRegistry) -> Result<(), NameTaken> {
        let reward = RewardFactory::new::<DigitClassifierSettings>(
            NAME,
            "How surely a small classifier reads the image as the prompted digit.",
            RewardKind::Pointwise,
            |_, settings| Ok(Arc::new(Self::new(&settings)?)),
        );
        registry.register(
            reward
                .with_rules(|_: &DigitClassifierSettings, rules, path| of_data("digits", NAME, rules, path))
                .with_paths(&["weights"], &["built-in", "judge"]),
        )
    }
}
