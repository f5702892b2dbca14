//! Joining a run of several processes.

use crate::Registries;
use flow_config::{Config, Diagnostic};
use flow_exchange::{Alone, Exchange, tcp};
use flow_rendezvous::{Launch, Membership, RendezvousError};
use flow_rewards::RewardKind;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for the other processes to start.
const START: Duration = Duration::from_secs(600);

/// What the launcher of this process says; none of a run of one process.
///
/// # Errors
/// A variable that is missing or wrong.
pub fn launched() -> Result<Option<Launch>, RendezvousError> {
    Launch::from_environment()
}

/// Meets the other processes that the launcher started.
///
/// # Errors
/// Whatever keeps them apart.
pub fn join(launch: Option<Launch>, config: &Config) -> Result<Arc<dyn Exchange>, RendezvousError> {
    let Some(launch) = launch else {
        return Ok(Arc::new(Alone));
    };
    let timeout = Duration::from_secs(config.distributed.timeout_s);
    let membership = Membership::join(launch, timeout.min(START))?;
    Ok(Arc::new(tcp(membership, timeout)?))
}

/// What of a config is not right on `ranks` processes.
pub fn refused_on(config: &Config, ranks: usize, registries: &Registries) -> Vec<Diagnostic> {
    let rewards = &registries.plugins.rewards;
    let is_group_wise = |kind: &str| {
        let factory = rewards.get(kind).ok();
        factory.is_some_and(|factory| factory.kind() == RewardKind::Groupwise)
    };
    let group_wise = config.rewards.iter().any(|reward| is_group_wise(&reward.kind));
    flow_validate::several(config, ranks, group_wise)
}
