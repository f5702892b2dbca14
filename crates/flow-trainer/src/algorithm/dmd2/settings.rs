//! DMD2's settings and their rules.

use crate::algorithm::ReferenceWeights;
use crate::algorithm::fake::FakeScoreConfig;
use flow_config::codes::RULE_DISTILLATION;
use flow_config::{Dynamics, Rules};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// DMD2's settings, `kind = "dmd2"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Dmd2Settings {
    /// The frozen teacher: the base below the adapters, or a copy of the weights at the start.
    pub reference: ReferenceWeights,
    /// Guidance of the teacher; without it that of the rollout.
    #[schemars(range(min = 0.0, max = 100.0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub real_guidance_scale: Option<f64>,
    /// Noise levels at which the teacher and the fake score are compared, drawn uniformly: `0 < lo < hi < 1`.
    #[schemars(inner(range(min = 1e-4, max = 0.9999)))]
    pub perturbation_range: [f64; 2],
    /// How the fake score learns.
    pub fake_score: FakeScoreConfig,
}

impl Default for Dmd2Settings {
    fn default() -> Self {
        Self {
            reference: ReferenceWeights::Snapshot,
            real_guidance_scale: None,
            perturbation_range: [0.02, 0.98],
            fake_score: FakeScoreConfig::default(),
        }
    }
}

/// The rules on settings that stand at `path`.
pub(super) fn check(settings: &Dmd2Settings, rules: &mut Rules<'_>, path: &str) {
    settings.reference.check(rules, &format!("{path}.reference"));
    check_dynamics(rules);
    let [low, high] = settings.perturbation_range;
    if low >= high {
        let key = format!("{path}.perturbation_range");
        rules
            .error(
                RULE_DISTILLATION,
                &[&key],
                format!("`{key}` is [{low}, {high}], but must have lo < hi"),
            )
            .help("the usual range is [0.02, 0.98]");
    }
}

/// The rule that steps which are taken once more have no noise.
pub(in crate::algorithm) fn check_dynamics(rules: &mut Rules<'_>) {
    let config = rules.config();
    if config.scheduler.dynamics == Dynamics::Ode {
        return;
    }
    let message = format!(
        "`algorithm.kind = \"{}\"` takes the steps of the rollout once more, which must be deterministic",
        config.algorithm.kind
    );
    rules
        .error(
            RULE_DISTILLATION,
            &["scheduler.dynamics", "algorithm.kind"],
            message,
        )
        .help("set `scheduler.dynamics = \"ode\"`");
}
