//! GARDO's gate: which images of an iteration are pulled back, and how many.
//!
//! Formulas as in flow_grpo `scripts/train_sd3_gardo.py` (94e23ee): ranks of all images of an iteration under the reward that is trained
//! and under others that judge; `u = rank - mean rank of the judges`; images are gated whose `u` is above the percentile `100 (1 - share)`
//! of those that are not negative. The share follows the mean of these.

use super::settings::{GateConfig, Suspects};
use crate::advantage::moments;
use crate::algorithm::Memory;
use crate::exploration::ranks;

/// Names under which the share of the last iteration and the mean uncertainties of the last ones are kept.
const SHARE: &str = "gate/share";
const UNCERTAINTIES: &str = "gate/uncertainties";

/// Which images are pulled back in an iteration.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Gate {
    /// 1 for each that is, 0 for the others.
    pub open: Vec<f32>,
    /// The share of suspects of which they are the most suspicious.
    pub share: f64,
    /// Mean uncertainty of the suspects, in ranks.
    pub uncertainty: f64,
}

/// How far the ranks of the trained reward and of the judges disagree about each image; positive for suspects. Equal rewards share the
/// mean of their ranks.
pub(super) fn uncertainty(trained: &[f64], judges: &[Vec<f64>], suspects: Suspects) -> Vec<f64> {
    let ranked: Vec<Vec<f64>> = judges.iter().map(|judge| ranks(judge)).collect();
    let ours = ranks(trained).into_iter().enumerate();
    ours.map(|(image, rank)| {
        let theirs: f64 = ranked.iter().map(|ranks| ranks[image]).sum();
        let above = rank - theirs / ranked.len().max(1) as f64;
        match suspects {
            Suspects::Overrated => above,
            Suspects::Underrated => -above,
        }
    })
    .collect()
}

/// The value below which `share` (0 to 1) of the values lie, between neighbours in a straight line, as numpy's `percentile` has it.
fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = share.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64)
}

impl Gate {
    /// The gate of an iteration whose images have these uncertainties.
    pub fn of(uncertainties: &[f64], config: &GateConfig, memory: &mut Memory) -> Self {
        let suspects: Vec<f64> = uncertainties.iter().copied().filter(|u| *u >= 0.0).collect();
        if suspects.is_empty() {
            // Nothing is learned of an iteration without any.
            let share = memory.get(SHARE).first().copied().unwrap_or(config.share);
            return Self {
                open: vec![0.0; uncertainties.len()],
                share,
                uncertainty: 0.0,
            };
        }
        let mean = moments(&suspects).0;
        let share = followed(mean, config, memory);
        let threshold = quantile(&suspects, 1.0 - share);
        let is_open = |u: &f64| f32::from(*u > threshold);
        Self {
            open: uncertainties.iter().map(is_open).collect(),
            share,
            uncertainty: mean,
        }
    }
}

impl Gate {
    /// The share of all images that are pulled back.
    pub fn fraction(&self) -> f64 {
        let open: f64 = self.open.iter().map(|open| f64::from(*open)).sum();
        open / self.open.len().max(1) as f64
    }

    /// What each image counts in a mean over all images that is to be the mean over those pulled back: 1 over their share, or 0.
    pub fn weights(&self) -> Vec<f32> {
        let fraction = self.fraction();
        let of_image = |open: &f32| if *open > 0.0 { (1.0 / fraction) as f32 } else { 0.0 };
        self.open.iter().map(of_image).collect()
    }
}

