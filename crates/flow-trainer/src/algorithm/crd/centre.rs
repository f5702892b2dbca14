//! What CRD's rewards are centred on.

use super::settings::{Centre, CentreWeights, CrdSettings};
use crate::algorithm::StepRows;
use std::ops::Range;

/// The two ends that weights may lean to.
const ENDS: [f64; 2] = [1.0, -1.0];

/// For each loss the centre of implicit rewards and the centred reward, each with one value per row. There are two losses, leaning to the
/// better and to the worse images, unless all images count the same.
pub(super) fn centred(settings: &CrdSettings, rows: &StepRows<'_>, implicit: &[f64]) -> Vec<Vec<f32>> {
    let clip = settings.advantage_clip;
    let reward = |advantage: &f32| (f64::from(*advantage) / clip / 2.0 + 0.5).clamp(0.0, 1.0);
    let rewards: Vec<f64> = rows.advantages.iter().map(reward).collect();
    let pools: Vec<Range<usize>> = match settings.centre {
        Centre::Step => std::iter::once(0..rows.count()).collect(),
        Centre::Group => rows.groups(),
    };
    let ends = match settings.centre_weights {
        CentreWeights::Uniform => &ENDS[..1],
        CentreWeights::Signs | CentreWeights::Softmax => &ENDS[..],
    };
    let mut found = Vec::with_capacity(2 * ends.len());
    for end in ends {
        let (mut centres, mut targets) = (Vec::new(), Vec::new());
        for pool in &pools {
            let weights = weights(
                settings,
                *end,
                &rows.advantages[pool.clone()],
                &rewards[pool.clone()],
            );
            let mean =
                |values: &[f64]| -> f64 { values.iter().zip(&weights).map(|(value, p)| value * p).sum() };
            let (of_implicit, of_rewards) = (mean(&implicit[pool.clone()]), mean(&rewards[pool.clone()]));
            centres.resize(centres.len() + pool.len(), of_implicit as f32);
            targets.extend(
                rewards[pool.clone()]
                    .iter()
                    .map(|reward| (reward - of_rewards) as f32),
            );
        }
        found.extend([centres, targets]);
    }
    found
}

/// How much each row counts, leaning to `end`; they add up to 1.
fn weights(settings: &CrdSettings, end: f64, advantages: &[f32], rewards: &[f64]) -> Vec<f64> {
    let raw: Vec<f64> = match settings.centre_weights {
        CentreWeights::Uniform => vec![1.0; rewards.len()],
        CentreWeights::Signs => {
            let is_at_end = |advantage: &f32| f64::from(u8::from(f64::from(*advantage) * end > 0.0));
            advantages.iter().map(is_at_end).collect()
        }
        CentreWeights::Softmax => {
            let raised = rewards
                .iter()
                .map(|reward| reward * end / settings.centre_temperature);
            let raised: Vec<f64> = raised.collect();
            let most = raised.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            raised.iter().map(|value| (value - most).exp()).collect()
        }
    };
    let sum: f64 = raw.iter().sum();
    if sum == 0.0 {
        // No image is at this end.
        return vec![1.0 / raw.len() as f64; raw.len()];
    }
    raw.iter().map(|weight| weight / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(settings: CrdSettings, advantages: &[f32], groups: &[u64], implicit: &[f64]) -> Vec<Vec<f32>> {
        let rows = StepRows {
            advantages,
            groups,
            numbers: &[],
        };
        centred(&settings, &rows, implicit)
    }

    #[test]
    fn rewards_are_centred_over_all_rows_of_a_step_or_over_their_group() {
        let of = |centre| CrdSettings {
            centre,
            ..CrdSettings::default()
        };
        let (advantages, implicit) = ([5.0, -5.0, 5.0, 0.0], [1.0, 2.0, 4.0, 9.0]);
        let step = found(of(Centre::Step), &advantages, &[1, 1, 2, 2], &implicit);
        assert_eq!(step, [vec![4.0; 4], vec![0.375, -0.625, 0.375, -0.125]]);
        let group = found(of(Centre::Group), &advantages, &[1, 1, 2, 2], &implicit);
        assert_eq!(group, [vec![1.5, 1.5, 6.5, 6.5], vec![0.5, -0.5, 0.25, -0.25]]);
    }

    #[test]
    fn signs_are_those_of_advantages_and_an_empty_end_counts_all_rows() {
        let settings = CrdSettings {
            centre_weights: CentreWeights::Signs,
            ..CrdSettings::default()
        };
        let implicit = [1.0, 2.0, 4.0, 9.0];
        let both = found(settings.clone(), &[5.0, -5.0, 5.0, 0.0], &[1; 4], &implicit);
        assert_eq!((&both[0], &both[2]), (&vec![2.5; 4], &vec![2.0; 4]));
        let none_below = found(settings, &[5.0, 1.0, 5.0, 0.0], &[1; 4], &implicit);
        assert_eq!(none_below[2], vec![4.0; 4]);
    }
}
