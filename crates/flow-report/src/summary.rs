//! `summary.json`: the outcome of a run in numbers, written by the trainer and shown at the top of the report.

use serde::{Deserialize, Serialize};

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
    /// Rewards before and after, one entry for each reward.
    pub rewards: Vec<RewardChange>,
    /// Processes that worked on the run: 1 and its resumptions.
    pub processes: u64,
    /// Seconds of wall clock over all processes.
    pub wall_s: f64,
    /// How the seconds divide: name and seconds, for example rollout, reward, train, evaluation. `abandoned` is work that a
    /// resumption did again, or left for another future.
    pub wall_parts: Vec<(String, f64)>,
    /// Images per second of rollouts, rewards and updates, over all processes; none before the first iteration.
    pub images_per_s: Option<f64>,
    /// Peak memory by place, GiB, over all processes, for example ("host, resident", 0.9).
    pub peak_memory_gib: Vec<(String, f64)>,
    /// The on-policy audit.
    pub audit: Audit,
    /// Anything else the reader should know.
    pub notes: Vec<String>,
    /// Texts of the held-out prompts, in the order of the values by prompt in `metrics.jsonl`.
    pub prompts: Vec<String>,
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
