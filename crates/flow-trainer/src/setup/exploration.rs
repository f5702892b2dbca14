//! How candidates are explored.

use super::Environment;
use super::schedule::{euler, schedule};
use crate::error::TrainError;
use crate::geometry::BatchGeometry;
use crate::sizes::AtSize;
use crate::trainer::Explorer;
use flow_accel::Arrangement;
use flow_config::{Config, ExplorationDynamics};
use flow_validate::resolve_exploration;

/// The geometry of a config, with its candidates.
///
/// # Errors
/// Numbers that do not divide, or no more candidates than a group holds.
pub(super) fn geometry(config: &Config) -> Result<BatchGeometry, TrainError> {
    let geometry = BatchGeometry::from_config(&config.sampling, &config.optimizer)?;
    match config.exploration.is_on() {
        true => Ok(geometry.with_candidates(config.exploration.candidates)?),
        false => Ok(geometry),
    }
}

/// What explores, if the config asks for it: beside the accelerators of the run, with a model of `tokens` tokens, and `others` for other
/// sizes of pictures.
///
/// # Errors
/// [`TrainError::Acceleration`] with everything that forbids its accelerators; a schedule that is impossible.
pub(super) fn explorer(
    config: &Config,
    environment: &Environment<'_>,
    acceleration: &Arrangement,
    (tokens, others): (usize, &[AtSize]),
) -> Result<Option<Explorer>, TrainError> {
    let exploration = &config.exploration;
    if !exploration.is_on() {
        return Ok(None);
    }
    let (findings, resolved) = resolve_exploration(config, environment.accelerators, acceleration);
    let Some(acceleration) = resolved else {
        return Err(TrainError::Acceleration(findings));
    };
    let of_tokens = |tokens: usize| match exploration.dynamics {
        ExplorationDynamics::Same => schedule(config, tokens),
        ExplorationDynamics::Deterministic => {
            let steps = exploration.steps.unwrap_or(config.scheduler.steps);
            euler(config, tokens, steps)
        }
    };
    let of_others = others.iter().map(|at| of_tokens(at.policy.model.spec().tokens));
    Ok(Some(Explorer {
        keep: exploration.keep.into(),
        acceleration,
        schedule: of_tokens(tokens)?,
        others: of_others.collect::<Result<_, _>>()?,
    }))
}
