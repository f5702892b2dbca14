//! Training times of which each row of a micro-batch has its own, for algorithms that learn from records of a data set.
//!
//! As in Flow-Factory's `independent_logit_normal_shifted` and `independent_uniform`: `f` is a fraction of the way from noise to image,
//! `sigma = 1 - f`, and a shift above 1 moves times towards the image. A time is a function of the seed, the row's address and the draw
//! alone, so that neither micro-batches nor ranks change it.

use super::LossPoint;
use crate::timesteps::shifted;
use flow_config::Rules;
use flow_config::codes::RULE_TRAIN_TIMESTEPS;
use flow_core::rng::{Purpose, Stream};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[algorithm.train_timesteps]` of `sft` and `offline-dpo`: at which times the loss is taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RowTimesConfig {
    /// Times per record and iteration.
    #[schemars(range(min = 1, max = 1000))]
    pub count: usize,
    /// How times are drawn.
    pub strategy: RowTimeSampling,
    /// Shift `s` of drawn times, `f <- s f / (1 + (s - 1) f)`.
    #[schemars(range(min = 0.01, max = 100.0))]
    pub shift: f64,
    /// Part of the path, as fractions from noise (0) to image (1): `0 <= lo < hi <= 1`.
    #[schemars(inner(range(min = 0.0, max = 1.0)))]
    pub range: [f64; 2],
}

impl Default for RowTimesConfig {
    fn default() -> Self {
        Self {
            count: 1,
            strategy: RowTimeSampling::LogitNormal,
            shift: 1.0,
            range: [0.0, 0.99],
        }
    }
}

/// How the training times of rows are drawn: each by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RowTimeSampling {
    /// Uniform over `range`, then shifted.
    Uniform,
    /// Sigmoid of a standard normal draw, shifted, brought into `range` (Esser et al. 2024, arXiv 2403.03206).
    #[default]
    LogitNormal,
}

impl RowTimesConfig {
    /// The rule on the times, which stand at `algorithm.train_timesteps`.
    pub(super) fn check(&self, rules: &mut Rules<'_>) {
        let [lo, hi] = self.range;
        if lo >= hi {
            let key = "algorithm.train_timesteps.range";
            let message = format!("`{key}` is [{lo}, {hi}], but must have lo < hi");
            rules
                .error(RULE_TRAIN_TIMESTEPS, &[key], message)
                .help("fractions run from noise (0) to image (1); the default is [0, 0.99]");
        }
    }

    /// The positions of a pass.
    pub(super) fn positions(&self, seed: u64, pass: usize) -> Vec<LossPoint> {
        let first = pass * self.count;
        let draws = (first..first + self.count).map(|draw| draw as u32);
        draws.map(|draw| LossPoint::EachRow { seed, draw }).collect()
    }

    /// The noise level of the row with the address `row`.
    pub(super) fn sigma(&self, seed: u64, row: u64, draw: u32) -> f64 {
        let mut draws = Stream::new(seed, Purpose::Timesteps).at(row, draw);
        1.0 - match self.strategy {
            RowTimeSampling::Uniform => self.of_uniform(draws.uniform()),
            RowTimeSampling::LogitNormal => self.of_normal(draws.normal()),
        }
    }

    /// The fraction of a number in `[0, 1)`.
    fn of_uniform(&self, unit: f64) -> f64 {
        let [lo, hi] = self.range;
        shifted(lo + unit * (hi - lo), self.shift)
    }

    /// The fraction of a standard normal number. The ends, where nothing is left to learn, are cut off as Flow-Factory does.
    fn of_normal(&self, z: f64) -> f64 {
        let [lo, hi] = self.range;
        let unit = 1.0 / (1.0 + libm::exp(-z));
        lo + shifted(unit, self.shift).clamp(0.01, 1.0 - 1e-6) * (hi - lo)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(strategy: RowTimeSampling, range: [f64; 2]) -> RowTimesConfig {
        RowTimesConfig {
            strategy,
            shift: 3.0,
            range,
            ..RowTimesConfig::default()
        }
    }

    #[test]
    fn fractions_are_those_of_the_formulas() {
        let uniform = times(RowTimeSampling::Uniform, [0.0, 1.0]);
        for (unit, expected) in [(0.1, 0.25), (0.5, 0.75), (0.9, 27.0 / 28.0)] {
            assert!((uniform.of_uniform(unit) - expected).abs() < 1e-12, "{unit}");
        }
        let normal = times(RowTimeSampling::LogitNormal, [0.0, 0.99]);
        for (z, expected) in [(-1.0, 0.519_386_8), (0.0, 0.742_5), (1.0, 0.881_860_5)] {
            assert!((normal.of_normal(z) - expected).abs() < 1e-7, "{z}");
        }
    }

    #[test]
    fn rows_and_draws_have_times_of_their_own_within_the_range() {
        for strategy in [RowTimeSampling::Uniform, RowTimeSampling::LogitNormal] {
            let times = times(strategy, [0.2, 0.7]);
            let mut sigmas: Vec<f64> = (0..200)
                .flat_map(|row| (0..2).map(move |draw| (row, draw)))
                .map(|(row, draw)| times.sigma(5, row, draw))
                .collect();
            assert_eq!(times.sigma(5, 17, 1), sigmas[35]);
            assert_ne!(times.sigma(6, 17, 1), sigmas[35]);
            // With a shift of 3, fractions of 0.2 and 0.7 become 3/7 and 7/8; the logit-normal ones stay within the range.
            let (least, most) = match strategy {
                RowTimeSampling::Uniform => (1.0 / 8.0, 4.0 / 7.0),
                RowTimeSampling::LogitNormal => (0.3, 0.8),
            };
            assert!(
                sigmas
                    .iter()
                    .all(|sigma| (least - 1e-9..=most + 1e-9).contains(sigma)),
                "{sigmas:?}"
            );
            sigmas.sort_by(f64::total_cmp);
            sigmas.dedup();
            assert_eq!(sigmas.len(), 400);
        }
    }
}
