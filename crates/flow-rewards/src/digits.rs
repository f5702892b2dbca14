//! `digit-classifier`: how surely a small CNN reads the image as the digit that the prompt asks for.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use flow_data::PromptSpec;

use crate::classifier::Classifier;
use crate::error::RewardError;
use crate::params::parse_params;
use crate::registry::{RewardFactory, RewardRegistry};
use crate::reward::{Reward, RewardKind, RewardSample, check_finite};

const NAME: &str = "digit-classifier";
const PARAMS: [&str; 2] = ["mode", "weights"];

/// What the score is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScoreMode {
    /// The probability of the prompted digit, 0 to 1.
    #[default]
    Probability,
    /// Its natural logarithm, at most 0.
    LogProbability,
}

/// Which classifier scores.
///
/// As text: `built-in`, `judge`, or the path of a file that `train_classifier` wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
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
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DigitClassifierSettings {
    /// Probability or log-probability.
    pub mode: ScoreMode,
    /// Which classifier.
    pub weights: ClassifierWeights,
}

/// The probability of the prompted digit; see the module's description.
#[derive(Debug, Clone)]
pub struct DigitClassifier {
    classifier: Classifier,
    mode: ScoreMode,
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
    pub fn with_classifier(classifier: Classifier, mode: ScoreMode) -> Self {
        Self { classifier, mode }
    }
}

impl Reward for DigitClassifier {
    fn name(&self) -> &str {
        NAME
    }

    fn range(&self) -> (f64, f64) {
        match self.mode {
            ScoreMode::Probability => (0.0, 1.0),
            ScoreMode::LogProbability => (f64::NEG_INFINITY, 0.0),
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
                ScoreMode::Probability => libm::expf(log_probability),
                ScoreMode::LogProbability => log_probability,
            })
        };
        samples.iter().enumerate().map(score).collect()
    }
}

impl DigitClassifier {
    /// Adds the reward to a registry.
    ///
    /// # Errors
    /// [`RewardError::AlreadyRegistered`] if its name is taken.
    pub fn register(registry: &mut RewardRegistry) -> Result<(), RewardError> {
        registry.register(RewardFactory {
            name: NAME,
            summary: "how surely a small CNN reads the image as the prompted digit",
            kind: RewardKind::Pointwise,
            params: &PARAMS,
            build: Box::new(|_, params| {
                let settings = parse_params(NAME, params, &PARAMS)?;
                Ok(Arc::new(DigitClassifier::new(&settings)?))
            }),
        })
    }
}
