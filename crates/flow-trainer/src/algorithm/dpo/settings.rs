//! Online DPO's settings and their rules.

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
    /// At which times the loss is taken: without this table once for a pair, logit-normal, unshifted, within `[0, 0.99]`; with it, what
    /// it leaves out is as in the other algorithms.
    pub train_timesteps: TrainTimestepsConfig,
    /// Passes over the pairs of one rollout.
    #[schemars(range(min = 1, max = 1000))]
    pub inner_epochs: usize,
}

impl Default for DpoSettings {
    fn default() -> Self {
        Self {
            beta: 2000.0,
            reference: ReferenceWeights::Snapshot,
            train_timesteps: TrainTimestepsConfig {
                count: 1,
                strategy: TimeSampling::LogitNormal,
                shift: 1.0,
                range: [0.0, 0.99],
            },
            inner_epochs: 1,
        }
    }
}

/// The rules on settings that stand at `path`.
pub(super) fn check(settings: &DpoSettings, rules: &mut Rules<'_>, path: &str) {
    settings.reference.check(rules, &format!("{path}.reference"));
    settings.train_timesteps.check(rules);
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
    settings.train_timesteps.check_steps(sigmas)
}
