//! Which of many cheaply sampled candidates are worth training on, and what choosing them did.
//!
//! The score of a candidate is the weighted sum of its rewards, `s = Σ_k w_k r_k`, in f64. A group's candidates are ordered by it from the
//! best to the worst, equal ones by their numbers. Taking the best and the worst follows Xu et al. 2025 (arXiv:2504.13818): of all
//! choices of K rewards, one of the largest variance consists of some of the best and the rest of the worst.

use crate::advantage::moments;
use serde::{Deserialize, Serialize};

/// Which candidates of a group are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeepRule {
    /// The best half, the larger one of an odd number, and the worst half.
    Extremes,
    /// The best.
    Best,
    /// Evenly spaced in order, best and worst among them.
    Spread,
}

impl From<flow_config::KeepRule> for KeepRule {
    fn from(rule: flow_config::KeepRule) -> Self {
        match rule {
            flow_config::KeepRule::Extremes => Self::Extremes,
            flow_config::KeepRule::Best => Self::Best,
            flow_config::KeepRule::Spread => Self::Spread,
        }
    }
}

impl KeepRule {
    /// The place in the order, from the best, of the `index`-th that is kept of `candidates`.
    fn place(self, index: usize, count: usize, candidates: usize) -> usize {
        match self {
            Self::Best => index,
            Self::Extremes if index < count.div_ceil(2) => index,
            Self::Extremes => candidates - count + index,
            Self::Spread => match count - 1 {
                0 => 0,
                // Rounded to the nearest, halves up.
                last => (2 * index * (candidates - 1) + last) / (2 * last),
            },
        }
    }

    /// The numbers of the `count` candidates that are kept of a group with these scores, ascending.
    ///
    /// # Panics
    /// If there are fewer candidates than are to be kept.
    pub fn kept(self, scores: &[f64], count: usize) -> Vec<usize> {
        assert!(
            count <= scores.len(),
            "{count} of {} candidates cannot be kept",
            scores.len()
        );
        let mut order: Vec<usize> = (0..scores.len()).collect();
        // Stable, so that equal scores stay in the order of their numbers. Adding 0 makes -0 equal to it.
        order.sort_by(|a, b| (scores[*b] + 0.0).total_cmp(&(scores[*a] + 0.0)));
        let mut kept: Vec<usize> = (0..count)
            .map(|index| order[self.place(index, count, scores.len())])
            .collect();
        kept.sort_unstable();
        kept
    }

    /// As [`kept`](Self::kept), of groups of `candidates` one after another; numbers count over all of them.
    pub fn kept_of_groups(self, scores: &[f64], candidates: usize, count: usize) -> Vec<usize> {
        let groups = scores.chunks(candidates).enumerate();
        let of_group = |(group, scores): (usize, &[f64])| {
            let kept = self.kept(scores, count);
            kept.into_iter()
                .map(move |number| group * candidates + number)
                .collect::<Vec<_>>()
        };
        groups.flat_map(of_group).collect()
    }
}

/// The weighted sum of rewards of each sample: `columns` has a value per sample for each weight.
pub fn scores(weights: &[f64], columns: &[Vec<f32>]) -> Vec<f64> {
    let samples = columns.first().map_or(0, Vec::len);
    let score = |sample: usize| -> f64 {
        let terms = weights.iter().zip(columns);
        terms
            .map(|(weight, column)| weight * f64::from(column[sample]))
            .sum()
    };
    (0..samples).map(score).collect()
}

/// What choosing candidates did in an iteration. Rewards are weighted sums.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExplorationSummary {
    /// Candidates of each group.
    pub candidates: usize,
    /// Mean reward of the cheap images of all candidates.
    pub reward_of_candidates: f64,
    /// Mean reward of the cheap images of those that were kept.
    pub reward_of_kept: f64,
    /// Mean over those kept of `|exact - cheap|`.
    pub reward_difference: f64,
    /// Mean over groups of [`rank_correlation`] between cheap and exact rewards of those kept; none where no group has one.
    pub rank_correlation: Option<f64>,
}

impl ExplorationSummary {
    /// Of the cheap scores of all candidates, the numbers of those kept, and the exact scores of these, group by group.
    ///
    /// # Panics
    /// If there is no candidate, or none kept.
    pub fn new((cheap, candidates): (&[f64], usize), kept: &[usize], exact: &[f64]) -> Self {
        let cheap_of_kept: Vec<f64> = kept.iter().map(|number| cheap[*number]).collect();
        let groups = (cheap.len() / candidates).max(1);
        let group_size = (kept.len() / groups).max(1);
        let pairs = cheap_of_kept.chunks(group_size).zip(exact.chunks(group_size));
        let correlations: Vec<f64> = pairs
            .filter_map(|(cheap, exact)| rank_correlation(cheap, exact))
            .collect();
        let difference: f64 = (cheap_of_kept.iter().zip(exact))
            .map(|(cheap, exact)| (exact - cheap).abs())
            .sum();
        Self {
            candidates,
            reward_of_candidates: moments(cheap).0,
            reward_of_kept: moments(&cheap_of_kept).0,
            reward_difference: difference / kept.len() as f64,
            rank_correlation: (!correlations.is_empty()).then(|| moments(&correlations).0),
        }
    }
}

/// Spearman's rank correlation: Pearson's correlation of the ranks, where equal values have the mean of their ranks (Spearman 1904).
/// None where all values of a side are equal.
pub fn rank_correlation(a: &[f64], b: &[f64]) -> Option<f64> {
    let (a, b) = (ranks(a), ranks(b));
    let mean = (a.len() as f64 + 1.0) / 2.0;
    let sum = |x: &[f64], y: &[f64]| -> f64 {
        let pairs = x.iter().zip(y);
        pairs.map(|(x, y)| (x - mean) * (y - mean)).sum()
    };
    let size = (sum(&a, &a) * sum(&b, &b)).sqrt();
    (size > 0.0).then(|| sum(&a, &b) / size)
}

/// Ranks from 1, the mean of them for equal values.
pub(crate) fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |value: &f64| {
        let below = values.iter().filter(|other| *other < value).count();
        let equal = values.iter().filter(|other| *other == value).count();
        below as f64 + (equal as f64 + 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}
