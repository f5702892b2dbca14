//! Means with intervals, and differences between paired measurements.
//!
//! A reward is reported with its 95 % confidence interval, and a gain as the interval of the per-prompt difference,
//! because the same held-out prompts are measured before and after. All sums run in f64 in the order given.
//!
//! Where a value is bounded, so is its mean, and an interval that reaches beyond the bound is cut there
//! ([`Interval::within`]). The cut takes away only what the mean cannot be, so the interval covers the mean as often as before.

use serde::{Deserialize, Serialize};

/// How an interval is made.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IntervalMethod {
    /// mean ± t·SE with Student's t on n−1 degrees of freedom: right for few values too (three seeds).
    StudentT,
    /// mean ± 1.96·SE. Too narrow for fewer than about 30 values.
    Normal,
    /// Percentile bootstrap of the mean.
    Bootstrap {
        /// Number of resamples (at least 1).
        resamples: u32,
        /// Seed; the same seed and values give the same interval.
        seed: u64,
    },
}

/// Why a statistic could not be computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StatisticsError {
    /// There is nothing to summarise.
    #[error("no values to take the mean of")]
    Empty,
    /// A value is NaN or infinite.
    #[error("value {index} is {value}; statistics need finite values")]
    NotFinite {
        /// Position in the input.
        index: usize,
        /// The value.
        value: f64,
    },
    /// Paired measurements must cover the same prompts.
    #[error("paired difference needs the same prompts on both sides, got {before} before and {after} after")]
    Unpaired {
        /// Number of values before.
        before: usize,
        /// Number of values after.
        after: usize,
    },
    /// A bootstrap without resamples.
    #[error("bootstrap needs at least 1 resample")]
    NoResamples,
}

/// Between which ends a value lies by its nature, for example a probability between 0 and 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ValueRange {
    /// The smallest value; `None` where there is no bound.
    pub low: Option<f64>,
    /// The largest value; `None` where there is no bound.
    pub high: Option<f64>,
}

impl ValueRange {
    /// From `low` to `high`; an end that is not finite is no bound.
    pub fn new(low: f64, high: f64) -> Self {
        let [low, high] = [low, high].map(|end| Some(end).filter(|end| end.is_finite()));
        Self { low, high }
    }

    /// The range of the difference of two values of this range.
    #[must_use]
    pub fn of_differences(self) -> Self {
        let width = self.high.zip(self.low).map(|(high, low)| high - low);
        Self {
            low: width.map(|width| -width),
            high: width,
        }
    }

    /// Whether there is no bound.
    pub fn is_unbounded(&self) -> bool {
        self.low.is_none() && self.high.is_none()
    }
}

/// Mean and 95 % confidence interval. With a single value the spread is unknown: `low` and `high` are `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Number of values.
    pub count: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard deviation of the values (n−1 in the denominator); `None` for one value.
    pub standard_deviation: Option<f64>,
    /// Standard error of the mean; `None` for one value.
    pub standard_error: Option<f64>,
    /// Lower end of the 95 % interval.
    pub low: Option<f64>,
    /// Upper end of the 95 % interval.
    pub high: Option<f64>,
    /// How the interval was made.
    pub method: IntervalMethod,
    /// What the interval was cut to.
    #[serde(default, skip_serializing_if = "ValueRange::is_unbounded")]
    pub range: ValueRange,
}

impl Interval {
    /// Cuts the ends to the range of what was measured. The interval keeps its mean: a mean beyond the range shows that the range
    /// is wrong, and the cut then ends at the mean.
    #[must_use]
    pub fn within(mut self, range: ValueRange) -> Self {
        let above = |end: f64| range.low.map_or(end, |low| end.max(low)).min(self.mean);
        let below = |end: f64| range.high.map_or(end, |high| end.min(high)).max(self.mean);
        (self.low, self.high) = (self.low.map(above), self.high.map(below));
        self.range = range;
        self
    }

    /// `0.712 [0.690, 0.734]` with `digits` decimals; without a spread, `0.712 (n = 1)`.
    pub fn text(&self, digits: usize) -> String {
        match (self.low, self.high) {
            (Some(low), Some(high)) => format!("{:.digits$} [{low:.digits$}, {high:.digits$}]", self.mean),
            _ => format!("{:.digits$} (n = {})", self.mean, self.count),
        }
    }
}

/// The mean of `after − before` over pairs, with its interval and the signs of the differences.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairedDifference {
    /// Interval of the mean difference.
    pub interval: Interval,
    /// Pairs whose value rose.
    pub improved: usize,
    /// Pairs whose value stayed exactly the same.
    pub unchanged: usize,
    /// Pairs whose value fell.
    pub worsened: usize,
}

impl PairedDifference {
    /// Cuts the interval to what differences of values of `range` can be.
    #[must_use]
    pub fn of_values_within(mut self, range: ValueRange) -> Self {
        self.interval = self.interval.within(range.of_differences());
        self
    }

    /// Whether the 95 % interval lies wholly above or below 0.
    pub fn excludes_zero(&self) -> bool {
        matches!((self.interval.low, self.interval.high), (Some(low), Some(high)) if low > 0.0 || high < 0.0)
    }
}

