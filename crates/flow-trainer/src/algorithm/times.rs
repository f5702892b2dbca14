//! The times at which forward-process losses are taken, and the slower policy that some of them keep: settings and rules that several
//! algorithms have.

use super::{LossPoint, Moment};
use crate::ema::EmaSchedule;
use crate::timesteps::TimestepSampler;
use flow_config::codes::RULE_TRAIN_TIMESTEPS;
use flow_config::{Diagnostic, Rules};
use flow_core::rng::{Purpose, Stream};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far outside the range a step on its border may lie, by rounding.
const TOLERANCE: f64 = 1e-6;

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

impl TrainTimestepsConfig {
    /// The rules on the times, which stand at `algorithm.train_timesteps`.
    pub(super) fn check(&self, rules: &mut Rules<'_>) {
        let [lo, hi] = self.range;
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
        let discrete = match self.strategy {
            TimeSampling::Discrete | TimeSampling::DiscreteWithInit => Some(steps),
            TimeSampling::DiscreteWithoutInit => Some(steps - 1),
            TimeSampling::Uniform | TimeSampling::LogitNormal => None,
        };
        if let Some(available) = discrete.filter(|available| self.count > *available || *available == 0) {
            let message = format!(
                "`algorithm.train_timesteps.count` is {}, but the scheduler has {available} such times",
                self.count
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
    pub(super) fn check_steps(&self, sigmas: &[f64]) -> Option<Diagnostic> {
        let left_out = match self.strategy {
            TimeSampling::Discrete | TimeSampling::DiscreteWithInit => 0,
            TimeSampling::DiscreteWithoutInit => 1,
            TimeSampling::Uniform | TimeSampling::LogitNormal => return None,
        };
        let [low, high] = self.range;
        let inside = (1.0 - high) - TOLERANCE..=(1.0 - low) + TOLERANCE;
        let within = sigmas.iter().filter(|sigma| inside.contains(*sigma)).count();
        let available = within.saturating_sub(left_out);
        if sigmas.is_empty()
            || low >= high
            || self.count + left_out > sigmas.len()
            || available >= self.count.max(1)
        {
            return None;
        }
        let first = if left_out == 1 { ", the first left out" } else { "" };
        let asked = match self.count {
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
}

/// The decay of `[algorithm.old_policy]` after an iteration, and at no other moment.
pub(super) fn follows_iterations(schedule: &EmaSchedule, moment: Moment) -> Option<f64> {
    match moment {
        Moment::Iteration { iteration, .. } => Some(schedule.decay_at(iteration)),
        Moment::Step { .. } => None,
    }
}

/// A table of training times with defaults of its own, read as a [`TrainTimestepsConfig`]: fields with defaults of their type would give a
/// table that is written in part the defaults of another algorithm.
macro_rules! times_config {
    ($(#[$about:meta])* $name:ident, $of_count:tt {
        count: $count:expr, strategy: $strategy:expr, shift: $shift:expr, range: $range:expr
    }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            #[doc = $of_count]
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

        impl Default for $name {
            fn default() -> Self {
                Self {
                    count: $count,
                    strategy: $strategy,
                    shift: $shift,
                    range: $range,
                }
            }
        }

        impl From<&$name> for TrainTimestepsConfig {
            fn from(times: &$name) -> Self {
                Self {
                    count: times.count,
                    strategy: times.strategy,
                    shift: times.shift,
                    range: times.range,
                }
            }
        }
    };
}
pub(super) use times_config;

/// The times of a pass, each with the address of its noise.
pub(super) fn drawn_positions(
    timesteps: &TimestepSampler,
    seed: u64,
    iteration: u64,
    pass: usize,
) -> Vec<LossPoint> {
    let mut draws = Stream::new(seed, Purpose::Timesteps).at(iteration, pass as u32);
    let sigmas = timesteps.sample(&mut draws);
    let base = pass * sigmas.len();
    sigmas
        .into_iter()
        .enumerate()
        .map(|(index, sigma)| LossPoint::Time {
            sigma,
            draw: (base + index) as u32,
        })
        .collect()
}
