//! The errors of this crate, worded for the person who has to mend them.

/// A reward cannot be built, or cannot score.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RewardError {
    /// No reward is registered under this name.
    #[error(transparent)]
    NotFound(#[from] flow_registry::NotFound),
    /// Two rewards under one name.
    #[error("reward `{name}` is there twice; give the second one another name")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// Parameters that the reward does not have or that are missing, and values that do not fit.
    #[error("reward `{reward}`, parameters: {problem}")]
    Params {
        /// Name of the reward.
        reward: String,
        /// What is wrong, with the name of the parameter and what is allowed.
        problem: String,
    },
    /// A setting of the worker pool or of the classifier's training outside its range.
    #[error("`{setting} = {value}` is not allowed: {allowed}")]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// The value found.
        value: String,
        /// What is allowed, as a sentence part.
        allowed: &'static str,
    },
    /// Classifier weights that cannot be read or written.
    #[error("classifier weights {file}: {problem}")]
    Weights {
        /// The file, or a description of where the bytes came from.
        file: String,
        /// What is wrong, and how to mend it.
        problem: String,
    },
    /// A pretrained network whose files cannot be read, or are those of something else.
    #[error("reward `{reward}`: {problem}")]
    Network {
        /// Name of the reward.
        reward: String,
        /// What is wrong, with the file, and how to mend it.
        problem: String,
    },
    /// A file or folder of a reward that cannot be used.
    #[error("reward `{reward}`, {file}: {problem}")]
    File {
        /// Name of the reward.
        reward: String,
        /// The file or folder.
        file: String,
        /// What is wrong, and how to mend it.
        problem: String,
    },
    /// Prompts that a reward cannot score images of; see [`crate::Reward::check_prompt`].
    #[error(
        "reward `{reward}` cannot score images of {} of {asked} prompts:{}; correct these prompts, or the parameters of the reward",
        problems.len(), listed(problems)
    )]
    Prompts {
        /// Name of the reward.
        reward: String,
        /// Every such prompt with where it stands, and what is wrong with it.
        problems: Vec<String>,
        /// Prompts that were looked at.
        asked: usize,
    },
    /// A sample that a reward cannot score; what [`crate::Reward::score`] returns for it.
    #[error("sample {index}: {problem}")]
    Sample {
        /// Position in the slice that was passed to `score`.
        index: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// A reward that failed in the worker pool.
    #[error("reward `{reward}` failed in batch {batch} on {samples}: {problem}")]
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
    #[error("reward `{reward}` panicked in batch {batch} on {samples}: {message}")]
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
    #[error(
        "reward `{reward}` gave {value} in batch {batch} on {samples}; rewards must be finite numbers, for an \
         advantage cannot be computed from anything else"
    )]
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
    #[error("reward `{reward}` gave {found} scores for {expected} samples in batch {batch} ({samples})")]
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
    #[error("batch {batch} has no samples; there is nothing to score")]
    EmptyBatch {
        /// Id of the batch.
        batch: u64,
    },
    /// The worker threads cannot be started, or ended before the batch was scored.
    #[error("reward workers: {problem}")]
    Workers {
        /// What happened.
        problem: String,
    },
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
