//! Advantages: how much better a sample is than the others of its group.
//!
//! Source: Flow-Factory `advantage/advantage_processor.py` (a0b2bc5, lines 314 to 470), with population standard
//! deviations and a floor under them. flow_grpo instead adds 1e-4 to the standard deviation and keeps a history per
//! prompt (`stat_tracking.py`); that is not done here. Statistics are computed in f64 in the order of the samples, and
//! rounded to f32 once.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How several rewards become one advantage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aggregation {
    /// `R = sum_k w_k r_k`, then `(R - group mean) / std`.
    Sum,
    /// Each reward is normalised within its group, and with [`AdvantageOptions::global_std`] the weighted sum over the whole batch (GDPO,
    /// arXiv 2601.05242).
    /// A reward of large spread cannot drown the others.
    Gdpo,
}

/// Options of [`compute_advantages`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdvantageOptions {
    /// How rewards are combined.
    pub aggregation: Aggregation,
    /// For [`Aggregation::Sum`]: divide by the standard deviation of the whole batch instead of the group's. For [`Aggregation::Gdpo`]:
    /// normalise the weighted sum over the whole batch; without it that sum is the advantage, as in Flow-Factory's main branch.
    pub global_std: bool,
    /// Standard deviations below this are replaced by it.
    pub std_floor: f64,
}

impl From<&flow_config::AdvantageConfig> for AdvantageOptions {
    fn from(config: &flow_config::AdvantageConfig) -> Self {
        Self {
            aggregation: match config.aggregation {
                flow_config::Aggregation::Sum => Aggregation::Sum,
                flow_config::Aggregation::Gdpo => Aggregation::Gdpo,
            },
            global_std: config.global_std,
            std_floor: config.std_floor,
        }
    }
}

impl Default for AdvantageOptions {
    fn default() -> Self {
        Self {
            aggregation: Aggregation::Gdpo,
            global_std: true,
            std_floor: 1e-6,
        }
    }
}

/// One reward of every sample.
#[derive(Debug, Clone, Copy)]
pub struct RewardColumn<'a> {
    /// Name in messages and metrics.
    pub name: &'a str,
    /// Weight in the sum.
    pub weight: f64,
    /// One value per sample.
    pub values: &'a [f32],
}

/// Largest weight and smallest floor: with f32 rewards, no square of a weighted or normalised reward leaves f64.
const MOST_WEIGHT: f64 = 1e30;
const LEAST_FLOOR: f64 = 1e-30;

/// Rewards or groups that have no advantages.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AdvantageError {
    /// No reward at all.
    #[error("there is no reward; configure at least one")]
    NoRewards,
    /// No sample at all.
    #[error("there are no samples to compare")]
    NoSamples,
    /// A reward that was not given for every sample.
    #[error("reward `{reward}` has {given} values for {samples} samples")]
    Length {
        /// Name of the reward.
        reward: String,
        /// Its number of values.
        given: usize,
        /// Number of samples.
        samples: usize,
    },
    /// A reward that is not a number. Training on it would spoil the weights.
    #[error("reward `{reward}` of sample {sample} (group {group}) is {value}; rewards must be finite")]
    NotFinite {
        /// Name of the reward.
        reward: String,
        /// Index of the sample.
        sample: usize,
        /// Its group.
        group: u64,
        /// The value.
        value: f32,
    },
    /// A weight that is not a number, or so large that statistics would overflow.
    #[error(
        "the weight of reward `{reward}` is {weight}; weights must be finite and at most {MOST_WEIGHT:e} in size"
    )]
    Weight {
        /// Name of the reward.
        reward: String,
        /// The weight.
        weight: f64,
    },
    /// A sample without anything to compare it with.
    #[error(
        "group {group} has one sample only, so its advantage would always be 0; use a group size of at least 2"
    )]
    LoneSample {
        /// The group.
        group: u64,
    },
    /// A floor that does not keep a division safe.
    #[error(
        "the floor under standard deviations is {floor}; it must be finite and at least {LEAST_FLOOR:e}; 1e-6 is usual"
    )]
    Floor {
        /// The value given.
        floor: f64,
    },
}

