//! The comparison of the samples of an iteration: from rewards to advantages, and what the algorithm makes of them.

use super::drift::{Drift, Pending};
use super::failed_rewards::of_this_rank;
use super::mean::Mean;
use super::micro_batches::Counted;
use super::scoring::Scores;
use super::{RewardWeight, Trainer};
use crate::advantage::{Advantages, RewardColumn, compute_advantages};
use crate::algorithm::{Algorithm, Memory, RewardedRows};
use crate::branching::EdgeCredits;
use crate::error::TrainError;
use flow_accel::Acceleration;

/// What an algorithm logs beside its losses, by name.
type Logged = Vec<(String, Mean)>;

/// The values of each reward, with its name and weight.
pub(super) fn reward_columns<'a>(
    rewards: &'a [RewardWeight],
    columns: impl Iterator<Item = &'a [f32]>,
) -> Vec<RewardColumn<'a>> {
    let column = |(reward, values): (&'a RewardWeight, &'a [f32])| RewardColumn {
        name: &reward.name,
        weight: reward.weight,
        values,
    };
    rewards.iter().zip(columns).map(column).collect()
}

/// Puts the algorithm's own advantages, if it has some, in the place of `advantages`. Gives how much it pulls each image back, none if
/// it says nothing of it, and what it logs.
fn weigh(
    algorithm: &impl Algorithm,
    rows: &RewardedRows<'_>,
    advantages: &mut Advantages,
    memory: &mut Memory,
) -> Result<(Vec<f32>, Logged), TrainError> {
    let Some(weighed) = algorithm.weigh(rows, memory)? else {
        return Ok((Vec::new(), Vec::new()));
    };
    advantages.replace(weighed.advantages);
    let metrics = weighed.metrics.into_iter();
    let logged = metrics.map(|(name, value)| (name.to_owned(), Mean::of(value)));
    Ok((weighed.gates, logged.collect()))
}

/// What the samples of an iteration come to, compared with one another.
pub(super) struct Comparison {
    /// Of each sample within its group.
    pub advantages: Advantages,
    /// What counts at the recorded steps in the place of advantages, in a run with branches.
    credits: Vec<EdgeCredits>,
    /// How much the algorithm pulls each image back; none if it says nothing of it.
    gates: Vec<f32>,
    /// What the algorithm logs of it.
    pub logged: Logged,
    /// What the accelerators of the rollout changed, if some groups were sampled without them, too.
    pub drift: Option<Drift>,
}

impl Comparison {
    /// What an update counts samples with.
    pub(super) fn counted(&self) -> Counted<'_> {
        Counted {
            advantages: &self.advantages.values,
            credits: &self.credits,
            gates: &self.gates,
        }
    }
}

impl<A: Algorithm> Trainer<A, Acceleration> {
    /// Compares the samples of each group by their scores. `groups` has the group of each sample, `pending` the samples that were taken
    /// twice.
    pub(super) fn compare(
        &mut self,
        scores: &Scores,
        groups: &[u64],
        pending: Option<Pending>,
    ) -> Result<Comparison, TrainError> {
        let names = &self.rewards.weights;
        let rewards = reward_columns(names, scores.rewards.iter().map(Vec::as_slice));
        let options = &self.settings.advantage;
        let compared = self.branches().compared_groups(groups);
        let drift = pending
            .map(|pending| pending.finish(names, &scores.rewards, &compared, options))
            .transpose()
            .map_err(of_this_rank)?;
        let mut advantages = compute_advantages(&rewards, &compared, options)?;
        let rows = RewardedRows {
            rewards: &rewards,
            groups: &compared,
        };
        let memory = &mut self.state.memory;
        let (gates, logged) = weigh(&self.algorithm, &rows, &mut advantages, memory)?;
        let credits = self.branches().credits(&advantages.values, &scores.log_probs);
        Ok(Comparison {
            advantages,
            credits,
            gates,
            logged,
            drift,
        })
    }
}
