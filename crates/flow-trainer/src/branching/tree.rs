//! Values and advantages of the nodes of a tree, and what the edges of each leaf's path are credited with.
//!
//! Formulas as in BranchGRPO's `fastvideo/train_branchgrpo_flux.py` (19fbb9f), lines 545 to 690 and 1199 to 1610: the value of a node is
//! the mean of those of its children, or their mean weighted by `softmax(log p)` of the steps that lead to them; the advantage of a node
//! is `(value - mean) / (std + 1e-8)` over the nodes of its tree at the same depth, with the unbiased standard deviation, and 0 where
//! there is one node or the deviation is below 1e-6; every edge that is trained counts as much.

use flow_config::{TreeBranching, TreeFusion, TreeLeaves};

/// What the edges of a step are credited with, one value per image: that of the edge on its path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EdgeCredits {
    /// Advantages, not clamped.
    pub advantages: Vec<f32>,
    /// What advantages are multiplied with behind the clamp. In the mean over images and steps all edges that are trained count alike,
    /// however many images they are on the path of; others are 0.
    pub weights: Vec<f32>,
}

/// A tree over the members of a group, which are its leaves, in an iteration.
pub(super) struct Tree<'a> {
    pub config: &'a TreeBranching,
    /// The random steps, rising.
    pub window: &'a [usize],
    pub iteration: u64,
}

impl Tree<'_> {
    /// How many splits a path has up to and with a step.
    fn level_behind(&self, step: usize) -> usize {
        self.config.splits.partition_point(|split| *split <= step)
    }

    /// Leaves below a node that has so many splits above it.
    fn leaves_below(&self, level: usize) -> usize {
        let splits = self.config.splits.len().saturating_sub(level);
        self.config.children.saturating_pow(splits as u32).max(1)
    }

    /// The first leaf of the node that a member is in behind a step; the noise of the step has its address.
    pub fn node_of(&self, member: usize, step: usize) -> usize {
        let leaves = self.leaves_below(self.level_behind(step));
        member / leaves * leaves
    }

    /// Whether the edges of a step are trained in this iteration.
    pub fn is_trained(&self, step: usize) -> bool {
        let TreeBranching {
            untrained_steps,
            untrained_hold,
            untrained_least,
            ..
        } = self.config;
        let first = untrained_steps.iter().min().copied().unwrap_or_default();
        let moved = match *untrained_hold as u64 {
            0 => 0,
            hold => (self.iteration / hold).min(first.saturating_sub(*untrained_least) as u64) as usize,
        };
        !untrained_steps.contains(&(step + moved))
    }

    /// The values of the nodes that have none, one, … and all splits above them, of the values of the leaves. `log_prob` is that of the
    /// step which leads to a leaf's node behind a split, by the number of the split and the leaf.
    fn values(&self, leaves: &[f64], log_prob: impl Fn(usize, usize) -> f64) -> Vec<Vec<f64>> {
        let children = self.config.children;
        let mut levels = vec![leaves.to_vec()];
        for split in (0..self.config.splits.len()).rev() {
            let size = self.leaves_below(split + 1);
            let below = levels.last().map_or(&[][..], Vec::as_slice);
            let fused = below
                .chunks(children)
                .enumerate()
                .map(|(node, values)| match self.config.fusion {
                    TreeFusion::Mean => mean(values),
                    TreeFusion::PathProbability => {
                        let first = node * children;
                        let log_probs =
                            (first..first + values.len()).map(|child| log_prob(split, child * size));
                        weighted_by_probability(values, &log_probs.collect::<Vec<_>>())
                    }
                });
            let fused = fused.collect();
            levels.push(fused);
        }
        levels.reverse();
        levels
    }

    /// Which leaves are trained from the last split on.
    fn kept(&self, leaves: &[f64]) -> Vec<bool> {
        let mut kept = vec![false; leaves.len()];
        // Equal values stay in the order of the leaves.
        let best_first = |from: usize, among: &[f64]| {
            let mut order: Vec<usize> = (from..from + among.len()).collect();
            order.sort_by(|a, b| leaves[*b].total_cmp(&leaves[*a]));
            order
        };
        match self.config.leaves {
            TreeLeaves::All => kept.fill(true),
            TreeLeaves::BetterHalf => {
                let children = self.config.children;
                for (parent, siblings) in leaves.chunks(children).enumerate() {
                    let order = best_first(parent * children, siblings);
                    let half = order.len().div_ceil(2);
                    order[..half].iter().for_each(|leaf| kept[*leaf] = true);
                }
            }
            TreeLeaves::Extremes => {
                let order = best_first(0, leaves);
                let each = self.config.extremes.min(order.len());
                let (best, worst) = (&order[..each], &order[order.len() - each..]);
                best.iter().chain(worst).for_each(|leaf| kept[*leaf] = true);
            }
        }
        kept
    }

    /// For each step of the window the credits of its edges, of the values of the leaves. `log_prob` is that of a step of the window, by its
    /// place in it, for a leaf.
    pub fn credits(&self, leaves: &[f32], log_prob: impl Fn(usize, usize) -> f64) -> Vec<EdgeCredits> {
        let leaves: Vec<f64> = leaves.iter().map(|value| f64::from(*value)).collect();
        let place = |split: usize| {
            let step = self.config.splits[split];
            self.window
                .iter()
                .position(|other| *other == step)
                .unwrap_or_default()
        };
        let values = self.values(&leaves, |split, leaf| log_prob(place(split), leaf));
        let advantages: Vec<Vec<f64>> = values.iter().map(|nodes| over_depth(nodes)).collect();
        let kept = self.kept(&leaves);
        let last = self.config.splits.len();
        let edges_at = |level: usize| match level == last {
            true => kept.iter().filter(|kept| **kept).count(),
            false => values[level].len(),
        };
        let trained: Vec<usize> = (self.window.iter().copied())
            .filter(|step| self.is_trained(*step))
            .collect();
        let edges: usize = (trained.iter())
            .map(|step| edges_at(self.level_behind(*step)))
            .sum();
        let whole = (leaves.len() * trained.len()) as f64 / edges.max(1) as f64;
        let of_step = |step: &usize| {
            let level = self.level_behind(*step);
            let below = self.leaves_below(level);
            let weight = |kept: &bool| match level == last && !kept {
                true => 0.0,
                false => (whole / below as f64) as f32,
            };
            EdgeCredits {
                advantages: (0..leaves.len())
                    .map(|leaf| advantages[level][leaf / below] as f32)
                    .collect(),
                weights: kept.iter().map(weight).collect(),
            }
        };
        self.window.iter().map(of_step).collect()
    }
}

