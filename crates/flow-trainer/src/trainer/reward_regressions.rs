//! Telling of rewards that fell: when they have fallen, and at the end of the run.

use super::Trainer;
use crate::algorithm::Algorithm;
use crate::observer::Observer;
use flow_accel::Acceleration;
use flow_report::{Metrics, RewardRegression, StatisticsError};
use std::collections::BTreeSet;

/// A reward, and what was lost of it.
type Regression = (String, RewardRegression);

impl<A: Algorithm> Trainer<A, Acceleration> {
    /// Rewards that had been clearly better in an earlier evaluation than in the last one.
    pub(super) fn regressions(&self, metrics: &Metrics) -> Result<Vec<Regression>, StatisticsError> {
        let rewards = self.evaluation_rewards.weights.iter();
        rewards
            .filter_map(|reward| {
                let regression = RewardRegression::of(metrics, &reward.name).transpose()?;
                Some(regression.map(|mut regression| {
                    regression.difference = regression.difference.of_values_within(reward.range);
                    (reward.name.clone(), regression)
                }))
            })
            .collect()
    }

    /// After an evaluation: a notice of what fell, once for each fall. What cannot be read or compared stops no run: the summary says so.
    pub(super) fn tell_of_regressions(&mut self, observer: &mut dyn Observer) {
        let metrics = self
            .files
            .as_ref()
            .and_then(|files| files.directory.read_metrics().ok());
        let Some(mut falls) = metrics.and_then(|metrics| {
            self.regressions(&metrics.since(self.progress.run_counters.comparable_from()))
                .ok()
        }) else {
            return;
        };
        let fallen: BTreeSet<String> = falls.iter().map(|(name, _)| name.clone()).collect();
        falls.retain(|(name, _)| !self.progress.named_regressions.contains(name));
        // What recovered may fall again.
        self.progress.named_regressions = fallen;
        if let Some(text) = in_words(&falls) {
            observer.notice(&text);
        }
    }
}

/// All falls in a sentence, and what helps.
pub(super) fn in_words(falls: &[Regression]) -> Option<String> {
    let described: Vec<String> = falls
        .iter()
        .map(|(name, fall)| {
            format!(
                "`{name}` from {:.4} after iteration {} ({})",
                fall.best_mean,
                fall.best_step,
                fall.difference.interval.text(4)
            )
        })
        .collect();
    (!described.is_empty()).then(|| {
        format!(
            "rewards fell: {}. Weights of then are there if `[checkpoints]` kept them. What helps: a lower rate, a pull towards the \
             reference, and for NFT sampling weights that follow more slowly",
            described.join(", ")
        )
    })
}
