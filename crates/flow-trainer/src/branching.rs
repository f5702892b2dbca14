//! Where the members of a group part, and which of them are compared with which.
//!
//! Members that have had the same noise so far are one trajectory, bit for bit. Which member's address the noise of a step has, which
//! steps are random for whom, and where the loss is taken, are functions of the config, the member and the iteration: nothing is saved,
//! and nothing depends on micro-batches or ranks.
//!
//! `one-step` is TempFlow-GRPO (arXiv 2508.04324): a part of the group for each step of the window, random at that step alone.

use crate::algorithm::Position;
use crate::scheduler::Schedule;
use flow_config::Branching;
use std::borrow::Cow;

/// How the members of every group part at an iteration.
#[derive(Clone, Debug)]
pub struct Branches<'a> {
    branching: &'a Branching,
    group_size: usize,
    /// The steps of the window, ascending.
    window: Vec<usize>,
}

impl<'a> Branches<'a> {
    /// Of groups of `group_size` images whose window is that of `schedule` at `iteration`, which fit each other as the checks of a
    /// config ask.
    pub fn new(branching: &'a Branching, group_size: usize, schedule: &Schedule, iteration: u64) -> Self {
        Self {
            branching,
            group_size,
            window: schedule.trained_steps(iteration),
        }
    }

    /// The steps of the window.
    pub fn window(&self) -> &[usize] {
        &self.window
    }

    /// The members of each part that is compared within itself.
    fn compared(&self) -> usize {
        match self.branching {
            Branching::None(_) => self.group_size,
            Branching::OneStep(_) => (self.group_size / self.window.len().max(1)).max(1),
        }
    }

    /// The steps that are random for a member of a group. Members of a micro-batch have the same.
    pub fn random_steps(&self, member: usize) -> &[usize] {
        match self.branching {
            Branching::None(_) => &self.window,
            Branching::OneStep(_) => {
                let part = member / self.compared();
                self.window.get(part..=part).unwrap_or_default()
            }
        }
    }

    /// Who is compared with whom: one number per image of the rollout, the same for those whose advantages are taken together. `groups`
    /// are the groups of the images, which stand beside one another.
    pub fn compared_groups<'g>(&self, groups: &'g [u64]) -> Cow<'g, [u64]> {
        match self.branching {
            Branching::None(_) => Cow::Borrowed(groups),
            Branching::OneStep(_) => {
                let parts = 0..groups.len();
                parts.map(|image| (image / self.compared()) as u64).collect()
            }
        }
    }

    /// Where the loss of each micro-batch is taken, of the positions that an algorithm has on a trajectory that is random in the whole
    /// window.
    pub fn positions(&self, mut positions: Vec<Position>) -> Vec<Position> {
        match self.branching {
            Branching::None(_) => {}
            // The one step that a micro-batch has recorded.
            Branching::OneStep(_) => positions.truncate(1),
        }
        positions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::{Dynamics, NoiseLevel, ScheduleOptions, SdeWindow, SigmaEnds, SigmaShift};
    use flow_config::OneStepBranching;

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
        let branches = Branches::new(&branching, 6, &schedule(8, &[1, 4, 5]), 0);
        let steps: Vec<&[usize]> = (0..6).map(|member| branches.random_steps(member)).collect();
        assert_eq!(steps, [[1], [1], [4], [4], [5], [5]]);
        let groups = branches.compared_groups(&[9, 9, 9, 9, 9, 9, 4, 4, 4, 4, 4, 4]);
        assert_eq!(*groups, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]);
        let positions = (0..3).map(Position::Recorded).collect();
        assert_eq!(branches.positions(positions), [Position::Recorded(0)]);
    }

    #[test]
    fn without_branches_every_member_is_random_in_the_whole_window() {
        let branching = Branching::default();
        let branches = Branches::new(&branching, 2, &schedule(8, &[1, 4]), 0);
        assert_eq!(branches.random_steps(1), [1, 4]);
        assert_eq!(*branches.compared_groups(&[3, 3, 7, 7]), [3, 3, 7, 7]);
    }
}
