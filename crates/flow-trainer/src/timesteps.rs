//! At which sigmas the forward-process losses (DiffusionNFT and its relatives) are evaluated.
//!
//! Source: Flow-Factory `utils/noise_schedule.py`, lines 46 to 280. The range is a fraction `f` of the way from noise
//! to data, `sigma = 1 - f`; the shift acts on `f`, so a shift above 1 favours the data side. All samples of a batch
//! share their sigmas.
//!
//! One departure: the original's discrete strategies can repeat an index and never draw the last one. Here the draw is
//! systematic (one uniform offset for equal strata): no index repeats, and every index is equally likely.

use flow_core::rng::Draws;
use serde::{Deserialize, Serialize};

use crate::scheduler::SigmaGrid;

/// How sigmas are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum TimestepStrategy {
    /// Stratified and uniform in `f`, then shifted, in random order.
    Uniform {
        /// Shift of the fraction; 1 for none.
        shift: f64,
    },
    /// Stratified logit-normal, shifted, brought into the range, in random order (Esser et al. 2024, arXiv 2403.03206).
    LogitNormal {
        /// Mean of the logit.
        mean: f64,
        /// Standard deviation of the logit.
        std: f64,
        /// Shift of the fraction; 1 for none.
        shift: f64,
    },
    /// Stratified over the sampler's own steps that lie in the range, from noise to data.
    Discrete,
    /// As `Discrete`, with the noisiest step of the range always present.
    DiscreteWithInit,
    /// As `Discrete`, without the noisiest step of the range.
    DiscreteWithoutInit,
}

/// The part of the way from noise (0) to data (1) that is trained.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TimestepRange {
    low: f64,
    high: f64,
}

impl TimestepRange {
    /// Fractions `low` to `high` of the way from noise to data: sigmas from `1 - low` down to `1 - high`.
    ///
    /// # Errors
    /// A message, unless `0 <= low < high <= 1`.
    pub fn new(low: f64, high: f64) -> Result<Self, String> {
        if (0.0..1.0).contains(&low) && low < high && high <= 1.0 {
            Ok(Self { low, high })
        } else {
            Err(format!(
                "timestep range [{low}, {high}] must satisfy 0 <= low < high <= 1; it is a fraction of the way from \
                 noise to data, and [0, 0.9] trains sigmas from 1 to 0.1"
            ))
        }
    }

    /// The largest and the smallest sigma of the range, before any shift.
    pub fn sigmas(&self) -> (f64, f64) {
        (1.0 - self.low, 1.0 - self.high)
    }

    /// The sigmas of a grid's steps that lie in the range, falling.
    fn steps_of(&self, grid: &SigmaGrid) -> Vec<f64> {
        let (most, least) = self.sigmas();
        // The original's tolerance of 1e-3 in units of the timestep: a step on the border is inside.
        let tolerance = 1e-6;
        let inside = least - tolerance..=most + tolerance;
        grid.sigmas()[..grid.steps()]
            .iter()
            .copied()
            .filter(|sigma| inside.contains(sigma))
            .collect()
    }
}

/// Draws the sigmas of one pass over a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct TimestepSampler {
    strategy: TimestepStrategy,
    count: usize,
    range: TimestepRange,
    /// For discrete strategies: the sigmas to choose from, falling.
    candidates: Vec<f64>,
}

impl TimestepSampler {
    /// A sampler of `count` sigmas. Discrete strategies choose among the steps of `grid`.
    ///
    /// # Errors
    /// A message, if `count` is 0, a parameter is out of range, or `grid` has fewer than `count` steps to choose from.
    pub fn new(
        strategy: TimestepStrategy,
        count: usize,
        range: TimestepRange,
        grid: &SigmaGrid,
    ) -> Result<Self, String> {
        if count == 0 {
            return Err("the number of training timesteps is 0; use at least 1".into());
        }
        let mut candidates = Vec::new();
        match strategy {
            TimestepStrategy::Uniform { shift } => check_shift(shift)?,
            TimestepStrategy::LogitNormal { mean, std, shift } => {
                check_shift(shift)?;
                if !(mean.is_finite() && std.is_finite() && std > 0.0) {
                    return Err(format!(
                        "logit-normal timesteps need a finite mean and a positive standard deviation; got mean {mean} \
                         and std {std}"
                    ));
                }
            }
            _ => {
                let (most, least) = range.sigmas();
                candidates = range.steps_of(grid);
                if strategy == TimestepStrategy::DiscreteWithoutInit && !candidates.is_empty() {
                    candidates.remove(0);
                }
                if candidates.len() < count {
                    return Err(format!(
                        "{count} training timesteps are asked for, but {} of the {} sampling steps lie between sigma \
                         {most} and {least}{}; ask for fewer, or widen the timestep range",
                        candidates.len(),
                        grid.steps(),
                        if strategy == TimestepStrategy::DiscreteWithoutInit {
                            " after leaving out the first"
                        } else {
                            ""
                        },
                    ));
                }
            }
        }
        Ok(Self {
            strategy,
            count,
            range,
            candidates,
        })
    }