/// The mean, taken around the first value, so that equal values have exactly theirs.
fn mean(values: &[f64]) -> f64 {
    let origin = values.first().copied().unwrap_or_default();
    let off: f64 = values.iter().map(|value| value - origin).sum();
    origin + off / values.len().max(1) as f64
}

/// `sum softmax(log p) value`.
fn weighted_by_probability(values: &[f64], log_probs: &[f64]) -> f64 {
    let most = log_probs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = log_probs
        .iter()
        .map(|log_prob| libm::exp(log_prob - most))
        .collect();
    let sum: f64 = weights.iter().sum();
    values
        .iter()
        .zip(&weights)
        .map(|(value, weight)| value * weight / sum)
        .sum()
}

/// Advantages of the nodes of a tree at one depth.
fn over_depth(values: &[f64]) -> Vec<f64> {
    if values.len() < 2 {
        return vec![0.0; values.len()];
    }
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
    let std = (squares / (values.len() - 1) as f64).sqrt();
    let advantage = |value: &f64| match std < 1e-6 {
        true => 0.0,
        false => (value - mean) / (std + 1e-8),
    };
    values.iter().map(advantage).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::FRAC_1_SQRT_2;

    fn config(splits: &[usize], children: usize) -> TreeBranching {
        TreeBranching {
            splits: splits.to_vec(),
            children,
            ..TreeBranching::default()
        }
    }

    fn tree<'a>(config: &'a TreeBranching, window: &'a [usize], iteration: u64) -> Tree<'a> {
        Tree {
            config,
            window,
            iteration,
        }
    }

    fn silent(_: usize, _: usize) -> f64 {
        unreachable!("means read no log-probability")
    }

    fn near(found: &[f32], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                (f64::from(*found) - expected).abs() < 1e-6,
                "{found} and {expected}"
            );
        }
    }

    #[test]
    fn a_path_is_of_one_node_until_it_splits() {
        let config = config(&[0, 3, 6, 9], 2);
        let window: Vec<usize> = (0..19).collect();
        let tree = tree(&config, &window, 0);
        for (step, nodes) in [(0, 2), (2, 2), (3, 4), (5, 4), (6, 8), (9, 16), (18, 16)] {
            let mut found: Vec<usize> = (0..16).map(|member| tree.node_of(member, step)).collect();
            found.dedup();
            let expected: Vec<usize> = (0..nodes).map(|node| node * 16 / nodes).collect();
            assert_eq!(found, expected, "step {step}");
        }
    }

    #[test]
    fn advantages_of_nodes_compare_the_means_of_their_leaves_depth_by_depth() {
        let config = config(&[0, 2], 2);
        let tree = tree(&config, &[0, 1, 2], 0);
        let credits = tree.credits(&[1.0, 2.0, 3.0, 4.0], silent);
        let (inner, leaf) = (FRAC_1_SQRT_2, [1.161_895_0, 0.387_298_3]);
        for step in [0, 1] {
            near(&credits[step].advantages, &[-inner, -inner, inner, inner]);
        }
        near(&credits[2].advantages, &[-leaf[0], -leaf[1], leaf[1], leaf[0]]);
        // Another zero and another unit of rewards change nothing.
        let scaled = tree.credits(&[-3.0, -2.5, -2.0, -1.5], silent);
        for (credits, scaled) in credits.iter().zip(&scaled) {
            let expected: Vec<f64> = credits.advantages.iter().map(|value| f64::from(*value)).collect();
            near(&scaled.advantages, &expected);
        }
        // Nothing is learnt of what is equal.
        let equal = tree.credits(&[0.1, 0.1, 0.1, 0.1], silent);
        assert!(equal.iter().all(|step| step.advantages == [0.0; 4]));
    }

    #[test]
    fn the_value_of_a_node_leans_to_the_child_that_is_likelier() {
        let config = TreeBranching {
            fusion: TreeFusion::PathProbability,
            ..config(&[0, 2], 2)
        };
        let tree = tree(&config, &[0, 1, 2], 0);
        // Of the first node -1 and -1.2 at the second split, of the other equal ones.
        let log_prob = |split: usize, leaf: usize| if (split, leaf) == (1, 1) { -1.2 } else { -1.0 };
        let values = tree.values(&[1.0, 2.0, 3.0, 5.0], log_prob);
        assert!((values[1][0] - 1.450_166_002_687_522).abs() < 1e-12, "{values:?}");
        assert!((values[1][1] - 4.0).abs() < 1e-12, "{values:?}");
        assert!((values[0][0] - 2.725_083_001_343_761).abs() < 1e-12, "{values:?}");
        // A record is found by the step of its split.
        let by_record = |record: usize, leaf: usize| match record {
            0 | 2 => log_prob(record / 2, leaf),
            _ => unreachable!("step 1 splits nothing"),
        };
        let credits = tree.credits(&[1.0, 2.0, 3.0, 5.0], by_record);
        near(
            &credits[1].advantages,
            &[-FRAC_1_SQRT_2, -FRAC_1_SQRT_2, FRAC_1_SQRT_2, FRAC_1_SQRT_2],
        );
    }

    #[test]
    fn every_edge_counts_alike_and_as_much_in_all_as_the_images_at_the_steps() {
        let config = config(&[0, 2], 2);
        let credits = tree(&config, &[0, 1, 2], 0).credits(&[1.0, 2.0, 3.0, 4.0], silent);
        // Two, two and four edges in the place of four rows at three steps.
        assert_eq!(credits[0].weights, [0.75; 4]);
        assert_eq!(credits[1].weights, [0.75; 4]);
        assert_eq!(credits[2].weights, [1.5; 4]);
        // Behind the last split an edge is a row.
        let late = tree(&config, &[2, 3], 0).credits(&[1.0, 2.0, 3.0, 4.0], silent);
        assert!(late.iter().all(|step| step.weights == [1.0; 4]));
    }

    #[test]
    fn leaves_that_are_pruned_weigh_nothing_from_the_last_split_on() {
        let values = [4.0, 1.0, 2.0, 2.0, 3.0, 0.0];
        let of = |leaves: TreeLeaves, extremes: usize| {
            let config = TreeBranching {
                leaves,
                extremes,
                splits: vec![0],
                children: 6,
                ..TreeBranching::default()
            };
            let credits = tree(&config, &[0, 1], 0).credits(&values, silent);
            assert_eq!(credits[0], credits[1]);
            credits[0].weights.clone()
        };
        assert_eq!(of(TreeLeaves::All, 1), [1.0; 6]);
        // The first of the two that are equal.
        assert_eq!(of(TreeLeaves::BetterHalf, 1), [2.0, 0.0, 2.0, 0.0, 2.0, 0.0]);
        assert_eq!(of(TreeLeaves::Extremes, 1), [3.0, 0.0, 0.0, 0.0, 0.0, 3.0]);
        assert_eq!(of(TreeLeaves::Extremes, 3), [1.0; 6]);

        // Of every node its better child; inner edges stay.
        let config = TreeBranching {
            leaves: TreeLeaves::BetterHalf,
            ..config(&[0, 1], 2)
        };
        let credits = tree(&config, &[0, 1], 0).credits(&[1.0, 2.0, 4.0, 3.0], silent);
        assert_eq!(credits[0].weights, [1.0; 4]);
        assert_eq!(credits[1].weights, [0.0, 2.0, 2.0, 0.0]);
    }

    #[test]
    fn untrained_steps_move_towards_the_noise_until_they_stop() {
        let config = TreeBranching {
            untrained_steps: vec![5, 6],
            untrained_hold: 10,
            untrained_least: 3,
            ..config(&[0], 2)
        };
        let window: Vec<usize> = (0..9).collect();
        let untrained = |iteration: u64| -> Vec<usize> {
            let tree = tree(&config, &window, iteration);
            window
                .iter()
                .copied()
                .filter(|step| !tree.is_trained(*step))
                .collect()
        };
        assert_eq!(untrained(0), [5, 6]);
        assert_eq!(untrained(9), [5, 6]);
        assert_eq!(untrained(10), [4, 5]);
        assert_eq!(untrained(20), [3, 4]);
        assert_eq!(untrained(1000), [3, 4]);
        // Seven steps are trained, all with two edges.
        let credits = tree(&config, &window, 0).credits(&[0.0, 1.0], silent);
        assert!(credits.iter().all(|step| step.weights == [1.0; 2]));
    }
}
