//! Watching for an exploited reward: what is written down of a rollout's images, and telling of its signs.

use super::Trainer;
use crate::algorithm::Algorithm;
use crate::error::TrainError;
use crate::observer::Observer;
use crate::watch::{ImageStatistics, SampleStatistics, columns, summarize};
use flow_accel::Acceleration;
use flow_report::{ExploitSigns, MetricRecord, Metrics, WatchPlan};
use std::collections::BTreeSet;

/// What a run watches for.
#[derive(Clone, Debug, PartialEq)]
pub struct WatchSettings {
    /// Iterations between two looks at the images of a rollout; 0 for none.
    pub every: u64,
    /// Looks that are compared.
    pub window: usize,
    /// The share of its value by which a number must have fallen.
    pub least_fall: f64,
    /// Rewards of the evaluation that must not fall.
    pub judges: Vec<String>,
}

impl WatchSettings {
    /// Whether the rollout behind `iteration` iterations is looked at.
    pub(super) fn looks_at(&self, iteration: u64) -> bool {
        self.every > 0 && (iteration + 1).is_multiple_of(self.every)
    }
}

impl<A: Algorithm, S> Trainer<A, S> {
    /// The statistics of a rollout's images, of which `mine` are those of this rank; `groups` has the group of each sample of all
    /// ranks.
    pub(super) fn watched(
        &self,
        mine: &[SampleStatistics],
        groups: &[u64],
    ) -> Result<Option<ImageStatistics>, TrainError> {
        if !self.settings.watch.looks_at(self.state.iteration) {
            return Ok(None);
        }
        let columns = (self.distribution).gather_columns(&self.settings.geometry, columns(mine))?;
        Ok(Some(summarize(&columns, groups)))
    }
}

/// The record with the statistics.
pub(super) fn with_statistics(record: MetricRecord, statistics: &ImageStatistics) -> MetricRecord {
    let ImageStatistics {
        diversity,
        entropy_bits,
        edge_energy,
        saturation,
        clipped,
    } = *statistics;
    let values = [
        ("watch/diversity", diversity),
        ("watch/entropy_bits", Some(entropy_bits)),
        ("watch/edge_energy", Some(edge_energy)),
        ("watch/saturation", saturation),
        ("watch/clipped", Some(clipped)),
    ];
    values
        .into_iter()
        .fold(record, |record, (key, value)| match value {
            Some(value) => record.with(key, value),
            None => record,
        })
}

impl<A: Algorithm> Trainer<A, Acceleration> {
    /// The signs in `metrics` as they are now, and the first ones there were.
    pub(super) fn exploit_signs(&self, metrics: &Metrics) -> (Option<ExploitSigns>, Option<ExploitSigns>) {
        let watch = &self.settings.watch;
        if watch.every == 0 {
            return (None, None);
        }
        let plan = WatchPlan {
            trained: self.trained_terms(),
            window: watch.window,
            least_fall: watch.least_fall,
            judges: watch.judges.clone(),
        };
        (
            ExploitSigns::of(metrics, &plan),
            ExploitSigns::first(metrics, &plan),
        )
    }

    /// A notice of signs that the reward is exploited, once for each sign. What cannot be read stops no run.
    pub(super) fn tell_of_exploits(&mut self, observer: &mut dyn Observer) {
        if self.settings.watch.every == 0 {
            return;
        }
        let metrics = self
            .files
            .as_ref()
            .and_then(|files| files.directory.read_metrics().ok());
        let Some(metrics) = metrics else {
            return;
        };
        let (now, _) = self.exploit_signs(&metrics.since(self.progress.run_counters.comparable_from()));
        let names: BTreeSet<String> = now.iter().flat_map(ExploitSigns::names).collect();
        let is_new = names.iter().any(|name| !self.progress.named_signs.contains(name));
        // What recovered may fall again.
        self.progress.named_signs = names;
        if let Some(signs) = now.filter(|_| is_new) {
            observer.notice(&signs.to_string());
        }
    }

    /// Whether the iterations done are enough for another comparison: half a window has gone by.
    pub(super) fn is_time_to_tell(&self) -> bool {
        let watch = &self.settings.watch;
        let half = watch.every * (watch.window as u64 / 2).max(1);
        half > 0 && self.state.iteration.is_multiple_of(half)
    }
}
