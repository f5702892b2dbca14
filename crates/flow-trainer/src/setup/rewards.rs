//! Rewards by name.

use super::Environment;
use super::paths::start_in_config;
use crate::error::TrainError;
use crate::session::RewardWeight;
use flow_config::RewardConfig;
use flow_report::ValueRange;
use flow_rewards::{NamedReward, RewardError, RewardWorkers};
use serde_json::{Value, json};

/// Worker threads with their rewards, and the rewards' weights in the same order.
pub struct RewardParts {
    /// The threads.
    pub workers: RewardWorkers,
    /// The weights.
    pub weights: Vec<RewardWeight>,
}

/// Threads for rewards: half of the processor, since generation goes on beside them.
pub(super) fn threads() -> usize {
    (std::thread::available_parallelism().map_or(1, usize::from) / 2).max(1)
}

fn params(config: &RewardConfig, environment: &Environment<'_>) -> Value {
    match config {
        RewardConfig::DigitClassifier(reward) => {
            let given = reward.weights.to_string_lossy();
            let weights = match &*given {
                "built-in" | "judge" => given.into_owned(),
                _ => environment
                    .base
                    .join(&reward.weights)
                    .to_string_lossy()
                    .into_owned(),
            };
            json!({ "weights": weights, "mode": reward.mode })
        }
        RewardConfig::ShapesRules(reward) => json!({ "mode": reward.mode }),
        RewardConfig::JpegCompressibility(reward) => json!({ "quality": reward.quality }),
        RewardConfig::TargetColour(reward) => json!({ "rgb": reward.rgb }),
    }
}

/// An error about weights that are not there, with where their path starts.
fn located(error: RewardError, config: &RewardConfig, environment: &Environment<'_>) -> RewardError {
    let missing = match config {
        RewardConfig::DigitClassifier(reward) => Some(&reward.weights),
        _ => None,
    };
    let missing = missing.filter(|path| !environment.base.join(path).exists());
    match (error, missing) {
        (RewardError::Weights { file, problem }, Some(path)) => RewardError::Weights {
            file,
            problem: format!("{problem}; {}", start_in_config(path, environment.base)),
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
        let reward = environment
            .rewards
            .build(config.kind(), &params(config, environment));
        let reward = reward.map_err(|error| located(error, config, environment))?;
        let (low, high) = reward.range();
        named.push(NamedReward {
            name: config.name().into(),
            reward,
        });
        weights.push(RewardWeight {
            name: config.name().into(),
            weight: config.weight(),
            range: ValueRange::new(low, high),
        });
    }
    Ok(RewardParts {
        workers: RewardWorkers::new(named, threads)?,
        weights,
    })
}
