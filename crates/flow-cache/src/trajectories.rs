//! State between the steps of a trajectory, by sample and branch.

use flow_core::TrajectoryId;
use std::collections::BTreeMap;

/// State kept between the steps of one trajectory, per trajectory and per place in the model.
///
/// The key is the sample and its branch of classifier-free guidance, never the row of a batch: batches are composed
/// anew in every call. State of another iteration is never returned.
#[derive(Debug)]
pub struct TrajectoryStore<T> {
    iteration: u64,
    kept: BTreeMap<(TrajectoryId, usize), (u32, T)>,
}

/// A step that does not follow the one before: a repeated call, or trajectories taken for one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "sample {} ({}) is at step {step} after step {after}; the steps of a trajectory come once and in order",
    trajectory.sample,
    if trajectory.conditional { "conditional" } else { "unconditional" }
)]
pub struct StepOrder {
    /// The trajectory.
    pub trajectory: TrajectoryId,
    /// Its last step.
    pub after: u32,
    /// The step asked for.
    pub step: u32,
}

impl<T> Default for TrajectoryStore<T> {
    fn default() -> Self {
        Self {
            iteration: 0,
            kept: BTreeMap::new(),
        }
    }
}

impl<T> TrajectoryStore<T> {
    /// Keeps `value` of `trajectory` at `place`, computed at `step` of `iteration`. A new iteration forgets the old one.
    pub fn put(&mut self, iteration: u64, trajectory: TrajectoryId, place: usize, step: u32, value: T) {
        self.enter(iteration);
        self.kept.insert((trajectory, place), (step, value));
    }

    /// What was kept for `trajectory` at `place` in this iteration before `step`, and the step it is from.
    pub fn get(
        &mut self,
        iteration: u64,
        trajectory: TrajectoryId,
        place: usize,
        step: u32,
    ) -> Option<(u32, &T)> {
        self.enter(iteration);
        let (from, value) = self.kept.get(&(trajectory, place))?;
        (*from < step).then_some((*from, value))
    }

    /// As [`get`](Self::get), taking the value out.
    ///
    /// # Errors
    /// [`StepOrder`] if the value is from `step` or a later one. It stays.
    pub fn take(
        &mut self,
        iteration: u64,
        trajectory: TrajectoryId,
        place: usize,
        step: u32,
    ) -> Result<Option<(u32, T)>, StepOrder> {
        self.enter(iteration);
        match self.kept.get(&(trajectory, place)) {
            Some((after, _)) if *after >= step => Err(StepOrder {
                trajectory,
                after: *after,
                step,
            }),
            _ => Ok(self.kept.remove(&(trajectory, place))),
        }
    }

    /// Forgets everything of `trajectory`, and gives it back.
    pub fn forget(&mut self, trajectory: TrajectoryId) -> Vec<T> {
        let places: Vec<usize> = (self.kept.range((trajectory, 0)..=(trajectory, usize::MAX)))
            .map(|((_, place), _)| *place)
            .collect();
        let removed = places
            .into_iter()
            .filter_map(|place| self.kept.remove(&(trajectory, place)));
        removed.map(|(_, value)| value).collect()
    }

    /// Number of values kept.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    fn enter(&mut self, iteration: u64) {
        if iteration != self.iteration {
            self.kept.clear();
            self.iteration = iteration;
        }
    }
}
