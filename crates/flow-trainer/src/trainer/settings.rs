//! Numbers and switches of a run.

use super::watch::WatchSettings;
use crate::advantage::AdvantageOptions;
use crate::decoder::ImageDecoder;
use crate::ema::EmaPlan;
use crate::error::TrainError;
use crate::geometry::BatchGeometry;
use crate::rollout::Sampler;
use crate::scheduler::Schedule;
use crate::sizes::{AtSize, PromptSizes};
use flow_config::{Branching, InitialNoise};
use flow_data::Prompt;
use flow_report::ValueRange;
use flow_rewards::RewardWorkers;
use std::num::NonZeroUsize;

/// What to do about a ratio that is not 1 where it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditMode {
    /// Stop the run.
    Stop,
    /// Say so and go on.
    Warn,
    /// Do not look.
    Off,
}

/// A named reward with its weight in the sum.
#[derive(Clone, Debug, PartialEq)]
pub struct RewardWeight {
    /// Name in metrics.
    pub name: String,
    /// Weight.
    pub weight: f64,
    /// Between which ends its scores lie.
    pub range: ValueRange,
}

/// Worker threads with their rewards, and the rewards' weights in the same order.
pub struct WeightedRewards {
    /// The threads.
    pub workers: RewardWorkers,
    /// The weights.
    pub weights: Vec<RewardWeight>,
}

impl WeightedRewards {
    /// No reward, of a run that scores nothing.
    ///
    /// # Errors
    /// If the system starts no more threads.
    pub(crate) fn none() -> Result<Self, TrainError> {
        Ok(Self {
            workers: RewardWorkers::none()?,
            weights: Vec::new(),
        })
    }
}

/// How held-out prompts are measured.
#[derive(Clone, Debug)]
pub struct EvaluationSettings {
    /// Iterations between two evaluations; 0 for none at all.
    pub every: u64,
    /// The prompts.
    pub prompts: Vec<Prompt>,
    /// Images of each.
    pub images_per_prompt: usize,
    /// The sampler: guidance and seed of evaluation.
    pub sampler: Sampler,
    /// Its steps, deterministic.
    pub schedule: Schedule,
    /// From latents to images, in training, too.
    pub decoder: ImageDecoder,
    /// The sizes of pictures, of which the sampler, the schedule and the decoder have the first.
    pub sizes: PromptSizes,
    /// Those of the others.
    pub others: Vec<AtSize>,
    /// Whether to measure the moving average instead of the trained weights.
    pub with_average: bool,
    /// Rows and columns of the picture, and its scale.
    pub grid: (usize, usize, u32),
}

/// Numbers and switches of a run.
#[derive(Clone, Debug)]
pub struct TrainerSettings {
    /// Seed of everything random.
    pub seed: u64,
    /// Iterations in all.
    pub iterations: u64,
    /// Prompts, group size, micro-batches.
    pub geometry: BatchGeometry,
    /// Whether the members of a group start from the same latent.
    pub initial_noise: InitialNoise,
    /// Where the members of a group part.
    pub branching: Branching,
    /// Updates that a rollout is behind: 0 or 1.
    pub staleness: usize,
    /// From rewards to advantages.
    pub advantage: AdvantageOptions,
    /// The moving average, if one is kept.
    pub average: Option<EmaPlan>,
    /// The on-policy audit.
    pub audit: AuditMode,
    /// Groups of a rollout that are sampled once more without its accelerators, to see what these change.
    pub drift_groups: usize,
    /// Iterations between two such comparisons; 0 for none.
    pub drift_every: u64,
    /// Signs of an exploited reward that are watched for.
    pub watch: WatchSettings,
    /// Whether the accelerators promise bit-exact ratios.
    pub lossless: bool,
    /// Whether an accelerator that did nothing in an iteration, or not all it is in force for, stops the run.
    pub strict: bool,
    /// Iterations between checkpoints; 0 for one at the end only.
    pub checkpoint_every: u64,
    /// Checkpoints kept.
    pub checkpoints_kept: NonZeroUsize,
    /// Iterations between TensorBoard records; 0 for no TensorBoard files.
    pub tensorboard_every: u64,
    /// Whether to write `report.html`.
    pub html_report: bool,
}
