//! Where the members of a group part, and which of them are compared with which.
//!
//! Members that have had the same noise so far are one trajectory, bit for bit. Which member's address the noise of a step has, which
//! steps are random for whom, and where the loss is taken, are functions of the config, the member and the iteration: nothing is saved,
//! and nothing depends on micro-batches or ranks.
//!
//! `one-step` is TempFlow-GRPO (arXiv 2508.04324): a part of the group for each step of the window, random at that step alone.
//! `one-step-per-group` is the iso-temporal grouping of Flash-GRPO (arXiv 2605.15980): a whole group at a step that is drawn for it.
//! `tree` is BranchGRPO (arXiv 2509.06040): the members of a group are the leaves of a tree.

mod tree;

pub use tree::EdgeCredits;

use tree::Tree;

use crate::algorithm::LossPoint;
use crate::scheduler::Schedule;
use flow_config::{Branching, TreeFusion};
use std::borrow::Cow;

/// How the members of every group part at an iteration.
#[derive(Clone, Debug)]
pub struct Branches<'a> {
    branching: &'a Branching,
    group_size: usize,
    /// The steps of the window, ascending.
    window: Vec<usize>,
    schedule: &'a Schedule,
    iteration: u64,
}

impl<'a> Branches<'a> {
    /// Of groups of `group_size` images whose window is that of `schedule` at `iteration`, which fit each other as the checks of a
    /// config ask.
    pub fn new(branching: &'a Branching, group_size: usize, schedule: &'a Schedule, iteration: u64) -> Self {
        Self {
            branching,
            group_size,
            window: schedule.trained_steps(iteration),
            schedule,
            iteration,
        }
    }

    /// The steps of the window.
    pub fn window(&self) -> &[usize] {
        &self.window
    }

