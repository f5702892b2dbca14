//! TDM's settings, their rules, and how a noise level is drawn.

use crate::algorithm::ReferenceWeights;
use crate::algorithm::dmd2::check_dynamics;
use crate::algorithm::fake::FakeScoreConfig;
use crate::algorithm::idle_keys::check_decided_keys;
use crate::timesteps::{shifted, standard_normal_quantile};
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
    /// Mean of the logit of levels with `query_distribution = "logit-normal"`; above 0 favours noise.
    #[schemars(range(min = -20.0, max = 20.0))]
    pub query_logit_mean: f64,
    /// Standard deviation of that logit.
    #[schemars(range(min = 0.01, max = 100.0))]
    pub query_logit_std: f64,
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
            query_logit_mean: 0.0,
            query_logit_std: 1.0,
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
    /// Normally in the logit of the level, of which the part between the ends is taken (`conditional_logit_normal`).
    LogitNormal,
}

impl QueryDistribution {
    /// The level at the share `share` of the way from `low` to `high`, strictly between them; `shift` is that of the sampler, `mean` and
    /// `std` are those of the logit of a logit-normal level.
    pub(super) fn level(self, (low, high): (f64, f64), shift: f64, [mean, std]: [f64; 2], share: f64) -> f64 {
        let share = MARGIN + (1.0 - 2.0 * MARGIN) * share;
        match self {
            Self::Uniform => low + share * (high - low),
            Self::SourceUniform => {
                let source = |level: f64| level / (shift - (shift - 1.0) * level);
                let at = source(low) + share * (source(high) - source(low));
                shifted(at, shift)
            }
            Self::LogitNormal => {
                // Of the levels 0 and 1 without an end.
                let normal = |level: f64| (libm::log(level / (1.0 - level)) - mean) / std;
                let z = truncated_normal(normal(low), normal(high), share);
                let margin = MARGIN * (high - low);
                (1.0 / (1.0 + libm::exp(-(mean + std * z)))).clamp(low + margin, high - margin)
            }
        }
    }
}

/// The number below which lies the share `share` of what a standard normal distribution has between `low` and `high`; where both are beyond
/// 8 on one side, a number that is nearer than they are.
fn truncated_normal(low: f64, high: f64, share: f64) -> f64 {
    if low > 0.0 {
        // By the lower tail, whose small probabilities keep their digits.
        return -truncated_normal(-high, -low, 1.0 - share);
    }
    let below = |z: f64| 0.5 * libm::erfc(-z / std::f64::consts::SQRT_2);
    let (from, to) = (below(low), below(high));
    standard_normal_quantile(from + share * (to - from))
}

/// The rules on settings that stand at `path`.
pub(in crate::algorithm) fn check(settings: &TdmSettings, rules: &mut Rules<'_>, path: &str) {
    settings.reference.check(rules, &format!("{path}.reference"));
    check_dynamics(rules);
    let is_logit = settings.query_distribution == QueryDistribution::LogitNormal;
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
            (
                "query_logit_mean",
                is_logit,
                "query_distribution",
                "\"logit-normal\"",
            ),
            (
                "query_logit_std",
                is_logit,
                "query_distribution",
                "\"logit-normal\"",
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

    const STANDARD: [f64; 2] = [0.0, 1.0];

    #[test]
    fn levels_lie_strictly_between_the_ends_and_follow_the_shift() {
        use QueryDistribution::{LogitNormal, SourceUniform, Uniform};
        for kind in [Uniform, SourceUniform, LogitNormal] {
            // The last ones are far from where a logit-normal level is likely.
            for (ends, logit) in [
                ((0.5, 0.75), STANDARD),
                ((0.0, 1.0), [0.3, 0.5]),
                ((0.9999, 1.0), [-4.0, 0.5]),
                ((0.0, 0.01), [9.0, 0.1]),
            ] {
                for share in [0.0, 0.3, 1.0] {
                    let level = kind.level(ends, 3.0, logit, share);
                    assert!(ends.0 < level && level < ends.1, "{kind:?} at {share}: {level}");
                }
            }
        }
        // Half of the way from 0 to 1 before a shift of 3 is 0.75 after it.
        let half = SourceUniform.level((0.0, 1.0), 3.0, STANDARD, 0.5);
        assert!((half - 0.75).abs() < 1e-9, "{half}");
        assert!((Uniform.level((0.2, 0.6), 3.0, STANDARD, 0.5) - 0.4).abs() < 1e-9);
    }

    #[test]
    fn logit_normal_levels_have_their_share_of_the_density_between_the_ends() {
        for (ends, [mean, std]) in [
            ((0.0, 1.0), STANDARD),
            ((0.3, 0.8), [0.5, 1.2]),
            ((0.75, 1.0), [-0.4, 0.7]),
            ((0.0, 0.25), STANDARD),
            // Both ends in one tail, 4.5 deviations from the mean and more.
            ((0.9, 0.95), [0.0, 0.49]),
        ] {
            let density = |level: f64| {
                let z = ((level / (1.0 - level)).ln() - mean) / std;
                (-z * z / 2.0).exp() / (level * (1.0 - level))
            };
            // By the midpoints of small parts, so that the ends 0 and 1 are not asked for.
            let mass = |to: f64| {
                let width = (to - ends.0) / 1e5;
                let part = |index: u32| density(ends.0 + (f64::from(index) + 0.5) * width);
                (0..100_000).map(part).sum::<f64>() * width
            };
            for share in [0.1, 0.5, 0.85] {
                let level = QueryDistribution::LogitNormal.level(ends, 3.0, [mean, std], share);
                let found = mass(level) / mass(ends.1);
                assert!((found - share).abs() < 1e-4, "{ends:?} at {share}: {found}");
            }
        }
    }
}
