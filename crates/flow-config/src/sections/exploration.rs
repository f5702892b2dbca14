//! `[exploration]`: many candidates per group are sampled cheaply, and only those worth training on exactly.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::acceleration::{AcceleratorEntry, one_or_many, one_or_many_schema};

/// `[exploration]`: more candidates than `sampling.group_size` are sampled for each prompt by cheap means and scored. The most telling
/// ones are sampled again exactly, from the same noise, and trained on; the loss never sees the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ExplorationConfig {
    /// Candidates per prompt, more than `sampling.group_size`, which says how many of them are kept. 0 explores nothing.
    #[schemars(range(max = 65_536))]
    pub candidates: usize,
    /// Which candidates of a group are kept, by the weighted sum of the rewards of their cheap images. Of equal ones the first counts as
    /// the better.
    pub keep: KeepRule,
    /// Denoising steps of candidates. Without it `scheduler.steps`.
    #[schemars(range(min = 1, max = 1000))]
    pub steps: Option<usize>,
    /// How candidates are sampled.
    pub dynamics: ExplorationDynamics,
    /// Accelerators that are in force while candidates are sampled, and not when the kept ones are: a `feature_cache`, with any algorithm.
    /// The first entry is the outermost. Those of `acceleration.shared` are in force in both. A single table is taken for a list of one.
    #[serde(deserialize_with = "one_or_many")]
    #[schemars(schema_with = "one_or_many_schema")]
    pub accelerators: Vec<AcceleratorEntry>,
}

/// Which candidates of a group are kept. With C candidates ordered from the best to the worst, numbered from 0, and K of them to keep:
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum KeepRule {
    /// The best and the worst: numbers below `ceil(K / 2)`, and the last `floor(K / 2)`.
    #[default]
    Extremes,
    /// The best: numbers below K.
    Best,
    /// Evenly spaced in order, best and worst among them: numbers `round(i * (C - 1) / (K - 1))` for i = 0 … K - 1.
    Spread,
}

/// How candidates are sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ExplorationDynamics {
    /// By Euler steps of the ODE, from the latents that the kept ones start from.
    #[default]
    Deterministic,
    /// By the dynamics and the window of `[scheduler]`, with the same noise in each step; `steps` is that of `[scheduler]` then.
    Same,
}

impl Default for ExplorationConfig {
    fn default() -> Self {
        Self {
            candidates: 0,
            keep: KeepRule::Extremes,
            steps: None,
            dynamics: ExplorationDynamics::Deterministic,
            accelerators: Vec::new(),
        }
    }
}

impl ExplorationConfig {
    /// Whether anything is explored.
    pub fn is_on(&self) -> bool {
        self.candidates > 0
    }
}
