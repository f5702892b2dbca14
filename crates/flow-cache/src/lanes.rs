//! State between the steps of a trajectory, by sample and branch.

use flow_core::Lane;
use std::collections::BTreeMap;

/// State kept between the steps of one trajectory, per lane and per place in the model.
///
/// The key is the sample and its branch of classifier-free guidance, never the row of a batch: batches are composed
/// anew in every call. State of another iteration is never returned.
#[derive(Debug)]
pub struct LaneStore<T> {
    iteration: u64,
    kept: BTreeMap<(Lane, usize), (u32, T)>,
}

/// A step that does not follow the one before: a repeated call, or trajectories taken for one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "sample {} ({}) is at step {step} after step {after}; the steps of a trajectory come once and in order",
    lane.sample,
    if lane.conditional { "conditional" } else { "unconditional" }
)]
pub struct StepOrder {
    /// The lane.
    pub lane: Lane,
    /// Its last step.
    pub after: u32,
    /// The step asked for.
    pub step: u32,
}

impl<T> Default for LaneStore<T> {
    fn default() -> Self {
        Self {
            iteration: 0,
            kept: BTreeMap::new(),
        }
    }
}

impl<T> LaneStore<T> {
    /// Keeps `value` of `lane` at `place`, computed at `step` of `iteration`. A new iteration forgets the old one.
    pub fn put(&mut self, iteration: u64, lane: Lane, place: usize, step: u32, value: T) {
        self.enter(iteration);
        self.kept.insert((lane, place), (step, value));
    }

    /// What was kept for `lane` at `place` in this iteration before `step`, and the step it is from.
    pub fn get(&mut self, iteration: u64, lane: Lane, place: usize, step: u32) -> Option<(u32, &T)> {
        self.enter(iteration);
        let (from, value) = self.kept.get(&(lane, place))?;
        (*from < step).then_some((*from, value))
    }

    /// As [`get`](Self::get), taking the value out.
    ///
    /// # Errors
    /// [`StepOrder`] if the value is from `step` or a later one. It stays.
    pub fn take(
        &mut self,
        iteration: u64,
        lane: Lane,
        place: usize,
        step: u32,
    ) -> Result<Option<(u32, T)>, StepOrder> {
        self.enter(iteration);
        match self.kept.get(&(lane, place)) {
            Some((after, _)) if *after >= step => Err(StepOrder {
                lane,
                after: *after,
                step,
            }),
            _ => Ok(self.kept.remove(&(lane, place))),
        }
    }

    /// Forgets everything of `lane`, and gives it back.
    pub fn forget(&mut self, lane: Lane) -> Vec<T> {
        let places: Vec<usize> = (self.kept.range((lane, 0)..=(lane, usize::MAX)))
            .map(|((_, place), _)| *place)
            .collect();
        let removed = places
            .into_iter()
            .filter_map(|place| self.kept.remove(&(lane, place)));
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