/// Mean and spread of one reward, over samples and within groups. Units of the reward.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RewardMetrics {
    /// Name of the reward.
    pub name: String,
    /// Mean over samples.
    pub mean: f64,
    /// Population standard deviation over samples.
    pub std: f64,
    /// Mean over groups of the standard deviation within a group.
    pub group_std_mean: f64,
    /// Largest standard deviation within a group.
    pub group_std_max: f64,
    /// Smallest standard deviation within a group.
    pub group_std_min: f64,
    /// Standard deviation over groups of the group's mean.
    pub group_mean_std: f64,
    /// Share of groups whose standard deviation is at or below the floor: they teach nothing.
    pub zero_std_ratio: f64,
}

/// What to log about a batch of rewards and advantages.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AdvantageMetrics {
    /// One entry per reward, in the order given.
    pub rewards: Vec<RewardMetrics>,
    /// The weighted sum of the rewards, under the name `total`.
    pub total: RewardMetrics,
    /// Number of groups.
    pub groups: usize,
    /// Mean of the absolute advantages, before any clamp.
    pub advantage_abs_mean: f64,
    /// Smallest advantage.
    pub advantage_min: f64,
    /// Largest advantage.
    pub advantage_max: f64,
}

/// The result of [`compute_advantages`].
#[derive(Debug, Clone, PartialEq)]
pub struct Advantages {
    /// One per sample, not clamped.
    pub values: Vec<f32>,
    /// What to log.
    pub metrics: AdvantageMetrics,
}

