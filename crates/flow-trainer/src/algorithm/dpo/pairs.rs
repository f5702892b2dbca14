//! The best and the worst image of each group, in pairs.

use crate::algorithm::{RolledOut, RowSet};
use flow_core::rng::{Purpose, Stream};
use std::collections::BTreeMap;

/// `(better, worse)` for each group whose advantages differ, in the order of the groups; of equal ones the first.
fn pairs(rollout: &RolledOut<'_>) -> Vec<(usize, usize)> {
    let mut groups: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (image, group) in rollout.groups.iter().enumerate() {
        groups.entry(*group).or_default().push(image);
    }
    let advantage = |image: usize| rollout.advantages[image];
    let extremes = groups.into_values().map(|images| {
        let (mut best, mut worst) = (images[0], images[0]);
        for image in images {
            if advantage(image) > advantage(best) {
                best = image;
            }
            if advantage(image) < advantage(worst) {
                worst = image;
            }
        }
        (best, worst)
    });
    extremes.filter(|(best, worst)| best != worst).collect()
}

/// The pairs in random order, spread evenly over the optimizer steps of the pass, in micro-batches of at most half as many pairs as the
/// rollout's have rows. Better images first, then the worse ones, with the noise of the better ones.
pub(super) fn arranged(rollout: &RolledOut<'_>) -> Vec<Vec<RowSet>> {
    let pairs = pairs(rollout);
    let mut draws =
        Stream::new(rollout.seed, Purpose::UpdateOrder).at(rollout.iteration, rollout.pass as u32);
    let order = draws.permutation(pairs.len());
    let shuffled: Vec<(usize, usize)> = order.into_iter().map(|index| pairs[index]).collect();
    let at = |update: usize| update * shuffled.len() / rollout.updates;
    (0..rollout.updates)
        .map(|update| {
            let micro_batches = shuffled[at(update)..at(update + 1)].chunks((rollout.micro_batch / 2).max(1));
            let set = |pairs: &[(usize, usize)]| {
                let better = || pairs.iter().map(|(better, _)| *better);
                RowSet {
                    rows: better().chain(pairs.iter().map(|(_, worse)| *worse)).collect(),
                    noise: better().chain(better()).collect(),
                }
            };
            micro_batches.map(set).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADVANTAGES: [f32; 12] = [
        0.0, 1.0, -1.0, 1.0, // The first of equal ones is taken.
        0.5, 0.5, 0.5, 0.5, // Nothing to learn.
        -2.0, 3.0, 0.0, -1.0,
    ];
    const GROUPS: [u64; 12] = [7, 7, 7, 7, 3, 3, 3, 3, 9, 9, 9, 9];

    fn rolled_out() -> RolledOut<'static> {
        RolledOut {
            advantages: &ADVANTAGES,
            groups: &GROUPS,
            micro_batch: 3,
            updates: 1,
            seed: 1,
            iteration: 2,
            pass: 0,
        }
    }

    #[test]
    fn each_group_gives_its_best_and_worst_image_and_a_silent_one_nothing() {
        assert_eq!(pairs(&rolled_out()), [(1, 2), (9, 8)]);
    }

    #[test]
    fn micro_batches_hold_whole_pairs_that_share_the_noise_of_the_better_image() {
        let mut sets = arranged(&rolled_out()).remove(0);
        sets.sort_by_key(|set| set.rows.clone());
        let set = |rows: [usize; 2]| RowSet {
            rows: rows.to_vec(),
            noise: vec![rows[0]; 2],
        };
        assert_eq!(sets, [set([1, 2]), set([9, 8])]);
        let over_two = RolledOut {
            updates: 2,
            ..rolled_out()
        };
        assert!(arranged(&over_two).iter().all(|sets| sets.len() == 1));
    }
}
