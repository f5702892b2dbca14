//! Offline DPO's settings and their rules.

use crate::algorithm::{ReferenceWeights, RowTimesConfig};
use flow_config::Rules;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Offline DPO's settings, `kind = "offline-dpo"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OfflineDpoSettings {
    /// Strength of the preference: how far the loss reads a difference of errors from the reference.
    #[schemars(range(min = 1e-6, max = 1e9))]
    pub beta: f64,
    /// What the reference is.
    pub reference: ReferenceWeights,
    /// At which times the loss is taken.
    pub train_timesteps: RowTimesConfig,
}

impl Default for OfflineDpoSettings {
    fn default() -> Self {
        Self {
            beta: 2000.0,
            reference: ReferenceWeights::Snapshot,
            train_timesteps: RowTimesConfig::default(),
        }
    }
}

/// The rules on settings that stand at `path`.
pub(super) fn check(settings: &OfflineDpoSettings, rules: &mut Rules<'_>, path: &str) {
    settings.reference.check(rules, &format!("{path}.reference"));
    settings.train_timesteps.check(rules);
}
