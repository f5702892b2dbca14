//! TDM-R1's settings and their rules.

use crate::algorithm::fake::FakeScoreConfig;
use crate::algorithm::idle_keys::check_decided_keys;
use crate::algorithm::rows::check_whole_groups;
use crate::algorithm::tdm;
use crate::algorithm::{
    NetworkPlan, QueryDistribution, QueryInterval, ReferenceWeights, TdmDistance, TdmSettings,
};
use flow_config::codes::RULE_DISTILLATION;
use flow_config::{Diagnostic, Rules};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How much more of the surrogate's slower copy survives with each of its optimizer steps (Flow-Factory's constant).
const SLOW_DECAY_RATE: f64 = 1e-3;

/// TDM-R1's settings, `kind = "tdm-r1"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TdmR1Settings {
    /// The frozen teacher: the base below the adapters, or a copy of the weights at the start.
    pub reference: ReferenceWeights,
    /// Guidance of the teacher, and of the surrogate where the student follows it; without it that of the rollout.
    #[schemars(range(min = 0.0, max = 100.0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub real_guidance_scale: Option<f64>,
    /// Share of the teacher's guidance among the two rewards that the student follows; the surrogate has the rest. Neither takes from the
    /// distribution matching.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub tdm_weight: f64,
    /// How far the teacher's guidance pulls, in differences between what it makes of a prompt and of the empty one; 0 for no pull.
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub cfg_reward_scale: f64,
    /// Advantages are clamped to plus or minus this.
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0.0))]
    pub advantage_clip: f64,
    /// How the student's distance from each of its targets counts.
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
    pub fake_score: TdmR1FakeScoreConfig,
    /// How the surrogate of the reward learns.
    pub surrogate: SurrogateConfig,
}

impl Default for TdmR1Settings {
    fn default() -> Self {
        let TdmSettings {
            reference,
            real_guidance_scale,
            distance: _,
            huber_threshold,
            signal_to_noise_clip,
            importance_clip,
            query_interval,
            query_max_sigma,
            query_distribution,
            query_logit_mean,
            query_logit_std,
            fake_score: _,
        } = TdmSettings::default();
        Self {
            reference,
            real_guidance_scale,
            tdm_weight: 0.3,
            cfg_reward_scale: 3.5,
            advantage_clip: 5.0,
            distance: TdmDistance::Square,
            huber_threshold,
            signal_to_noise_clip,
            importance_clip,
            query_interval,
            query_max_sigma,
            query_distribution,
            query_logit_mean,
            query_logit_std,
            fake_score: TdmR1FakeScoreConfig::default(),
            surrogate: SurrogateConfig::default(),
        }
    }
}

/// `[algorithm.fake_score]` of `tdm-r1`: how the network learns that follows what the student makes. It begins as the student does, and
/// what of `[optimizer]` does not stand here is its own, too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TdmR1FakeScoreConfig {
    /// Its optimizer steps before each of the student's.
    #[schemars(range(min = 1, max = 1000))]
    pub updates: usize,
    /// Its learning rate.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
    pub learning_rate: f64,
    /// Decays of its moments.
    #[schemars(inner(range(min = 0.0, max = 0.999_999)))]
    pub betas: [f64; 2],
}

impl Default for TdmR1FakeScoreConfig {
    fn default() -> Self {
        Self {
            updates: 5,
            learning_rate: 3e-4,
            betas: [0.0, 0.999],
        }
    }
}

/// `[algorithm.surrogate]`: how the network learns that stands for the reward. It takes one optimizer step before each of the student's,
/// begins as the student does, and what of `[optimizer]` does not stand here is its own, too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SurrogateConfig {
    /// Its learning rate.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
    pub learning_rate: f64,
    /// Decays of its moments.
    #[schemars(inner(range(min = 0.0, max = 0.999_999)))]
    pub betas: [f64; 2],
    /// Strength of the preference between the better and the worse images of a group: how far its weight follows their errors.
    #[schemars(range(min = 1e-6, max = 1e9))]
    pub preference_beta: f64,
    /// Factor of the squared difference of its errors from the teacher's, which pulls it back; 0 for no pull.
    #[schemars(range(min = 0.0, max = 1e6))]
    pub reference_beta: f64,
    /// An image teaches nothing more once that square is above this, on the side that its advantage asks for.
    #[schemars(range(min = 0.0, max = 1e6))]
    pub reference_threshold: f64,
    /// An image teaches nothing more once `exp(error of the slower copy - error)` is more than this from 1, on the side that its advantage
    /// asks for; 0 for no such bound, and no slower copy.
    #[schemars(range(min = 0.0, max = 0.999_999))]
    pub clip_range: f64,
    /// Share of the slower copy that survives the first optimizer step; it rises by 0.001 with each.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub slow_decay_min: f64,
    /// Most that it becomes.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub slow_decay_max: f64,
    /// Whether step `k` of `K` counts `k / K`: the later a step, the nearer it is to the image that was scored.
    pub time_weighting: bool,
}

