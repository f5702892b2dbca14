//! The files that a run writes.

use super::settings::{RewardWeight, TrainerSettings};
use crate::error::TrainError;
use flow_report::{CheckpointStore, EventWriter, Manifest, MetricsWriter, RunDirectory, RunStamp};

/// The files that a run writes.
pub(crate) struct RunFiles {
    /// Which run this is.
    pub(super) run: RunStamp,
    pub(super) directory: RunDirectory,
    pub(super) checkpoints: CheckpointStore,
    pub(super) metrics: MetricsWriter,
    pub(super) timing: MetricsWriter,
    pub(super) events: Option<EventWriter>,
}

impl RunFiles {
    pub(super) fn open(
        directory: RunDirectory,
        (metrics, timing): (MetricsWriter, MetricsWriter),
        resumed_from: Option<u64>,
        (run, settings): (RunStamp, &TrainerSettings),
    ) -> Result<Self, TrainError> {
        let events = (settings.tensorboard_every > 0)
            .then(|| directory.events(resumed_from))
            .transpose()?;
        Ok(Self {
            run,
            checkpoints: directory.checkpoints(settings.checkpoints_kept),
            directory,
            metrics,
            timing,
            events,
        })
    }

    /// Tells TensorBoard what the run is, and how to draw its evaluations.
    pub(super) fn describe(
        &mut self,
        manifest: &Manifest,
        rewards: &[RewardWeight],
    ) -> Result<(), TrainError> {
        let Some(events) = &mut self.events else {
            return Ok(());
        };
        let names: Vec<&str> = rewards.iter().map(|reward| reward.name.as_str()).collect();
        events.configuration(manifest)?;
        events.layout(&names, true)?;
        Ok(())
    }
}
