//! `summary.json`: the outcome of a run in numbers, written by the trainer and shown at the top of the report.

use serde::{Deserialize, Serialize};

use crate::metrics::{Metrics, Record};
use crate::probe::human_duration;
use crate::statistics::{Interval, PairedDifference};

/// How the run stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum RunStatus {
    /// It has not come to its end, or was killed.
    #[default]
    Unfinished,
    /// It reached its last step.
    Finished,
    /// The user stopped it after this many steps; it can be resumed.
    Interrupted {
        /// The last step done.
        step: u64,
    },
    /// It stopped with an error.
    Failed {
        /// The error.
        cause: String,
    },
}

/// The outcome of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunSummary {
    /// How the run stands.
    pub status: RunStatus,
    /// Steps done.
    pub steps: u64,
    /// Images sampled in rollouts.
    pub images: u64,
    /// Rewards before and after, one entry for each reward of the evaluations.
    pub rewards: Vec<RewardChange>,
    /// What was trained on, in the rollouts; none before the first iteration, and in summaries of older versions.
    pub trained: Option<TrainedReward>,
    /// Processes that worked on the run: 1 and its resumptions.
    pub processes: u64,
    /// Seconds of wall clock over all processes.
    pub wall_s: f64,
    /// How the seconds divide: name and seconds, for example rollout, reward, train, evaluation. `abandoned` is work that a
    /// resumption did again, or left for another future.
    pub wall_parts: Vec<(String, f64)>,
    /// Images per second of rollouts, rewards and updates, over all processes; none before the first iteration.
    pub images_per_s: Option<f64>,
    /// How long the rewards of rollouts ran; none before the first iteration, and in summaries of older versions.
    pub reward_s: Option<RewardSeconds>,
    /// Peak memory by place, GiB, over all processes, for example ("host, resident", 0.9).
    pub peak_memory_gib: Vec<(String, f64)>,
    /// The on-policy audit.
    pub audit: Audit,
    /// Anything else the reader should know.
    pub notes: Vec<String>,
    /// Texts of the held-out prompts, in the order of the values by prompt in `metrics.jsonl`.
    pub prompts: Vec<String>,
}

/// Seconds of the rewards of rollouts, over all iterations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RewardSeconds {
    /// Of the wall clock, while some reward ran.
    pub ran: f64,
    /// Those of them beside the generation, where nothing waited for scores.
    pub hidden: f64,
}

impl RewardSeconds {
    /// In words: `rewards ran 12.3 s, 11.0 s of it (89 %) beside the generation`.
    pub fn in_words(&self) -> String {
        let share = match self.ran > 0.0 {
            true => format!(" ({:.0} %)", 100.0 * self.hidden / self.ran),
            false => String::new(),
        };
        format!(
            "rewards ran {}, {} of it{share} beside the generation",
            human_duration(self.ran),
            human_duration(self.hidden)
        )
    }
}

/// A reward at the first and at the last evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RewardChange {
    /// The reward's name.
    pub name: String,
    /// What it was measured on, for example "64 held-out prompts".
    pub measured_on: String,
    /// Mean and interval before training.
    pub before: Interval,
    /// Mean and interval after training.
    pub after: Interval,
    /// Mean of the differences by prompt.
    pub difference: PairedDifference,
}

/// The weighted sum of rewards that a run is trained on, as its rollouts had it: the mean over the images of an iteration. Each
/// iteration has prompts and noise of its own, so that single values scatter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainedReward {
    /// What is added up: names and weights.
    pub terms: Vec<(String, f64)>,
    /// In the first iteration, which samples with the weights that the run began with.
    pub first: RewardAt,
    /// In the last iteration.
    pub last: RewardAt,
    /// In the iteration where it was highest, the first of equals.
    pub best: RewardAt,
}

/// A reward in an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RewardAt {
    /// The iteration, from 1.
    pub step: u64,
    /// The mean over its images.
    pub mean: f64,
}

impl TrainedReward {
    /// Of the records `train` of a run's metrics, which have each reward as `reward/NAME`. The weights are the same for all
    /// iterations, also for those before a resumed run changed them, so that they compare. None if no record has all rewards,
    /// or there are none: nothing was trained for them.
    pub fn of(metrics: &Metrics, terms: Vec<(String, f64)>) -> Option<Self> {
        if terms.is_empty() {
            return None;
        }
        let sum = |record: &Record| {
            let each = terms.iter().map(|(name, weight)| {
                let mean = record.number(&format!("reward/{name}"))?;
                Some(weight * mean)
            });
            each.sum::<Option<f64>>().filter(|mean| mean.is_finite())
        };
        let records = metrics.of_kind("train");
        let values: Vec<RewardAt> = records
            .filter_map(|record| {
                Some(RewardAt {
                    step: record.step,
                    mean: sum(record)?,
                })
            })
            .collect();
        let (first, last) = (*values.first()?, *values.last()?);
        let higher = |best: RewardAt, other: &RewardAt| if other.mean > best.mean { *other } else { best };
        Some(Self {
            terms,
            first,
            last,
            best: values.iter().fold(first, higher),
        })
    }

    /// What is added up, in words: `mid-grey`, or `1 × digit-classifier + 0.1 × jpeg-compressibility`.
    pub fn name(&self) -> String {
        match self.terms.as_slice() {
            [(name, weight)] if *weight == 1.0 => name.clone(),
            terms => {
                let terms: Vec<String> = terms
                    .iter()
                    .map(|(name, weight)| format!("{weight} × {name}"))
                    .collect();
                terms.join(" + ")
            }
        }
    }
}

/// The result of comparing log-probabilities of rollout and training before the first optimizer step of each
/// rollout.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum Audit {
    /// There was no audit.
    NotRun {
        /// Why, for example that the trainer is decoupled.
        why: String,
    },
    /// No result yet.
    #[default]
    Pending,
    /// max|ratio − 1| was exactly 0 on every element, and log-probability and mean were the bits of the rollout.
    Exact {
        /// Rollouts audited.
        rollouts: u64,
        /// Elements (samples × steps) compared.
        elements: u64,
    },
    /// Some ratio was not 1, or its log-probability or mean had other bits than in the rollout.
    Deviated {
        /// Rollouts audited.
        rollouts: u64,
        /// Elements compared.
        elements: u64,
        /// The largest |ratio − 1|.
        largest: f64,
        /// Where it was seen.
        place: String,
        /// Whether the configuration allows it (a lossy plan).
        allowed: bool,
    },
}
