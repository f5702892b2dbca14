//! Numbers and switches of a run.

use crate::ema::EmaPlan;
use crate::geometry::BatchGeometry;
use crate::trainer::{AuditMode, TrainerSettings, WatchSettings};
use flow_config::{Config, OnPolicyAudit};
use std::num::NonZeroUsize;

/// The numbers and switches of a config; `lossless` says whether the accelerators promise bit-exact ratios.
pub(super) fn settings(
    config: &Config,
    geometry: BatchGeometry,
    average: Option<EmaPlan>,
    lossless: bool,
) -> TrainerSettings {
    let keep = NonZeroUsize::new(config.checkpoints.keep).unwrap_or(NonZeroUsize::MAX);
    let sampling = &config.sampling;
    TrainerSettings {
        seed: config.run.seed,
        iterations: config.run.steps as u64,
        geometry,
        initial_noise: sampling.initial_noise,
        branching: sampling.branching.clone(),
        staleness: sampling.staleness,
        advantage: (&config.advantage).into(),
        average,
        audit: match config.audit.on_policy {
            OnPolicyAudit::Stop => AuditMode::Stop,
            OnPolicyAudit::Warn => AuditMode::Warn,
            OnPolicyAudit::Off => AuditMode::Off,
        },
        drift_groups: config.audit.drift_groups,
        drift_every: config.audit.drift_every as u64,
        watch: WatchSettings {
            every: config.watch.every as u64,
            window: config.watch.window,
            least_fall: config.watch.least_fall,
            judges: config.judges(),
        },
        lossless,
        strict: config.acceleration.strict,
        checkpoint_every: config.checkpoints.every as u64,
        checkpoints_kept: keep,
        tensorboard_every: if config.logging.tensorboard {
            config.logging.every.max(1) as u64
        } else {
            0
        },
        html_report: config.logging.html_report,
    }
}