    /// The tree over the members of each group, if there is one.
    fn tree(&self) -> Option<Tree<'_>> {
        match self.branching {
            Branching::Tree(config) => Some(Tree {
                config,
                window: &self.window,
                iteration: self.iteration,
            }),
            Branching::None(_) | Branching::OneStep(_) | Branching::OneStepPerGroup(_) => None,
        }
    }

    /// The members of each part that is compared within itself.
    fn compared(&self) -> usize {
        match self.branching {
            Branching::None(_) | Branching::OneStepPerGroup(_) | Branching::Tree(_) => self.group_size,
            Branching::OneStep(_) => (self.group_size / self.window.len().max(1)).max(1),
        }
    }

    /// The steps that are random for a member of the group that has this number in the run. Members of a micro-batch have the same.
    pub fn random_steps(&self, group: u64, member: usize) -> &[usize] {
        let place = match self.branching {
            Branching::None(_) | Branching::Tree(_) => return &self.window,
            Branching::OneStep(_) => Some(member / self.compared()),
            Branching::OneStepPerGroup(_) => self.schedule.place_of_group(group, self.window.len()),
        };
        place
            .and_then(|place| self.window.get(place..=place))
            .unwrap_or_default()
    }

    /// Who is compared with whom: one number per image of the rollout, the same for those whose advantages are taken together. `groups`
    /// are the groups of the images, which stand beside one another.
    pub fn compared_groups<'g>(&self, groups: &'g [u64]) -> Cow<'g, [u64]> {
        match self.branching {
            Branching::None(_) | Branching::OneStepPerGroup(_) | Branching::Tree(_) => Cow::Borrowed(groups),
            Branching::OneStep(_) => {
                let parts = 0..groups.len();
                parts.map(|image| (image / self.compared()) as u64).collect()
            }
        }
    }

    /// Where the loss of each micro-batch is taken, of the positions that an algorithm has on a trajectory that is random in the whole
    /// window.
    pub fn positions(&self, mut positions: Vec<LossPoint>) -> Vec<LossPoint> {
        match self.branching {
            Branching::None(_) => {}
            // The one step that a micro-batch has recorded.
            Branching::OneStep(_) | Branching::OneStepPerGroup(_) => positions.truncate(1),
            Branching::Tree(_) => {
                let tree = self.tree();
                let is_trained = |step: &usize| tree.as_ref().is_none_or(|tree| tree.is_trained(*step));
                positions.retain(|position| match position {
                    LossPoint::Recorded(index) => self.window.get(*index).is_none_or(is_trained),
                    LossPoint::Time { .. } | LossPoint::EachRow { .. } | LossPoint::Step { .. } => true,
                });
            }
        }
        positions
    }

    /// For each of the first `steps` steps the ids that address its noise, `[B]`, for images with these `ids`, which are the given
    /// `members` of their groups: those whose ids agree up to a step are one trajectory up to it. Empty where every image has its own.
    pub fn noise_ids(&self, steps: usize, ids: &[u64], members: &[usize]) -> Vec<Vec<u64>> {
        let Some(tree) = self.tree() else {
            return Vec::new();
        };
        let of_step = |step: usize| {
            let images = ids.iter().zip(members);
            let ids = images.map(|(id, member)| id - (member - tree.node_of(*member, step)) as u64);
            ids.collect()
        };
        (0..steps).map(of_step).collect()
    }

    /// Whether [`credits`](Self::credits) read log-probabilities.
    pub fn reads_log_probs(&self) -> bool {
        matches!(self.branching, Branching::Tree(tree) if tree.fusion == TreeFusion::PathProbability)
    }

    /// For each recorded step what its edges are credited with, of the advantages of the images of a rollout, group by group; empty where
    /// the advantage of an image counts at all of its steps. `log_probs` has one column per recorded step with a value per image, if they
    /// are read.
    ///
    /// Advantages of a group are its rewards less a number and divided by one, and so the advantages of nodes are those of the rewards.
    pub fn credits(&self, advantages: &[f32], log_probs: &[Vec<f32>]) -> Vec<EdgeCredits> {
        let Some(tree) = self.tree() else {
            return Vec::new();
        };
        let mut all = vec![EdgeCredits::default(); self.window.len()];
        for (group, leaves) in advantages.chunks(self.group_size.max(1)).enumerate() {
            let first = group * self.group_size;
            let log_prob = |record: usize, leaf: usize| f64::from(log_probs[record][first + leaf]);
            for (all, credits) in all.iter_mut().zip(tree.credits(leaves, log_prob)) {
                all.advantages.extend(credits.advantages);
                all.weights.extend(credits.weights);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::{Dynamics, NoiseLevel, ScheduleOptions, SdeWindow, SigmaEnds, SigmaShift};
    use flow_config::{OneStepBranching, OneStepPerGroupBranching, TreeBranching};

    fn schedule(steps: usize, window: &[usize]) -> Schedule {
        let schedule = Schedule::new(&ScheduleOptions {
            steps,
            ends: SigmaEnds::default(),
            shift: SigmaShift::Static(1.0),
            dynamics: Dynamics::FlowSde,
            noise_level: NoiseLevel::Constant(0.7),
            window: SdeWindow::List(window.to_vec()),
            seed: 0,
        });
        schedule.expect("every step has noise")
    }

    #[test]
    fn a_group_is_dealt_to_the_steps_of_the_window_and_compared_part_by_part() {
        let branching = Branching::OneStep(OneStepBranching {});
        let schedule = schedule(8, &[1, 4, 5]);
        let branches = Branches::new(&branching, 6, &schedule, 0);
        let steps: Vec<&[usize]> = (0..6).map(|member| branches.random_steps(3, member)).collect();
        assert_eq!(steps, [[1], [1], [4], [4], [5], [5]]);
        let groups = branches.compared_groups(&[9, 9, 9, 9, 9, 9, 4, 4, 4, 4, 4, 4]);
        assert_eq!(*groups, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]);
        let positions = (0..3).map(LossPoint::Recorded).collect();
        assert_eq!(branches.positions(positions), [LossPoint::Recorded(0)]);
    }

    #[test]
    fn all_members_of_a_group_are_random_at_one_step_which_is_drawn_for_the_group() {
        let branching = Branching::OneStepPerGroup(OneStepPerGroupBranching {});
        let schedule = schedule(9, &[0, 1, 4, 5, 7]);
        let branches = Branches::new(&branching, 6, &schedule, 2);
        let mut counts = [0; 9];
        for group in 0..1000 {
            let [step] = *branches.random_steps(group, 0) else {
                panic!("group {group} has one step");
            };
            assert!((1..6).all(|member| branches.random_steps(group, member) == [step]));
            counts[step] += 1;
        }
        // Of 200 that are expected of each; the standard deviation is 13.
        for (step, count) in counts.into_iter().enumerate() {
            let expected = if branches.window().contains(&step) {
                140..260
            } else {
                0..1
            };
            assert!(expected.contains(&count), "step {step}: {counts:?}");
        }
        // Which rank or micro-batch asks, and in which iteration, changes nothing.
        let later = Branches::new(&branching, 6, &schedule, 5);
        assert_eq!(later.random_steps(41, 5), branches.random_steps(41, 0));

        assert_eq!(*branches.compared_groups(&[9, 9, 4, 4]), [9, 9, 4, 4]);
        let positions = (0..5).map(LossPoint::Recorded).collect();
        assert_eq!(branches.positions(positions), [LossPoint::Recorded(0)]);
        assert!(branches.noise_ids(9, &[12, 13], &[0, 1]).is_empty());
        assert!(branches.credits(&[1.0; 6], &[]).is_empty());
    }

    #[test]
    fn without_branches_every_member_is_random_in_the_whole_window() {
        let branching = Branching::default();
        let schedule = schedule(8, &[1, 4]);
        let branches = Branches::new(&branching, 2, &schedule, 0);
        assert_eq!(branches.random_steps(7, 1), [1, 4]);
        assert_eq!(*branches.compared_groups(&[3, 3, 7, 7]), [3, 3, 7, 7]);
    }

    #[test]
    fn each_group_is_a_tree_whose_noise_is_addressed_by_the_first_leaf_of_a_node() {
        let branching = Branching::Tree(TreeBranching {
            splits: vec![0, 2],
            untrained_steps: vec![1],
            ..TreeBranching::default()
        });
        let schedule = schedule(5, &[0, 1, 2]);
        let branches = Branches::new(&branching, 4, &schedule, 0);
        // A micro-batch that has the second half of a group and the first of the next.
        let ids = branches.noise_ids(4, &[42, 43, 44, 45], &[2, 3, 0, 1]);
        let (nodes, leaves) = (vec![42, 42, 44, 44], vec![42, 43, 44, 45]);
        assert_eq!(ids, [nodes.clone(), nodes, leaves.clone(), leaves]);

        let positions = (0..3).map(LossPoint::Recorded).collect();
        let trained = [LossPoint::Recorded(0), LossPoint::Recorded(2)];
        assert_eq!(branches.positions(positions), trained);

        assert!(!branches.reads_log_probs());
        let both = branches.credits(&[1.0, 2.0, 3.0, 4.0, 7.0, 5.0, 5.0, 3.0], &[]);
        let first = branches.credits(&[1.0, 2.0, 3.0, 4.0], &[]);
        let second = branches.credits(&[7.0, 5.0, 5.0, 3.0], &[]);
        assert_eq!(both.len(), 3);
        for (both, (first, second)) in both.iter().zip(first.iter().zip(&second)) {
            assert_eq!(
                both.advantages,
                [&first.advantages[..], &second.advantages].concat()
            );
            assert_eq!(both.weights, [&first.weights[..], &second.weights].concat());
        }
        assert!(second[0].advantages[0] > 0.0 && second[0].advantages[3] < 0.0);
    }
}
