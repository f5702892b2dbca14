//! TDM's settings, their rules, and how a noise level is drawn.

use crate::algorithm::ReferenceWeights;
use crate::algorithm::dmd2::check_dynamics;
use crate::algorithm::fake::FakeScoreConfig;
use crate::algorithm::idle_keys::check_decided_keys;
use crate::timesteps::shifted;
use flow_config::codes::RULE_DISTILLATION;
use flow_config::{Diagnostic, Rules};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far a drawn level stays from the ends of its interval, as a share of it.
const MARGIN: f64 = 1e-6;

/// TDM's settings, `kind = "tdm"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TdmSettings {
    /// The frozen teacher: the base below the adapters, or a copy of the weights at the start.
    pub reference: ReferenceWeights,
    /// Guidance of the teacher; without it that of the rollout.
    #[schemars(range(min = 0.0, max = 100.0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub real_guidance_scale: Option<f64>,
    /// How the student's distance from its target counts.
    pub distance: TdmDistance,
    /// Where `distance = "huber"` goes over from a square to a line.
    #[schemars(range(min = 1e-9, max = 1000.0))]
    pub huber_threshold: f64,
    /// Most that a row counts in the fake score's loss by its ratio of signal to noise, `(1 - s)² / s²`.
    #[schemars(range(min = 1e-6, max = 1e6))]
    pub signal_to_noise_clip: f64,
    /// Most that a row counts in it by its importance; `1 / clip` is the least.
    #[schemars(range(min = 1.0, max = 1e6))]
    pub importance_clip: f64,
    /// Between which noise levels a step is looked at.
    pub query_interval: QueryInterval,
    /// Upper end of `query_interval = "reverse"`.
    #[schemars(range(min = 0.01, max = 1.0))]
    pub query_max_sigma: f64,
    /// How levels are drawn between them.
    pub query_distribution: QueryDistribution,
    /// How the fake score learns.
    pub fake_score: FakeScoreConfig,
}

impl Default for TdmSettings {
    fn default() -> Self {
        Self {
            reference: ReferenceWeights::Snapshot,
            real_guidance_scale: None,
            distance: TdmDistance::Huber,
            huber_threshold: 1e-3,
            signal_to_noise_clip: 5.0,
            importance_clip: 20.0,
            query_interval: QueryInterval::Trajectory,
            query_max_sigma: 1.0,
            query_distribution: QueryDistribution::Uniform,
            fake_score: FakeScoreConfig::default(),
        }
    }
}

/// How TDM's student counts the distance from its target (Flow-Factory's `use_huber`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TdmDistance {
    /// `sqrt(d² + c²) - c`, with `c` the `huber_threshold`.
    #[default]
    Huber,
    /// `d² / 2`.
    Square,
}

/// Between which noise levels TDM looks at a step (Flow-Factory's `tdm_query_interval`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum QueryInterval {
    /// Those of the step itself.
    #[default]
    Trajectory,
    /// From where the step arrives up to `query_max_sigma`.
    Reverse,
}

/// How TDM draws noise levels (Flow-Factory's `tdm_query_distribution`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum QueryDistribution {
    /// Uniformly in the level.
    #[default]
    Uniform,
    /// Uniformly in the level before `scheduler.shift`.
    SourceUniform,
}

impl QueryDistribution {
    /// The level at the share `share` of the way from `low` to `high`, strictly between them; `shift` is that of the sampler.
    pub(super) fn level(self, (low, high): (f64, f64), shift: f64, share: f64) -> f64 {
        let share = MARGIN + (1.0 - 2.0 * MARGIN) * share;
        match self {
            Self::Uniform => low + share * (high - low),
            Self::SourceUniform => {
                let source = |level: f64| level / (shift - (shift - 1.0) * level);
                let at = source(low) + share * (source(high) - source(low));
                shifted(at, shift)
            }
        }
    }
}

/// The rules on settings that stand at `path`.
pub(in crate::algorithm) fn check(settings: &TdmSettings, rules: &mut Rules<'_>, path: &str) {
    settings.reference.check(rules, &format!("{path}.reference"));
    check_dynamics(rules);
    check_decided_keys(
        rules,
        path,
        &[
            (
                "huber_threshold",
                settings.distance == TdmDistance::Huber,
                "distance",
                "\"huber\"",
            ),
            (
                "query_max_sigma",
                settings.query_interval == QueryInterval::Reverse,
                "query_interval",
                "\"reverse\"",
            ),
        ],
    );
}

/// The rule on the sampler's `sigmas`: the interval of each step has something in it.
pub(in crate::algorithm) fn check_steps(settings: &TdmSettings, sigmas: &[f64]) -> Option<Diagnostic> {
    let arrives = *sigmas.get(1)?;
    let most = settings.query_max_sigma;
    if settings.query_interval == QueryInterval::Trajectory || arrives < most {
        return None;
    }
    let message = format!(
        "`algorithm.query_max_sigma` is {most}, and the first step of the sampler arrives at {arrives:.4}, above which a noise level is \
         to be drawn"
    );
    Some(
        Diagnostic::error(RULE_DISTILLATION, message)
            .path("algorithm.query_max_sigma")
            .related(["scheduler.steps", "scheduler.shift"])
            .help("raise it, or set `algorithm.query_interval = \"trajectory\"`"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_lie_strictly_between_the_ends_and_follow_the_shift() {
        for kind in [QueryDistribution::Uniform, QueryDistribution::SourceUniform] {
            for share in [0.0, 0.3, 1.0] {
                let level = kind.level((0.5, 0.75), 3.0, share);
                assert!(0.5 < level && level < 0.75, "{kind:?} at {share}: {level}");
            }
        }
        // Half of the way from 0 to 1 before a shift of 3 is 0.75 after it.
        let half = QueryDistribution::SourceUniform.level((0.0, 1.0), 3.0, 0.5);
        assert!((half - 0.75).abs() < 1e-9, "{half}");
        assert!((QueryDistribution::Uniform.level((0.2, 0.6), 3.0, 0.5) - 0.4).abs() < 1e-9);
    }
}