/// The share for a mean uncertainty: larger if that is above all of the window, smaller if it is below all.
fn followed(mean: f64, config: &GateConfig, memory: &mut Memory) -> f64 {
    let mut window = memory.get(UNCERTAINTIES).to_vec();
    let before = memory.get(SHARE).first().copied();
    let share = match before {
        None => config.share,
        Some(share) if window.iter().all(|other| mean > *other) => share * (1.0 + config.rate),
        Some(share) if window.iter().all(|other| mean < *other) => share * (1.0 - config.rate),
        Some(share) => share,
    };
    let [least, most] = config.share_range;
    let share = share.max(least).min(most);
    window.push(mean);
    let beyond = window.len().saturating_sub(config.window);
    window.drain(..beyond);
    memory.set(UNCERTAINTIES, window);
    memory.set(SHARE, vec![share]);
    share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspects_are_images_that_the_trained_reward_ranks_above_the_judges() {
        let trained = [0.1, 0.9, 0.5, 0.5];
        let judges = [vec![3.0, 1.0, 2.0, 4.0], vec![1.0, 1.0, 8.0, 9.0]];
        // Ranks (1, 4, 2.5, 2.5) against (3, 1, 2, 4) and (1.5, 1.5, 3, 4).
        let found = uncertainty(&trained, &judges, Suspects::Overrated);
        assert_eq!(found, [-1.25, 2.75, 0.0, -1.5]);
        let other = uncertainty(&trained, &judges, Suspects::Underrated);
        assert_eq!(other, [1.25, -2.75, -0.0, 1.5]);
        assert_eq!(uncertainty(&trained, &judges[..1], Suspects::Overrated)[1], 3.0);
    }

    #[test]
    fn a_quantile_lies_between_its_neighbours_as_in_numpy() {
        // numpy.percentile([3, 1, 2, 10], [0, 50, 90, 100]) is 1, 2.5, 7.9, 10.
        for (share, expected) in [(0.0, 1.0), (0.5, 2.5), (0.9, 7.9), (1.0, 10.0)] {
            let found = quantile(&[3.0, 1.0, 2.0, 10.0], share);
            assert!((found - expected).abs() < 1e-12, "{share}: {found}");
        }
        assert_eq!(quantile(&[4.0], 0.3), 4.0);
    }

    #[test]
    fn every_gated_image_counts_the_same_however_the_images_are_divided() {
        let gate = Gate {
            open: vec![0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0],
            share: 0.1,
            uncertainty: 0.0,
        };
        let distances: Vec<f64> = (0..12).map(|image| 0.3 + f64::from(image * image % 7)).collect();
        let gated = (distances.iter().zip(&gate.open)).filter(|(_, open)| **open > 0.0);
        let expected = gated.map(|(distance, _)| distance).sum::<f64>() / 5.0;
        let weights = gate.weights();
        // Some of these have micro-batches without a gated image.
        for size in [1, 2, 3, 4, 6, 12] {
            let images: Vec<(f64, f64)> = (distances.iter().zip(&weights))
                .map(|(distance, weight)| (*distance, f64::from(*weight)))
                .collect();
            let of_batch = |rows: &[(f64, f64)]| rows.iter().map(|(d, w)| d * w).sum::<f64>() / size as f64;
            let batches = images.chunks_exact(size).map(of_batch);
            let found = batches.sum::<f64>() / (12 / size) as f64;
            assert!((found - expected).abs() < 1e-6, "{size}: {found} and {expected}");
        }
        assert!((gate.fraction() - 5.0 / 12.0).abs() < 1e-12);
        let shut = Gate {
            open: vec![0.0; 3],
            ..gate
        };
        assert_eq!((shut.weights(), shut.fraction()), (vec![0.0; 3], 0.0));
    }

    #[test]
    fn the_most_suspicious_are_gated_and_the_share_follows_their_mean_within_its_range() {
        let config = GateConfig {
            share: 0.5,
            share_range: [0.45, 0.6],
            window: 2,
            ..GateConfig::default()
        };
        let mut memory = Memory::default();
        let mut gate = |uncertainties: &[f64]| Gate::of(uncertainties, &config, &mut memory);
        let first = gate(&[-3.0, 0.0, 1.0, 2.0, 5.0]);
        assert_eq!(first.open, [0.0, 0.0, 0.0, 1.0, 1.0]);
        assert_eq!((first.share, first.uncertainty), (0.5, 2.0));
        // Above the one before, then above both, where the range ends it, then between, then below both.
        let shares: Vec<f64> = [3.0, 4.0, 3.5, 1.0, 0.5]
            .iter()
            .map(|mean| gate(&[*mean, -1.0]).share)
            .collect();
        let expected = [0.55, 0.6, 0.6, 0.54, 0.486];
        for (found, expected) in shares.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-12, "{shares:?}");
        }
        // Of one suspect nothing is above the percentile, and without any nothing changes.
        assert_eq!(gate(&[9.0, -1.0]).open, [0.0, 0.0]);
        let before = gate(&[7.0, -1.0]).share;
        assert_eq!(gate(&[-2.0, -1.0]).open, [0.0, 0.0]);
        assert_eq!(gate(&[-2.0, -1.0]).share, before);
    }
}
