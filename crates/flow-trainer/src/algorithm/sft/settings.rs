//! SFT's settings and their rules.

use crate::algorithm::RowTimesConfig;
use flow_config::Rules;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// SFT's settings, `kind = "sft"`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SftSettings {
    /// At which times the loss is taken.
    pub train_timesteps: RowTimesConfig,
}

/// The rules on settings that stand at `path`.
pub(super) fn check(settings: &SftSettings, rules: &mut Rules<'_>, _path: &str) {
    settings.train_timesteps.check(rules);
}
