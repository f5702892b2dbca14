//! Telling of rewards that fell: when they have fallen, and at the end of the run.

use super::Session;
use crate::algorithm::Algorithm;
use crate::observer::Observer;
use flow_report::{Metrics, Setback, StatisticsError};
use std::collections::BTreeSet;

/// A reward, and what was lost of it.
type Fall = (String, Setback);

impl<A: Algorithm> Session<A> {
    /// Rewards that had been clearly better in an earlier evaluation than in the last one.
    pub(super) fn falls(&self, metrics: &Metrics) -> Result<Vec<Fall>, StatisticsError> {
        let rewards = self.parts.evaluation_rewards.1.iter();
        rewards
            .filter_map(|reward| {
                let setback = Setback::of(metrics, &reward.name).transpose()?;
                Some(setback.map(|mut setback| {
                    setback.difference = setback.difference.of_values_within(reward.range);
                    (reward.name.clone(), setback)
                }))
            })
            .collect()
    }

    /// After an evaluation: a notice of what fell, once for each fall. What cannot be read or compared stops no run: the summary says so.
    pub(super) fn tell_of_falls(&mut self, observer: &mut dyn Observer) {
        let metrics = self
            .files
            .as_ref()
            .and_then(|files| files.directory.read_metrics().ok());
        let Some(mut falls) =
            metrics.and_then(|metrics| self.falls(&metrics.since(self.tally.comparable_from())).ok())
        else {
            return;
        };
        let fallen: BTreeSet<String> = falls.iter().map(|(name, _)| name.clone()).collect();
        falls.retain(|(name, _)| !self.named_falls.contains(name));
        // What recovered may fall again.
        self.named_falls = fallen;
        if let Some(text) = in_words(&falls) {
            observer.notice(&text);
        }
    }
}

/// All falls in a sentence, and what helps.
pub(super) fn in_words(falls: &[Fall]) -> Option<String> {
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
