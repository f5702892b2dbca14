//! DiffusionNFT's settings and their rules.

use crate::algorithm::{OldPolicyConfig, ReferenceWeights, TrainTimestepsConfig};
use flow_config::{Diagnostic, Rules};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// DiffusionNFT's settings, `kind = "nft"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NftSettings {
    /// Strength of the implicit guidance, b: `v+ = b v + (1 - b) v_old`, `v- = (1 + b) v_old - b v`.
    #[schemars(range(min = 1e-6, max = 1000.0))]
    pub beta: f64,
    /// Advantages are clamped to plus or minus this, then mapped to a weight between 0 and 1.
    #[schemars(range(min = 1e-6, max = 1e6))]
    pub advantage_clip: f64,
    /// How advantages become weights.
    pub advantage_mode: AdvantageMode,
    /// Factor of `mean((v - v_ref)^2)`; 0 keeps no reference.
    #[schemars(range(min = 0.0, max = 1e6))]
    pub kl_beta: f64,
    /// What the reference is.
    pub reference: ReferenceWeights,
    /// How the policy that samples follows the one that is trained.
    pub old_policy: OldPolicyConfig,
    /// At which times the loss is taken.
    pub train_timesteps: TrainTimestepsConfig,
    /// Passes over the images of one rollout.
    #[schemars(range(min = 1, max = 1000))]
    pub inner_epochs: usize,
}

impl Default for NftSettings {
    fn default() -> Self {
        Self {
            beta: 1.0,
            advantage_clip: 5.0,
            advantage_mode: AdvantageMode::All,
            kl_beta: 0.0,
            reference: ReferenceWeights::Snapshot,
            old_policy: OldPolicyConfig::default(),
            train_timesteps: TrainTimestepsConfig::default(),
            inner_epochs: 1,
        }
    }
}

/// How advantages become weights (the official code's `adv_mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AdvantageMode {
    /// As they are.
    #[default]
    All,
    /// Negative ones count as 0.
    PositiveOnly,
    /// Positive ones count as 0.
    NegativeOnly,
    /// Positive ones count as 1, the others as 0.
    OneOnly,
    /// Their sign.
    Binary,
}

/// The rules on settings that stand at `path`.
pub(super) fn check(settings: &NftSettings, rules: &mut Rules<'_>, path: &str) {
    if settings.kl_beta != 0.0 {
        settings.reference.check(rules, &format!("{path}.reference"));
    }
    settings.train_timesteps.check(rules);
}

/// The rule on the sampler's `sigmas`.
pub(super) fn check_steps(settings: &NftSettings, sigmas: &[f64]) -> Option<Diagnostic> {
    settings.train_timesteps.check_steps(sigmas)
}