/// Mean and 95 % interval of `values`.
///
/// # Errors
/// No values, a value that is not finite, or a bootstrap without resamples.
pub fn mean_interval(values: &[f64], method: IntervalMethod) -> Result<Interval, StatisticsError> {
    if values.is_empty() {
        return Err(StatisticsError::Empty);
    }
    if let Some(index) = values.iter().position(|value| !value.is_finite()) {
        return Err(StatisticsError::NotFinite {
            index,
            value: values[index],
        });
    }
    if let IntervalMethod::Bootstrap { resamples: 0, .. } = method {
        return Err(StatisticsError::NoResamples);
    }
    let count = values.len();
    let mean = values.iter().sum::<f64>() / count as f64;
    if count == 1 {
        let none = None;
        return Ok(Interval {
            count,
            mean,
            standard_deviation: none,
            standard_error: none,
            low: none,
            high: none,
            method,
            range: ValueRange::default(),
        });
    }
    let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
    let standard_deviation = (squares / (count - 1) as f64).sqrt();
    let standard_error = standard_deviation / (count as f64).sqrt();
    let (low, high) = match method {
        IntervalMethod::StudentT => around(mean, student_t_quantile_95(count as u64 - 1) * standard_error),
        IntervalMethod::Normal => around(mean, NORMAL_QUANTILE_95 * standard_error),
        IntervalMethod::Bootstrap { resamples, seed } => bootstrap(values, resamples, seed),
    };
    let [standard_deviation, standard_error, low, high] =
        [standard_deviation, standard_error, low, high].map(Some);
    Ok(Interval {
        count,
        mean,
        standard_deviation,
        standard_error,
        low,
        high,
        method,
        range: ValueRange::default(),
    })
}

/// Mean difference `after − before` over pairs: entry i of both slices must be the same prompt.
///
/// # Errors
/// Slices of different length, and as [`mean_interval`].
pub fn paired_difference(
    before: &[f64],
    after: &[f64],
    method: IntervalMethod,
) -> Result<PairedDifference, StatisticsError> {
    if before.len() != after.len() {
        return Err(StatisticsError::Unpaired {
            before: before.len(),
            after: after.len(),
        });
    }
    let differences: Vec<f64> = before
        .iter()
        .zip(after)
        .map(|(before, after)| after - before)
        .collect();
    let count = |keep: fn(f64) -> bool| differences.iter().filter(|difference| keep(**difference)).count();
    Ok(PairedDifference {
        interval: mean_interval(&differences, method)?,
        improved: count(|difference| difference > 0.0),
        unchanged: count(|difference| difference == 0.0),
        worsened: count(|difference| difference < 0.0),
    })
}

/// Two-sided 95 % quantile of the normal distribution.
const NORMAL_QUANTILE_95: f64 = 1.959_963_984_540_054;

fn around(mean: f64, half_width: f64) -> (f64, f64) {
    (mean - half_width, mean + half_width)
}

/// t with P(|T| ≤ t) = 0.95 for Student's distribution with `freedom` degrees of freedom, by bisection.
pub fn student_t_quantile_95(freedom: u64) -> f64 {
    // From here on t differs from the normal quantile by less than 3e-5.
    if freedom > 100_000 {
        return NORMAL_QUANTILE_95;
    }
    let (mut low, mut high) = (NORMAL_QUANTILE_95, 13.0);
    for _ in 0..80 {
        let middle = 0.5 * (low + high);
        if student_t_within(middle, freedom) < 0.95 {
            low = middle
        } else {
            high = middle
        }
    }
    0.5 * (low + high)
}

/// P(|T| ≤ t): the finite series for whole degrees of freedom, Abramowitz & Stegun, Handbook of Mathematical
/// Functions, 26.7.3 (odd) and 26.7.4 (even).
fn student_t_within(t: f64, freedom: u64) -> f64 {
    let angle = (t / (freedom as f64).sqrt()).atan();
    let (sine, cosine) = angle.sin_cos();
    let odd = freedom % 2 == 1;
    // Terms: odd  cos + 2/3 cos³ + 2·4/(3·5) cos⁵ …, up to cos^(freedom − 2);
    //        even 1 + 1/2 cos² + 1·3/(2·4) cos⁴ …, up to the same power.
    let (mut power, mut term) = if odd { (1, cosine) } else { (0, 1.0) };
    let mut sum = 0.0;
    while power + 2 <= freedom {
        sum += term;
        power += 2;
        term *= cosine * cosine * (power - 1) as f64 / power as f64;
    }
    if odd {
        std::f64::consts::FRAC_2_PI * (angle + sine * sum)
    } else {
        sine * sum
    }
}

/// 2.5 % and 97.5 % quantiles of the means of resamples drawn with replacement.
fn bootstrap(values: &[f64], resamples: u32, seed: u64) -> (f64, f64) {
    let count = values.len() as u64;
    let mut means: Vec<f64> = (0..u64::from(resamples))
        .map(|resample| {
            let draw = |index| {
                let bits = mix(seed ^ mix(resample.wrapping_mul(count).wrapping_add(index)));
                // Multiply-shift maps 64 random bits onto 0..count with a bias below count / 2⁶⁴.
                values[((u128::from(bits) * u128::from(count)) >> 64) as usize]
            };
            (0..count).map(draw).sum::<f64>() / count as f64
        })
        .collect();
    means.sort_by(f64::total_cmp);
    let quantile = |fraction: f64| {
        let position = fraction * (means.len() - 1) as f64;
        let below = position.floor() as usize;
        let above = (below + 1).min(means.len() - 1);
        means[below] + (means[above] - means[below]) * (position - below as f64)
    };
    (quantile(0.025), quantile(0.975))
}

/// The SplitMix64 finaliser (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014): draws are a
/// function of (seed, position) and of nothing else.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
