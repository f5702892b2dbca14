//! What an algorithm asks of a run whose device is not here, so that its parts cannot be assembled.

use super::{Environment, algorithm, average, exploration, schedule, staleness, teachers};
use crate::error::TrainError;
use crate::records::Records;
use flow_config::Config;
use flow_data::Dataset;
use std::sync::Arc;

/// Checks what [`trainer`](super::trainer()) would of the algorithm that a config names and of what stands around it, but for what needs the
/// model's weights: constants, schedule, rollouts that are an update behind, records, prompts and files of teachers. `tokens` is the
/// model's sequence length. Accelerators are asked without being put in force.
///
/// # Errors
/// Whatever does not fit, with how to mend it.
pub fn algorithm_fits(
    config: &Config,
    environment: &Environment<'_>,
    tokens: usize,
    dataset: &Arc<dyn Dataset>,
) -> Result<(), TrainError> {
    let algorithm = algorithm(config, environment.plugins, tokens)?;
    let slots = [&config.acceleration.shared, &config.acceleration.rollout];
    let shares = slots.map(|entries| environment.accelerators.audit_share(entries));
    staleness::check(config.sampling.staleness, &algorithm, shares[0].max(shares[1]))?;
    Records::of(config, environment, &algorithm, dataset)?;
    exploration::geometry(config)?;
    teachers::check_prompts(algorithm.teachers(), &**dataset, &dataset.train_prompts())?;
    teachers::check_files(algorithm.teachers(), environment.base)?;
    schedule(config, tokens)?;
    average(config).map(drop)
}
