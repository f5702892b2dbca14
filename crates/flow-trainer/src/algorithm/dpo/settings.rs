//! Online DPO's settings and their rules.

use crate::algorithm::times::times_config;
use crate::algorithm::{ReferenceWeights, TimeSampling, TrainTimestepsConfig};
use flow_config::codes::RULE_BATCH_GEOMETRY;
use flow_config::{Diagnostic, Rules};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Online DPO's settings, `kind = "dpo"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DpoSettings {
    /// Strength of the preference: how far the loss reads a difference of errors from the reference.
    #[schemars(range(min = 1e-6, max = 1e9))]
    pub beta: f64,
    /// What the reference is.
    pub reference: ReferenceWeights,
    /// At which times the loss is taken.
    pub train_timesteps: DpoTimesConfig,
    /// Passes over the pairs of one rollout.
    #[schemars(range(min = 1, max = 1000))]
    pub inner_epochs: usize,
}

impl Default for DpoSettings {
    fn default() -> Self {
        Self {
            beta: 2000.0,
            reference: ReferenceWeights::Snapshot,
            train_timesteps: DpoTimesConfig::default(),
            inner_epochs: 1,
        }
    }
}

times_config! {
    /// `[algorithm.train_timesteps]` of `dpo`: at which times the loss is taken.
    DpoTimesConfig, " Times per pair and pass; 0 takes as many as the scheduler's steps that lie in `range`." {
        count: 1, strategy: TimeSampling::LogitNormal, shift: 1.0, range: [0.0, 0.99]
    }
}

/// The rules on settings that stand at `path`.
pub(super) fn check(settings: &DpoSettings, rules: &mut Rules<'_>, path: &str) {
    settings.reference.check(rules, &format!("{path}.reference"));
    TrainTimestepsConfig::from(&settings.train_timesteps).check(rules);
    if rules.config().sampling.micro_batch < 2 {
        let message = "`algorithm.kind = \"dpo\"` compares two images in one call of the model, and `sampling.micro_batch` is 1";
        rules
            .error(
                RULE_BATCH_GEOMETRY,
                &["sampling.micro_batch", "algorithm.kind"],
                message,
            )
            .help("set `sampling.micro_batch` to an even number");
    }
}

/// The rule on the sampler's `sigmas`.
pub(super) fn check_steps(settings: &DpoSettings, sigmas: &[f64]) -> Option<Diagnostic> {
    TrainTimestepsConfig::from(&settings.train_timesteps).check_steps(sigmas)
}
