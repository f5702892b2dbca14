//! The errors of this crate, worded for the person who has to mend them.

use flow_registry::{NotFound, Refusal};
use std::fmt;

/// A reward cannot be built, or cannot score. Displayed as one sentence; [`refusal`](Self::refusal) has its parts.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RewardError {
    /// No reward is registered under this name.
    NotFound(#[from] NotFound),
    /// Two rewards under one name.
    NameTaken {
        /// The name.
        name: String,
    },
    /// Parameters that the reward does not have or that are missing, and values that do not fit.
    Params {
        /// Name of the reward.
        reward: String,
        /// What is wrong, with the name of the parameter and what is allowed.
        problem: Refusal,
    },
    /// A setting of the worker pool or of the classifier's training outside its range.
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// The value found.
        value: String,
        /// What is allowed, as a sentence part.
        allowed: &'static str,
    },
    /// Classifier weights that cannot be read or written.
    Weights {
        /// The file, or a description of where the bytes came from.
        file: String,
        /// What is wrong, and how to mend it.
        problem: Refusal,
    },
    /// A pretrained network whose files cannot be read, or are those of something else.
    Network {
        /// Name of the reward.
        reward: String,
        /// What is wrong, with the file, and how to mend it.
        problem: Refusal,
    },
    /// A file or folder of a reward that cannot be used.
    File {
        /// Name of the reward.
        reward: String,
        /// The file or folder.
        file: String,
        /// What is wrong, and how to mend it.
        problem: Refusal,
    },
    /// Prompts that a reward cannot score images of; see [`crate::Reward::check_prompt`].
    Prompts {
        /// Name of the reward.
        reward: String,
        /// Every such prompt with where it stands, and what is wrong with it.
        problems: Vec<String>,
        /// Prompts that were looked at.
        asked: usize,
    },
    /// A sample that a reward cannot score; what [`crate::Reward::score`] returns for it.
    Sample {
        /// Position in the slice that was passed to `score`.
        index: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// A reward that failed in the worker pool.
    Failed {
        /// Name of the reward.
        reward: String,
        /// Id of the batch.
        batch: u64,
        /// The sample or samples, with their prompts.
        samples: String,
        /// What the reward said.
        problem: String,
    },
    /// A reward that panicked in the worker pool.
    Panicked {
        /// Name of the reward.
        reward: String,
        /// Id of the batch.
        batch: u64,
        /// The sample or samples, with their prompts.
        samples: String,
        /// The panic's message.
        message: String,
    },
    /// A score that is not a finite number.
    NotFinite {
        /// Name of the reward.
        reward: String,
        /// Id of the batch.
        batch: u64,
        /// The sample, with its prompt.
        samples: String,
        /// NaN or an infinity.
        value: f32,
    },
    /// A reward that returned another number of scores than it was given samples.
    WrongCount {
        /// Name of the reward.
        reward: String,
        /// Id of the batch.
        batch: u64,
        /// The samples, with their prompts.
        samples: String,
        /// Number of samples.
        expected: usize,
        /// Number of scores.
        found: usize,
    },
    /// A batch without samples.
    EmptyBatch {
        /// Id of the batch.
        batch: u64,
    },
    /// The worker threads cannot be started, or ended before the batch was scored.
    Workers {
        /// What happened.
        problem: String,
    },
}

impl RewardError {
    /// What is wrong, and how to mend it where somebody knows.
    pub fn refusal(&self) -> Refusal {
        match self {
            Self::NotFound(NotFound::Unknown(name)) => name.refusal(),
            Self::NotFound(error @ NotFound::Removed(_)) => Refusal::because(error.to_string()),
            Self::NameTaken { name } => Refusal::new(
                format!("reward `{name}` is there twice"),
                "give the second one another name",
            ),
            Self::Params { reward, problem } => behind(&format!("reward `{reward}`, parameters"), problem),
            Self::Weights { file, problem } => behind(&format!("classifier weights {file}"), problem),
            Self::Network { reward, problem } => behind(&format!("reward `{reward}`"), problem),
            Self::File {
                reward,
                file,
                problem,
            } => behind(&format!("reward `{reward}`, {file}"), problem),
            Self::Prompts {
                reward,
                problems,
                asked,
            } => Refusal::new(
                format!(
                    "reward `{reward}` cannot score images of {} of {asked} prompts:{}",
                    problems.len(),
                    listed(problems)
                ),
                "correct these prompts, or the parameters of the reward",
            ),
            Self::Setting {
                setting,
                value,
                allowed,
            } => format!("`{setting} = {value}` is not allowed: {allowed}").into(),
            Self::Sample { index, problem } => format!("sample {index}: {problem}").into(),
            Self::Failed {
                reward,
                batch,
                samples,
                problem,
            } => format!("reward `{reward}` failed in batch {batch} on {samples}: {problem}").into(),
            Self::Panicked {
                reward,
                batch,
                samples,
                message,
            } => format!("reward `{reward}` panicked in batch {batch} on {samples}: {message}").into(),
            Self::NotFinite {
                reward,
                batch,
                samples,
                value,
            } => format!(
                "reward `{reward}` gave {value} in batch {batch} on {samples}; rewards must be finite numbers, for an advantage cannot be \
                 computed from anything else"
            )
            .into(),
            Self::WrongCount {
                reward,
                batch,
                samples,
                expected,
                found,
            } => format!("reward `{reward}` gave {found} scores for {expected} samples in batch {batch} ({samples})").into(),
            Self::EmptyBatch { batch } => {
                format!("batch {batch} has no samples; there is nothing to score").into()
            }
            Self::Workers { problem } => format!("reward workers: {problem}").into(),
        }
    }
}

/// A refusal after the name of what it is about.
fn behind(what: &str, problem: &Refusal) -> Refusal {
    Refusal {
        why: format!("{what}: {}", problem.why),
        help: problem.help.clone(),
    }
}

impl fmt::Display for RewardError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.refusal().sentence())
    }
}

/// Prompts shown; the error holds all.
const SHOWN: usize = 10;

fn listed(problems: &[String]) -> String {
    let mut text: String = problems
        .iter()
        .take(SHOWN)
        .map(|problem| format!("\n  {problem}"))
        .collect();
    if problems.len() > SHOWN {
        text.push_str(&format!("\n  and {} more", problems.len() - SHOWN));
    }
    text
}