impl Default for SurrogateConfig {
    fn default() -> Self {
        Self {
            learning_rate: 3e-4,
            betas: [0.9, 0.999],
            preference_beta: 1.0,
            reference_beta: 1e-3,
            reference_threshold: 0.05,
            clip_range: 1e-3,
            slow_decay_min: 1e-3,
            slow_decay_max: 0.3,
            time_weighting: true,
        }
    }
}

impl SurrogateConfig {
    /// Whether a slower copy is kept.
    pub(super) fn keeps_slow(&self) -> bool {
        self.clip_range > 0.0
    }

    /// How it learns.
    pub(super) fn plan(&self) -> NetworkPlan {
        NetworkPlan {
            updates: 1,
            learning_rate: self.learning_rate,
            betas: self.betas,
            keeps_slow: self.keeps_slow(),
        }
    }

    /// Share of the slower copy that survives optimizer step number `steps`, counted from 1.
    pub(super) fn survives(&self, steps: u64) -> f64 {
        let before = steps.saturating_sub(1) as f64;
        (self.slow_decay_min + SLOW_DECAY_RATE * before).min(self.slow_decay_max)
    }
}

impl TdmR1Settings {
    /// Those of the distribution matching.
    pub(super) fn tdm(&self) -> TdmSettings {
        TdmSettings {
            reference: self.reference,
            real_guidance_scale: self.real_guidance_scale,
            distance: self.distance,
            huber_threshold: self.huber_threshold,
            signal_to_noise_clip: self.signal_to_noise_clip,
            importance_clip: self.importance_clip,
            query_interval: self.query_interval,
            query_max_sigma: self.query_max_sigma,
            query_distribution: self.query_distribution,
            query_logit_mean: self.query_logit_mean,
            query_logit_std: self.query_logit_std,
            fake_score: FakeScoreConfig {
                updates: self.fake_score.updates,
                learning_rate: self.fake_score.learning_rate,
                betas: self.fake_score.betas,
            },
        }
    }
}

/// The rules on settings that stand at `path`.
pub(super) fn check(settings: &TdmR1Settings, rules: &mut Rules<'_>, path: &str) {
    tdm::check(&settings.tdm(), rules, path);
    check_whole_groups(
        rules,
        "the surrogate of `algorithm.kind = \"tdm-r1\"` weighs an image by the errors of its whole group",
    );
    let surrogate = &settings.surrogate;
    let (low, high) = (surrogate.slow_decay_min, surrogate.slow_decay_max);
    if low > high {
        let keys = ["slow_decay_min", "slow_decay_max"].map(|key| format!("{path}.surrogate.{key}"));
        let [low_key, high_key] = &keys;
        rules
            .error(
                RULE_DISTILLATION,
                &[low_key, high_key],
                format!("`{low_key}` is {low}, and `{high_key}`, which it rises to, is {high}"),
            )
            .help("the usual range is from 0.001 to 0.3");
    }
    let rollout = rules.config().sampling.guidance_scale;
    let is_guided = settings.real_guidance_scale.unwrap_or(rollout) > 1.0;
    let slow = surrogate.keeps_slow();
    check_decided_keys(
        rules,
        path,
        &[
            ("cfg_reward_scale", is_guided, "real_guidance_scale", "above 1"),
            (
                "surrogate.slow_decay_min",
                slow,
                "surrogate.clip_range",
                "above 0",
            ),
            (
                "surrogate.slow_decay_max",
                slow,
                "surrogate.clip_range",
                "above 0",
            ),
        ],
    );
}

/// The rule on the sampler's `sigmas`.
pub(super) fn check_steps(settings: &TdmR1Settings, sigmas: &[f64]) -> Option<Diagnostic> {
    tdm::check_steps(&settings.tdm(), sigmas)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_copy_of_the_surrogate_follows_less_with_each_step() {
        let surrogate = SurrogateConfig::default();
        for (steps, expected) in [(1, 0.001), (300, 0.3), (1001, 0.3)] {
            let found = surrogate.survives(steps);
            assert!((found - expected).abs() < 1e-12, "{found} after step {steps}");
        }
    }

    #[test]
    fn without_a_bound_there_is_no_slower_copy() {
        let surrogate = SurrogateConfig {
            clip_range: 0.0,
            ..SurrogateConfig::default()
        };
        assert!(!surrogate.plan().keeps_slow);
        assert!(SurrogateConfig::default().plan().keeps_slow);
    }
}
