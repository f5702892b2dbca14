//! `ocr`: whether an image shows the text that its prompt asks for.

use std::fmt;
use std::sync::Arc;

use flow_data::Prompt;
use flow_registry::NameTaken;
use flow_rewards::{
    Reward, RewardError, RewardFactory, RewardKind, RewardRegistry, RewardSample, check_finite,
};

use crate::ctc::{MIN_LOG_PROBABILITY, log_probability_per_letter};
use crate::paddle::PaddleReader;
use crate::reader::{ReadLine, ReadRequest, Reader};
use crate::settings::{OcrMode, OcrSettings};
use crate::text::{distance_score, normalised, target};

pub(crate) const NAME: &str = "ocr";

/// The OCR reward; see the module's description.
///
/// The text asked for and the text read are compared without spaces and in lower case. Lines are joined in reading order.
#[derive(Clone)]
pub struct OcrReward {
    settings: OcrSettings,
    reader: Arc<dyn Reader>,
}

impl fmt::Debug for OcrReward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OcrReward")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// What an image should show.
struct Wanted {
    text: String,
    /// Its letters, each once, in order.
    letters: Vec<char>,
}

impl OcrReward {
    /// The reward with these settings, read by PP-OCR's files.
    ///
    /// # Errors
    /// [`RewardError::Params`] for a value outside its range, [`RewardError::File`] for a file that cannot be used.
    pub fn new(settings: OcrSettings) -> Result<Self, RewardError> {
        checked(&settings)?;
        let reader = Arc::new(PaddleReader::open(&settings)?);
        Ok(Self { settings, reader })
    }

    /// The reward with another reader; the settings' files are not looked at.
    ///
    /// # Errors
    /// [`RewardError::Params`] for a value outside its range.
    pub fn with_reader(settings: OcrSettings, reader: Arc<dyn Reader>) -> Result<Self, RewardError> {
        checked(&settings)?;
        Ok(Self { settings, reader })
    }

    /// Adds the reward to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is a reward of its name.
    pub fn register(registry: &mut RewardRegistry) -> Result<(), NameTaken> {
        let reward = RewardFactory::new::<OcrSettings>(
            NAME,
            "Whether the image shows the text that its prompt asks for, read by PP-OCR, as in Flow-GRPO.",
            RewardKind::Pointwise,
            |_, settings| Ok(Arc::new(Self::new(settings)?)),
        );
        registry.register(reward.with_paths(&["path", "detector", "dictionary"], &[]))
    }

    /// The text of a prompt, where the reward can score it.
    fn wanted(&self, prompt: &Prompt) -> Result<Wanted, String> {
        let text = target(prompt, &self.settings.target)?;
        let mut letters: Vec<char> = text.chars().collect();
        letters.sort_unstable();
        letters.dedup();
        if self.settings.mode != OcrMode::Distance {
            let unknown = self.reader.unknown_letters(&letters);
            if !unknown.is_empty() {
                let unknown: Vec<String> = unknown.iter().map(|letter| format!("`{letter}`")).collect();
                return Err(format!(
                    "the recogniser never reads {}, which the text has",
                    unknown.join(", ")
                ));
            }
        }
        Ok(Wanted { text, letters })
    }

    /// The score of what was read.
    fn of_lines(&self, wanted: &Wanted, lines: &[ReadLine]) -> f32 {
        if self.settings.mode == OcrMode::LogProbability {
            return log_probability(wanted, lines);
        }
        let sure = lines
            .iter()
            .filter(|line| line.confidence >= self.settings.confidence());
        let read = normalised(&sure.map(|line| line.text.as_str()).collect::<String>());
        if self.settings.mode == OcrMode::Exact {
            return f32::from(u8::from(read == wanted.text));
        }
        distance_score(&read, &wanted.text)
    }

    fn score_batch(&self, first: usize, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
        let with_probabilities = self.settings.mode == OcrMode::LogProbability;
        let mut wanted = Vec::with_capacity(samples.len());
        for (index, sample) in (first..).zip(samples) {
            check_finite(index, sample)?;
            let of_prompt = self
                .wanted(sample.prompt)
                .map_err(|problem| RewardError::Sample {
                    index,
                    problem: format!("the prompt `{}`: {problem}", sample.prompt.text),
                })?;
            wanted.push(of_prompt);
        }
        let requests: Vec<ReadRequest<'_>> = samples
            .iter()
            .zip(&wanted)
            .map(|(sample, wanted)| ReadRequest {
                image: sample.image,
                letters: if with_probabilities { &wanted.letters } else { &[] },
            })
            .collect();
        let read = self.reader.read(&requests).map_err(|error| RewardError::Sample {
            index: first + error.index,
            problem: error.problem,
        })?;
        Ok(wanted
            .iter()
            .zip(&read)
            .map(|(wanted, lines)| self.of_lines(wanted, lines))
            .collect())
    }
}

fn checked(settings: &OcrSettings) -> Result<(), RewardError> {
    settings.problem().map_or(Ok(()), |problem| {
        Err(RewardError::Params {
            reward: NAME.to_owned(),
            problem,
        })
    })
}

/// Of the lines' steps one behind the other, with a certain blank between lines, so that equal letters on both sides are two.
fn log_probability(wanted: &Wanted, lines: &[ReadLine]) -> f32 {
    let columns = 1 + wanted.letters.len();
    let mut blank = vec![0.0; columns];
    blank[0] = 1.0;
    let of_lines: Vec<&[f32]> = lines.iter().map(|line| line.probabilities.as_slice()).collect();
    let probabilities = of_lines.join(blank.as_slice());
    let target: Vec<usize> = wanted
        .text
        .chars()
        .filter_map(|letter| wanted.letters.binary_search(&letter).ok())
        .map(|place| 1 + place)
        .collect();
    log_probability_per_letter(&probabilities, columns, &target) as f32
}

impl Reward for OcrReward {
    fn name(&self) -> &str {
        NAME
    }

    fn range(&self) -> (f64, f64) {
        match self.settings.mode {
            OcrMode::Distance | OcrMode::Exact => (0.0, 1.0),
            OcrMode::LogProbability => (MIN_LOG_PROBABILITY, 0.0),
        }
    }

    fn check_prompt(&self, prompt: &Prompt) -> Result<(), String> {
        self.wanted(prompt).map(|_| ())
    }

    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
        let mut scores = Vec::with_capacity(samples.len());
        for (index, batch) in samples.chunks(self.settings.batch).enumerate() {
            scores.extend(self.score_batch(index * self.settings.batch, batch)?);
        }
        Ok(scores)
    }
}