    /// The sampler of `[algorithm.train_timesteps]`. A count of 0 there means as many as steps of `grid` lie in the
    /// range, less the first one where the strategy leaves it out. The logit is standard normal.
    ///
    /// # Errors
    /// As [`TimestepSampler::new`].
    pub fn from_config(
        config: &crate::algorithm::TrainTimestepsConfig,
        grid: &SigmaGrid,
    ) -> Result<Self, String> {
        use crate::algorithm::TimeSampling as Config;
        let shift = config.shift;
        let strategy = match config.strategy {
            Config::Uniform => TimestepStrategy::Uniform { shift },
            Config::LogitNormal => TimestepStrategy::LogitNormal {
                mean: 0.0,
                std: 1.0,
                shift,
            },
            Config::Discrete => TimestepStrategy::Discrete,
            Config::DiscreteWithInit => TimestepStrategy::DiscreteWithInit,
            Config::DiscreteWithoutInit => TimestepStrategy::DiscreteWithoutInit,
        };
        let range = TimestepRange::new(config.range[0], config.range[1])?;
        let left_out = usize::from(strategy == TimestepStrategy::DiscreteWithoutInit);
        // At least 1, so that an empty range is reported as such.
        let all = range.steps_of(grid).len().saturating_sub(left_out).max(1);
        Self::new(
            strategy,
            if config.count == 0 { all } else { config.count },
            range,
            grid,
        )
    }

    /// How many sigmas [`TimestepSampler::sample`] gives.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The sigmas of one pass, in the order to train them. A pure function of the state of `draws`.
    pub fn sample(&self, draws: &mut Draws) -> Vec<f64> {
        let TimestepRange { low, high } = self.range;
        match self.strategy {
            TimestepStrategy::Uniform { shift } => {
                let strata = self.shuffled_strata(draws);
                strata
                    .into_iter()
                    .map(|unit| 1.0 - shifted(low + unit * (high - low), shift))
                    .collect()
            }
            TimestepStrategy::LogitNormal { mean, std, shift } => {
                let strata = self.shuffled_strata(draws);
                let fraction = |unit: f64| {
                    let z = standard_normal_quantile(unit.clamp(1e-7, 1.0 - 1e-7));
                    let unit = 1.0 / (1.0 + libm::exp(-(mean + std * z)));
                    low + shifted(unit, shift).clamp(0.01, 1.0 - 1e-6) * (high - low)
                };
                strata.into_iter().map(|unit| 1.0 - fraction(unit)).collect()
            }
            TimestepStrategy::DiscreteWithInit => {
                let mut sigmas = vec![self.candidates[0]];
                sigmas.extend(systematic(&self.candidates[1..], self.count - 1, draws));
                sigmas
            }
            TimestepStrategy::Discrete | TimestepStrategy::DiscreteWithoutInit => {
                systematic(&self.candidates, self.count, draws)
            }
        }
    }

    /// One uniform number in each of `count` equal parts of `[0, 1)`, in random order.
    fn shuffled_strata(&self, draws: &mut Draws) -> Vec<f64> {
        let strata: Vec<f64> = (0..self.count)
            .map(|part| (part as f64 + draws.uniform()) / self.count as f64)
            .collect();
        draws
            .permutation(self.count)
            .into_iter()
            .map(|part| strata[part])
            .collect()
    }
}

fn check_shift(shift: f64) -> Result<(), String> {
    if shift.is_finite() && shift > 0.0 {
        Ok(())
    } else {
        Err(format!(
            "timestep shift {shift} is not a positive finite number; 1 means no shift"
        ))
    }
}

/// A fraction of the way from noise to data after a shift.
pub(crate) fn shifted(fraction: f64, shift: f64) -> f64 {
    shift * fraction / (1.0 + (shift - 1.0) * fraction)
}

/// `count` different values, each as likely as any other, in the order of `values`. `count` is at most their number.
fn systematic(values: &[f64], count: usize, draws: &mut Draws) -> Vec<f64> {
    // Fixed point with 32 fractional bits: in floating point, a rounding could make two parts meet.
    let offset = u128::from(draws.next_u32());
    let index =
        |part: usize| (((part as u128) << 32 | offset) * values.len() as u128) / ((count as u128) << 32);
    (0..count).map(|part| values[index(part) as usize]).collect()
}

/// The z below which a standard normal variable falls with probability `p`, in `(0, 1)`, by bisection of `erfc`.
pub(crate) fn standard_normal_quantile(p: f64) -> f64 {
    let (mut low, mut high) = (-8.0, 8.0);
    // 60 halvings of 16 leave less than the spacing of f64 around 1.
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        let below = 0.5 * libm::erfc(-middle / std::f64::consts::SQRT_2);
        if below < p {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}
