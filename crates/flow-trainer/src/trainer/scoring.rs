//! The scores of an iteration's samples, of all ranks.

use super::Trainer;
use super::reward_times::RewardTimes;
use crate::algorithm::Algorithm;
use crate::error::TrainError;
use crate::observer::Observer;
use crate::rollout::Trajectories;
use flow_accel::Acceleration;
use flow_core::cpu;
use flow_rewards::Ticket;
use std::collections::BTreeMap;

/// Values of all samples of an iteration, in order, for each of several things.
pub(super) type Columns = Vec<Vec<f32>>;

/// What the samples of an iteration scored.
pub(super) struct Scores {
    /// A column for each reward.
    pub rewards: Columns,
    /// A column for the log-probabilities of each recorded step, if the branches of the run read them.
    pub log_probs: Columns,
    /// How long the rewards took.
    pub times: RewardTimes,
}

impl<A: Algorithm> Trainer<A, Acceleration> {
    /// Waits for the scores of this rank's samples, and puts those of all ranks together.
    pub(super) fn score(
        &self,
        tickets: Vec<Ticket>,
        batches: &BTreeMap<usize, Trajectories>,
        observer: &mut dyn Observer,
    ) -> Result<Scores, TrainError> {
        let rewards = self.rewards.weights.len();
        let (mut columns, times) = self.scored(tickets, observer)?;
        let branches = self.branches();
        if branches.reads_log_probs() {
            let of_record = |record: usize| {
                let batches = batches.values();
                batches
                    .flat_map(|batch| cpu::to_host(&batch.records[record].log_prob))
                    .collect::<Vec<f32>>()
            };
            columns.extend((0..branches.window().len()).map(of_record));
        }
        let mut columns = (self.distribution).gather_columns(&self.settings.geometry, columns)?;
        let log_probs = columns.split_off(rewards);
        Ok(Scores {
            rewards: columns,
            log_probs,
            times,
        })
    }
}
