//! `[checkpoints]`, `[logging]` and `[audit]`: what a run writes down and watches.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[checkpoints]`: saved states from which a run resumes bit for bit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointsConfig {
    /// Iterations between checkpoints; there is one at the end as well. 0 writes only that one.
    #[schemars(range(max = 100_000_000))]
    pub every: usize,
    /// How many to keep, the newest ones. 0 keeps all.
    #[schemars(range(max = 1_000_000))]
    pub keep: usize,
}

impl Default for CheckpointsConfig {
    fn default() -> Self {
        Self { every: 10, keep: 2 }
    }
}

/// `[logging]`: metrics and reports. `metrics.jsonl` is always written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoggingConfig {
    /// Also write TensorBoard events.
    pub tensorboard: bool,
    /// Iterations between lines on the terminal.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub every: usize,
    /// Write `report.html` at the end.
    pub html_report: bool,
}

impl Default for LoggingConfig {
    fn default() -> Self {
        Self {
            tensorboard: true,
            every: 1,
            html_report: true,
        }
    }
}

/// `[audit]`: checks that the trainer makes of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AuditConfig {
    /// What happens when the ratio at the first update after a rollout is not exactly 1, on a coupled algorithm
    /// whose plan is lossless.
    pub on_policy: OnPolicyAudit,
    /// Groups of a rollout that are sampled once more without the accelerators of `acceleration.rollout`, to see what these
    /// change and save. 0 for none; each costs a group's rollout.
    #[schemars(range(max = 65_536))]
    pub drift_groups: usize,
    /// Iterations from one such comparison to the next; 0 for none.
    #[schemars(range(max = 1_000_000))]
    pub drift_every: usize,
}

impl Default for AuditConfig {
    fn default() -> Self {
        Self {
            on_policy: OnPolicyAudit::default(),
            drift_groups: 0,
            drift_every: 1,
        }
    }
}

/// What a failed on-policy audit does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnPolicyAudit {
    /// Stop, naming step, sample and value.
    #[default]
    Stop,
    /// Warn and go on.
    Warn,
    /// Do not look.
    Off,
}
