//! Feature reuse between the steps of a rollout.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod first_block;

pub use first_block::{FirstBlock, FirstBlockRule, OnSkip};

use flow_core::{Lane, RunAll, StackDriver};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The driver that reuses nothing.
pub fn no_reuse() -> Arc<dyn StackDriver> {
    Arc::new(RunAll)
}

/// State kept between the steps of one trajectory, per lane and per place in the model.
///
/// The key is the sample and its branch of classifier-free guidance, never the row of a batch: batches are composed
/// anew in every call. State of another iteration is never returned.
#[derive(Debug)]
pub struct LaneStore<T> {
    iteration: u64,
    kept: BTreeMap<(Lane, usize), (u32, T)>,
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

    /// Forgets everything of `lane`.
    pub fn forget(&mut self, lane: Lane) {
        self.kept.retain(|(of, _), _| *of != lane);
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