/// Advantages of a batch of samples.
///
/// `groups[i]` is the integer id of sample `i`'s group (its prompt at this iteration); ids are compared as integers and
/// members need not be neighbours.
///
/// # Errors
/// If there is no sample or reward, lengths differ, a reward, weight or floor is not finite or absurdly large or small,
/// or a group has a single member.
pub fn compute_advantages(
    rewards: &[RewardColumn<'_>],
    groups: &[u64],
    options: &AdvantageOptions,
) -> Result<Advantages, AdvantageError> {
    check(rewards, groups, options)?;
    let members = members_by_group(groups)?;
    let floor = options.std_floor;
    let columns: Vec<Vec<f64>> = rewards
        .iter()
        .map(|reward| reward.values.iter().map(|&value| f64::from(value)).collect())
        .collect();
    let total = weighted_sum(rewards, &columns, groups.len());

    let advantages: Vec<f64> = match options.aggregation {
        Aggregation::Sum => {
            let batch_std = options.global_std.then(|| moments(&total).1.max(floor));
            within_groups(&total, &members, |std| batch_std.unwrap_or(std.max(floor)))
        }
        Aggregation::Gdpo => {
            let normalised: Vec<Vec<f64>> = columns
                .iter()
                .map(|column| within_groups(column, &members, |std| std.max(floor)))
                .collect();
            let combined = weighted_sum(rewards, &normalised, groups.len());
            if options.global_std {
                let (mean, std) = moments(&combined);
                combined
                    .iter()
                    .map(|value| (value - mean) / std.max(floor))
                    .collect()
            } else {
                combined
            }
        }
    };
    let values: Vec<f32> = advantages.iter().map(|&value| value as f32).collect();

    let count = advantages.len() as f64;
    let metrics = AdvantageMetrics {
        rewards: rewards
            .iter()
            .zip(&columns)
            .map(|(reward, column)| reward_metrics(reward.name, column, &members, floor))
            .collect(),
        total: reward_metrics("total", &total, &members, floor),
        groups: members.len(),
        advantage_abs_mean: advantages.iter().map(|value| value.abs()).sum::<f64>() / count,
        advantage_min: advantages.iter().copied().fold(f64::INFINITY, f64::min),
        advantage_max: advantages.iter().copied().fold(f64::NEG_INFINITY, f64::max),
    };
    Ok(Advantages { values, metrics })
}

impl Advantages {
    /// Replaces the advantages, one per sample.
    pub(crate) fn replace(&mut self, values: Vec<f32>) {
        let wide = || values.iter().map(|value| f64::from(*value));
        self.metrics.advantage_abs_mean = wide().map(f64::abs).sum::<f64>() / values.len().max(1) as f64;
        self.metrics.advantage_min = wide().fold(f64::INFINITY, f64::min);
        self.metrics.advantage_max = wide().fold(f64::NEG_INFINITY, f64::max);
        self.values = values;
    }
}

fn check(
    rewards: &[RewardColumn<'_>],
    groups: &[u64],
    options: &AdvantageOptions,
) -> Result<(), AdvantageError> {
    let floor = options.std_floor;
    if !(floor >= LEAST_FLOOR && floor.is_finite()) {
        return Err(AdvantageError::Floor { floor });
    }
    if rewards.is_empty() {
        return Err(AdvantageError::NoRewards);
    }
    if groups.is_empty() {
        return Err(AdvantageError::NoSamples);
    }
    for &RewardColumn { name, weight, values } in rewards {
        let reward = || name.to_owned();
        if weight.is_nan() || weight.abs() > MOST_WEIGHT {
            return Err(AdvantageError::Weight {
                reward: reward(),
                weight,
            });
        }
        if values.len() != groups.len() {
            return Err(AdvantageError::Length {
                reward: reward(),
                given: values.len(),
                samples: groups.len(),
            });
        }
        if let Some(sample) = values.iter().position(|value| !value.is_finite()) {
            let (group, value) = (groups[sample], values[sample]);
            return Err(AdvantageError::NotFinite {
                reward: reward(),
                sample,
                group,
                value,
            });
        }
    }
    Ok(())
}

fn members_by_group(groups: &[u64]) -> Result<Vec<Vec<usize>>, AdvantageError> {
    let mut members: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (sample, &group) in groups.iter().enumerate() {
        members.entry(group).or_default().push(sample);
    }
    match members.iter().find(|(_, members)| members.len() == 1) {
        Some((&group, _)) => Err(AdvantageError::LoneSample { group }),
        None => Ok(members.into_values().collect()),
    }
}

fn weighted_sum(rewards: &[RewardColumn<'_>], columns: &[Vec<f64>], samples: usize) -> Vec<f64> {
    (0..samples)
        .map(|sample| {
            rewards
                .iter()
                .zip(columns)
                .map(|(reward, column)| reward.weight * column[sample])
                .sum()
        })
        .collect()
}

/// Mean and population standard deviation. The mean is taken around the first value, so that equal values have a
/// spread of exactly 0 rather than a rounding error that the floor would blow up.
pub(crate) fn moments(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let origin = values[0];
    let mean = origin + values.iter().map(|value| value - origin).sum::<f64>() / count;
    let variance = values
        .iter()
        .map(|value| (value - mean) * (value - mean))
        .sum::<f64>()
        / count;
    (mean, variance.sqrt())
}

fn gather(values: &[f64], members: &[usize]) -> Vec<f64> {
    members.iter().map(|&sample| values[sample]).collect()
}

/// `(value - group mean) / divisor(group standard deviation)`.
fn within_groups(values: &[f64], members: &[Vec<usize>], divisor: impl Fn(f64) -> f64) -> Vec<f64> {
    let mut normalised = vec![0.0; values.len()];
    for group in members {
        let (mean, std) = moments(&gather(values, group));
        for &sample in group {
            normalised[sample] = (values[sample] - mean) / divisor(std);
        }
    }
    normalised
}

fn reward_metrics(name: &str, values: &[f64], members: &[Vec<usize>], floor: f64) -> RewardMetrics {
    let (mean, std) = moments(values);
    let (group_means, group_stds): (Vec<f64>, Vec<f64>) = members
        .iter()
        .map(|group| moments(&gather(values, group)))
        .unzip();
    let silent = group_stds.iter().filter(|&&std| std <= floor).count();
    RewardMetrics {
        name: name.to_owned(),
        mean,
        std,
        group_std_mean: moments(&group_stds).0,
        group_std_max: group_stds.iter().copied().fold(0.0, f64::max),
        group_std_min: group_stds.iter().copied().fold(f64::INFINITY, f64::min),
        group_mean_std: moments(&group_means).1,
        zero_std_ratio: silent as f64 / members.len() as f64,
    }
}
