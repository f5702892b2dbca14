//! Forecasts: how an answer is made of features that were computed.
//!
//! Every forecast here is a linear combination of what is kept, so a forecast is its weights: host numbers in f64 that
//! depend on step numbers and noise levels only. One operation, [`FeatureCacheOps::assemble`](flow_core::FeatureCacheOps::assemble), applies them.

use crate::Moment;

/// A rule for the weights of what is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Forecast {
    /// The latest features as they are.
    Latest,
    /// The Taylor series around the latest step with differences for derivatives: `F(s + k) = Σ_j F⁽ʲ⁾ kʲ / j!` with
    /// `F⁽ʲ⁺¹⁾ = (F⁽ʲ⁾ - F⁽ʲ⁾ of the computed step before) / gap` (TaylorSeer, Liu et al. 2025, arXiv:2503.06923; as in
    /// diffusers `hooks/taylorseer_cache.py`). As published it is exact on straight lines only: a backward difference
    /// is the derivative in the middle of the gap, not at its end.
    Taylor {
        /// Highest derivative.
        order: usize,
    },
    /// The polynomial in the noise level through the latest features, by divided differences: exact on polynomials up
    /// to `order`, whatever the gaps.
    Newton {
        /// Highest power.
        order: usize,
    },
    /// `F_0 + weight · (F_0 - F_1)` of the two latest computed (FasterCache, Lv et al. 2024, arXiv:2410.19355).
    Extrapolated {
        /// The factor of the difference.
        weight: f64,
    },
    /// Two parts of the latest features, each with its weight.
    Parts([f64; 2]),
}

impl Forecast {
    /// Most features that are kept.
    pub fn depth(&self) -> usize {
        match self {
            Self::Latest => 1,
            Self::Taylor { order } | Self::Newton { order } => order + 1,
            Self::Extrapolated { .. } | Self::Parts(_) => 2,
        }
    }

    /// One weight for each moment of `history` (latest first, at least one) to forecast `now`. With fewer features than
    /// its [`depth`](Self::depth) a forecast is of a lower order.
    pub fn weights(&self, now: &Moment, history: &[Moment]) -> Vec<f64> {
        match self {
            Self::Latest => vec![1.0],
            Self::Taylor { order } => taylor(*order, now, history),
            Self::Newton { order } => newton(*order, now, history),
            Self::Extrapolated { weight } if history.len() > 1 => vec![1.0 + weight, -weight],
            Self::Extrapolated { .. } => vec![1.0],
            Self::Parts(weights) => weights.to_vec(),
        }
    }
}

fn taylor(order: usize, now: &Moment, history: &[Moment]) -> Vec<f64> {
    let count = history.len().min(order + 1);
    let step = |index: usize| f64::from(history[index].step);
    let k = f64::from(now.step) - step(0);
    // Row `i` of the ladder: the weights of F⁽ʲ⁾ as of snapshot `i`.
    let mut ladder: Vec<Vec<f64>> = (0..count)
        .map(|of| (0..count).map(|i| f64::from(u8::from(i == of))).collect())
        .collect();
    let (mut weights, mut factor) = (ladder[0].clone(), 1.0);
    for j in 1..count {
        ladder = (0..count - j)
            .map(|i| {
                let gap = step(i) - step(i + 1);
                let pairs = ladder[i].iter().zip(&ladder[i + 1]);
                pairs.map(|(new, old)| (new - old) / gap).collect()
            })
            .collect();
        factor *= k / j as f64;
        for (weight, derivative) in weights.iter_mut().zip(&ladder[0]) {
            *weight += factor * derivative;
        }
    }
    weights
}

/// Divided differences of the unit vectors: `P(σ) = Σ_j F[σ_0 … σ_j] Π_{m<j} (σ - σ_m)`.
fn newton(order: usize, now: &Moment, history: &[Moment]) -> Vec<f64> {
    let count = history.len().min(order + 1);
    let mut differences: Vec<Vec<f64>> = (0..count)
        .map(|of| (0..count).map(|i| f64::from(u8::from(i == of))).collect())
        .collect();
    let (mut weights, mut factor) = (differences[0].clone(), 1.0);
    for j in 1..count {
        differences = (0..count - j)
            .map(|i| {
                let gap = history[i].sigma - history[i + j].sigma;
                let pairs = differences[i].iter().zip(&differences[i + 1]);
                pairs.map(|(new, old)| (new - old) / gap).collect()
            })
            .collect();
        factor *= now.sigma - history[j - 1].sigma;
        for (weight, difference) in weights.iter_mut().zip(&differences[0]) {
            *weight += factor * difference;
        }
    }
    weights
}
