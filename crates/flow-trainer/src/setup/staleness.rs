//! What a rollout that is an update behind asks of an algorithm and of accelerators, beyond the rules on the config.

use crate::algorithm::{Algorithm, SamplingWeights};
use crate::error::TrainError;
use flow_accel::Paradigm;

/// Checks that the loss needs nothing of the policy that sampled but what the rollout recorded, and that no rollout needs the update before
/// it. `audit_share` is the largest share of samples that an accelerator takes once more without it.
///
/// # Errors
/// [`TrainError::Setting`] with what stands against it.
pub(super) fn check<A: Algorithm>(
    staleness: usize,
    algorithm: &A,
    audit_share: f64,
) -> Result<(), TrainError> {
    let name = algorithm.name();
    let problem = if staleness == 0 {
        return Ok(());
    } else if algorithm.paradigm() != Paradigm::Coupled {
        format!(
            "the loss of the algorithm `{name}` does not read the log-probabilities that a rollout recorded"
        )
    } else if algorithm.sampling_weights(0) != SamplingWeights::Current {
        format!("the algorithm `{name}` samples with a slower copy of the weights")
    } else if algorithm.looks_before() || algorithm.compares_rows(None) {
        format!(
            "the algorithm `{name}` computes numbers of the policy that sampled from the weights before the update, which are others by then"
        )
    } else if audit_share > 0.0 {
        "an accelerator of `acceleration.rollout` learns from some samples of a rollout, and the next one is sampled before it has; its policy \
         `auto` does so"
            .to_owned()
    } else {
        return Ok(());
    };
    Err(
        TrainError::setting(format!("{problem}, so a rollout cannot be an update behind"))
            .with_help("remove `sampling.staleness`")
            .about("sampling.staleness"),
    )
}
