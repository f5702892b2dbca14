//! What backward keeps.

use crate::error::TrainError;
use flow_checkpoint::{Checkpointing, Policy};
use flow_config::Config;
use flow_core::{KeepAll, ModelSpec, RegionEngine};
use flow_validate::checkpoint_policy;
use std::sync::Arc;

/// The engine of the config's policy; for a budget, which needs measurements, one that keeps everything.
///
/// # Errors
/// [`TrainError::Checkpointing`] if the model has nothing that the policy speaks of.
pub fn regions(config: &Config, spec: &ModelSpec) -> Result<Arc<dyn RegionEngine>, TrainError> {
    let policy = checkpoint_policy(config);
    Ok(match policy.assign(spec)? {
        Some(assignment) if policy != Policy::None => {
            Arc::new(Checkpointing::new(policy.to_string(), assignment))
        }
        _ => Arc::new(KeepAll),
    })
}
