//! Rollouts that are an update behind (`sampling.staleness = 1`): the rollout of the next iteration is sampled before the update of this
//! one, from the weights that the update then changes, and its rewards are computed beside the whole update.
//!
//! ```text
//! iteration k: sample rollout k + 1 from W_k ─> wait for the rewards of k ─> update W_k to W_k+1 with rollout k
//! ```
//!
//! So rollout `k + 1` is one of `W_k`, and the first of a run one of the weights it begins with. A checkpoint after iteration `k` has `W_k`
//! beside `W_k+1` ([`PolicyWeights::previous`](super::PolicyWeights)): a run that goes on from it samples rollout `k + 1` again, from the same
//! weights and noise.

use super::rollout::{Repetition, RolloutOutcome};
use super::update::Learner;
use super::{Parts, Session};
use crate::algorithm::Algorithm;
use crate::audit::{OnPolicyAudit, ReplayedStep};
use crate::error::TrainError;
use crate::observer::Observer;
use burn::tensor::Tensor;
use flow_accel::{Acceleration, Activity};
use flow_core::{RawTensor, stopped};

/// A rollout that was sampled before the update which comes before its own.
pub(super) struct RolledAhead {
    rolled: RolloutOutcome,
    audit: OnPolicyAudit,
}

/// How far the ratios of a rollout are from 1 before the first optimizer step on it, `|r - 1|` by row, `[B]`: a term that is logged.
pub(super) fn ratio_deviation(replayed: &ReplayedStep) -> (&'static str, RawTensor) {
    let ratio_b: Tensor<1> = Tensor::from_dispatch(replayed.ratio.clone());
    (
        "off_policy/ratio_deviation",
        (ratio_b - 1.0).abs().into_dispatch(),
    )
}

/// What accelerators did in two parts of an iteration, of the same accelerators; the first part may be none.
pub(super) fn both(first: &[Activity], second: Vec<Activity>) -> Vec<Activity> {
    if first.is_empty() {
        return second;
    }
    let sum = |(first, second): (&Activity, Activity)| {
        let counts = [first.counts(), second.counts()];
        second.of_all(counts.iter())
    };
    first.iter().zip(second).map(sum).collect()
}

impl<A: Algorithm> Session<A> {
    /// The rollout that this iteration learns from. If rollouts are an update behind it is there already, with its audit by this rank, and
    /// the next one is sampled; else `kept` has the candidates that were chosen, if any were.
    pub(super) fn rollout_of_iteration(
        &mut self,
        kept: Option<&[usize]>,
        observer: &mut dyn Observer,
    ) -> Result<(RolloutOutcome, Option<OnPolicyAudit>), TrainError> {
        let parts = &mut self.parts;
        if parts.settings.staleness == 0 {
            return Ok((parts.roll_out(kept, observer)?, None));
        }
        let iteration = parts.state.iteration;
        let RolledAhead { rolled, audit } = match self.ahead.take() {
            Some(ahead) => ahead,
            // The process begins with this iteration.
            None => parts.roll_out_ahead(iteration, Learner::Previous, observer)?,
        };
        let next = iteration + 1;
        if next < parts.settings.iterations {
            self.ahead = Some(parts.roll_out_ahead(next, Learner::Student, observer)?);
        }
        Ok((rolled, Some(audit)))
    }
}

impl<A: Algorithm> Parts<A, Acceleration> {
    /// Samples the rollout of `iteration` from the weights of `sampler`, and audits it under these.
    fn roll_out_ahead(
        &mut self,
        iteration: u64,
        sampler: Learner,
        observer: &mut dyn Observer,
    ) -> Result<RolledAhead, TrainError> {
        // All that a rollout draws follows from the number of its iteration.
        let under_way = std::mem::replace(&mut self.state.iteration, iteration);
        // Also where it unwinds: what is written of a run that ends here is of the iterations that it did.
        let outcome = stopped::caught(|| self.roll_out_audited(sampler, observer));
        self.state.iteration = under_way;
        outcome?
    }

    fn roll_out_audited(
        &self,
        sampler: Learner,
        observer: &mut dyn Observer,
    ) -> Result<RolledAhead, TrainError> {
        let weights = match sampler {
            Learner::Previous => self.state.weights.previous(),
            Learner::Student | Learner::Network(_) => &self.state.weights.current,
        };
        let repetition = Repetition {
            groups: self.drift_groups(),
            beside: true,
            weights: None,
        };
        let mut rolled = self.roll_out_comparing(weights, &repetition, None, observer)?;
        let audit = self.audit_ahead(&rolled, sampler)?;
        // What accelerators did so far is counted for the iteration of this rollout, not for that under way.
        rolled.activity = self.acceleration.take_activity();
        Ok(RolledAhead { rolled, audit })
    }

    /// Keeps the trained weights as they are before an update, if rollouts are one behind. Not before its rewards are there: a checkpoint that
    /// is saved because they failed has the weights before the last update that was.
    pub(super) fn remember_weights(&mut self) {
        let kernels = self.acceleration.training().kernels.clone();
        let (state, device) = (&mut self.state, &self.sampler.device);
        let trained = state.optimizer.trained();
        state.weights.remember(&*kernels, device, trained);
    }
}
