//! Rewards by name.

use super::Environment;
use super::paths::start_in_config;
use crate::error::TrainError;
use crate::session::RewardWeight;
use flow_config::RewardConfig;
use flow_report::ValueRange;
use flow_rewards::{NamedReward, RewardError, RewardWorkers};
use std::path::Path;

/// Worker threads with their rewards, and the rewards' weights in the same order.
pub struct RewardParts {
    /// The threads.
    pub workers: RewardWorkers,
    /// The weights.
    pub weights: Vec<RewardWeight>,
}

/// Threads for rewards: half of a process's share of the processor, since generation goes on beside them.
pub(super) fn threads(local_ranks: usize) -> usize {
    (std::thread::available_parallelism().map_or(1, usize::from) / 2 / local_ranks).max(1)
}

/// An error about weights that are not there, with where their path starts.
fn located(error: RewardError, config: &RewardConfig, environment: &Environment<'_>) -> RewardError {
    let factory = environment.plugins.rewards.get(&config.kind).ok();
    let missing = factory.and_then(|factory| factory.plugin().missing_path(&config.params, environment.base));
    match (error, missing) {
        (RewardError::Weights { file, problem }, Some(path)) => RewardError::Weights {
            file,
            problem: format!(
                "{problem}; {}",
                start_in_config(Path::new(&path), environment.base)
            ),
        },
        (error, _) => error,
    }
}

/// Builds rewards and starts their threads.
///
/// # Errors
/// A parameter or file that does not fit, or no reward at all.
pub fn rewards(
    configs: &[RewardConfig],
    environment: &Environment<'_>,
    threads: usize,
) -> Result<RewardParts, TrainError> {
    let mut named = Vec::new();
    let mut weights = Vec::new();
    for config in configs {
        let registry = &environment.plugins.rewards;
        let reward = registry.build(&config.kind, &config.params, environment.base);
        let reward = reward.map_err(|error| located(error, config, environment))?;
        let (low, high) = reward.range();
        named.push(NamedReward {
            name: config.name().into(),
            reward,
        });
        weights.push(RewardWeight {
            name: config.name().into(),
            weight: config.weight,
            range: ValueRange::new(low, high),
        });
    }
    Ok(RewardParts {
        workers: RewardWorkers::new(named, threads)?,
        weights,
    })
}
