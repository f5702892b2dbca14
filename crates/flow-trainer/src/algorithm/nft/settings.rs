//! DiffusionNFT's settings and their rules.

use crate::algorithm::ReferenceWeights;
use flow_config::codes::RULE_TRAIN_TIMESTEPS;
use flow_config::{Diagnostic, Rules};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far outside the range a step on its border may lie, by rounding.
const TOLERANCE: f64 = 1e-6;

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

/// `[algorithm.old_policy]`: after each iteration `old <- d old + (1 - d) current`, with
/// `d = clamp((iteration - flat) * rate, 0, hold)`, iterations counted from 1. The official code's types are 0: (0, 0, 0), 1: (0, 0.001, 0.5),
/// 2: (75, 0.0075, 0.999).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OldPolicyConfig {
    /// Iterations with `d = 0`, that is, purely on-policy.
    #[schemars(range(max = 100_000_000))]
    pub flat: usize,
    /// Rise of `d` per iteration after that.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub rate: f64,
    /// Most that `d` becomes.
    #[schemars(range(min = 0.0, max = 0.999_999))]
    pub hold: f64,
}

impl Default for OldPolicyConfig {
    fn default() -> Self {
        Self {
            flat: 0,
            rate: 0.001,
            hold: 0.5,
        }
    }
}

/// `[algorithm.train_timesteps]`: at which times the loss is taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrainTimestepsConfig {
    /// Times per image and pass; 0 takes as many as the scheduler's steps that lie in `range`.
    #[schemars(range(max = 1000))]
    pub count: usize,
    /// How times are drawn.
    pub strategy: TimeSampling,
    /// Shift `s` of drawn times, `f <- s f / (1 + (s - 1) f)`; for `uniform` and `logit-normal`.
    #[schemars(range(min = 0.01, max = 100.0))]
    pub shift: f64,
    /// Part of the path, as fractions from noise (0) to image (1): `0 <= lo < hi <= 1`.
    #[schemars(inner(range(min = 0.0, max = 1.0)))]
    pub range: [f64; 2],
}

impl Default for TrainTimestepsConfig {
    fn default() -> Self {
        Self {
            count: 0,
            strategy: TimeSampling::Discrete,
            shift: 3.0,
            range: [0.0, 0.9],
        }
    }
}

/// How training times are drawn; all are stratified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TimeSampling {
    /// Uniform over `range`, then shifted.
    Uniform,
    /// Sigmoid of a standard normal draw, then shifted.
    LogitNormal,
    /// The scheduler's own times.
    #[default]
    Discrete,
    /// The scheduler's own times, always with the first.
    DiscreteWithInit,
    /// The scheduler's own times, never with the first.
    DiscreteWithoutInit,
}

/// The rules on settings that stand at `path`.
pub(super) fn check(settings: &NftSettings, rules: &mut Rules<'_>, path: &str) {
    if settings.kl_beta != 0.0 {
        settings.reference.check(rules, &format!("{path}.reference"));
    }
    let times = &settings.train_timesteps;
    let [lo, hi] = times.range;
    if lo >= hi {
        let message = format!("`algorithm.train_timesteps.range` is [{lo}, {hi}], but must have lo < hi");
        rules
            .error(
                RULE_TRAIN_TIMESTEPS,
                &["algorithm.train_timesteps.range"],
                message,
            )
            .help("fractions run from noise (0) to image (1); Flow-Factory's is [0, 0.9]");
    }
    let steps = rules.config().scheduler.steps;
    let discrete = match times.strategy {
        TimeSampling::Discrete | TimeSampling::DiscreteWithInit => Some(steps),
        TimeSampling::DiscreteWithoutInit => Some(steps - 1),
        TimeSampling::Uniform | TimeSampling::LogitNormal => None,
    };
    if let Some(available) = discrete.filter(|available| times.count > *available || *available == 0) {
        let message = format!(
            "`algorithm.train_timesteps.count` is {}, but the scheduler has {available} such times",
            times.count
        );
        rules
            .error(
                RULE_TRAIN_TIMESTEPS,
                &[
                    "algorithm.train_timesteps.count",
                    "algorithm.train_timesteps.strategy",
                    "scheduler.steps",
                ],
                message,
            )
            .help("lower it, raise `scheduler.steps`, or choose \"uniform\" or \"logit-normal\"");
    }
}

/// Fewer of the sampler's `sigmas`, one per step, in the range than are asked for. What the steps alone rule out is the
/// config's own matter.
pub(super) fn check_steps(settings: &NftSettings, sigmas: &[f64]) -> Option<Diagnostic> {
    let times = &settings.train_timesteps;
    let left_out = match times.strategy {
        TimeSampling::Discrete | TimeSampling::DiscreteWithInit => 0,
        TimeSampling::DiscreteWithoutInit => 1,
        TimeSampling::Uniform | TimeSampling::LogitNormal => return None,
    };
    let [low, high] = times.range;
    let inside = (1.0 - high) - TOLERANCE..=(1.0 - low) + TOLERANCE;
    let within = sigmas.iter().filter(|sigma| inside.contains(*sigma)).count();
    let available = within.saturating_sub(left_out);
    if sigmas.is_empty()
        || low >= high
        || times.count + left_out > sigmas.len()
        || available >= times.count.max(1)
    {
        return None;
    }
    let first = if left_out == 1 { ", the first left out" } else { "" };
    let asked = match times.count {
        0 => "at least one is needed".to_owned(),
        count => format!("`algorithm.train_timesteps.count` is {count}"),
    };
    let message = format!(
        "{available} of the {} steps of the sampler lie in `algorithm.train_timesteps.range` [{low}, {high}]{first}, and \
         {asked}",
        sigmas.len()
    );
    let fractions: Vec<String> = sigmas.iter().map(|sigma| format!("{:.3}", 1.0 - sigma)).collect();
    Some(
        Diagnostic::error(RULE_TRAIN_TIMESTEPS, message)
            .path("algorithm.train_timesteps.range")
            .related([
                "algorithm.train_timesteps.count",
                "algorithm.train_timesteps.strategy",
                "scheduler.steps",
            ])
            .help(format!(
                "widen the range, or choose \"uniform\" or \"logit-normal\"; the steps stand at {}",
                fractions.join(", ")
            )),
    )
}
