//! What the accelerator puts into a rollout's plan. Its state goes with the plan.

use burn::backend::{Dispatch, DispatchTensor, ops::FloatTensorOps};
use flow_accel::{Engagement, Meter};
use flow_core::exec::{Exec, Stack, StackDriver, TrajectoryId};
use flow_core::tensors::is_tracked;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Of a stack, for a batch of these trajectories.
type Key = (String, Arc<[TrajectoryId]>);

/// Computes a stack in every so many steps of a trajectory, and otherwise adds the change that it made last.
pub struct StepReuseDriver {
    every: u32,
    spare_stochastic: bool,
    meter: Meter,
    /// What the blocks last added to each tensor that they carry. Micro-batches run beside one another.
    changes: Mutex<HashMap<Key, Vec<DispatchTensor>>>,
}

impl StepReuseDriver {
    /// A driver without state that counts on `meter` what it leaves out. With `spare_stochastic` it computes stochastic
    /// steps, and forgets there what it has.
    pub fn new(every: u32, spare_stochastic: bool, meter: Meter) -> Self {
        Self {
            every,
            spare_stochastic,
            meter,
            changes: Mutex::default(),
        }
    }

    fn with_changes<R>(&self, task: impl FnOnce(&mut HashMap<Key, Vec<DispatchTensor>>) -> R) -> R {
        task(&mut self.changes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for StepReuseDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepReuseDriver")
            .field("every", &self.every)
            .finish_non_exhaustive()
    }
}

impl StackDriver for StepReuseDriver {
    fn name(&self) -> &str {
        "step-reuse"
    }

    // ANCHOR: run
    fn run(
        &self,
        exec: &Exec<'_>,
        stack: &dyn Stack,
        carried: Vec<DispatchTensor>,
        shared: Vec<DispatchTensor>,
    ) -> Vec<DispatchTensor> {
        let call = exec.call();
        // Outside of a trajectory there is no step before, and a gradient needs the blocks.
        if call.trajectories.is_empty() || carried.iter().chain(&shared).any(is_tracked) {
            return stack.run_blocks(exec, 0..stack.len(), carried, &shared);
        }
        let key = (stack.name().to_owned(), call.trajectories.clone());
        let spared = self.spare_stochastic && call.stochastic;
        // Taken out: what is not put back is forgotten.
        let known = self.with_changes(|changes| changes.remove(&key));
        let last = call.step + 1 == call.steps;
        let (results, changes) = match known {
            Some(changes) if !spared && !call.step.is_multiple_of(self.every) => {
                let skipped = stack.len() * call.trajectories.len();
                self.meter.count(Engagement::BlockSkipped, skipped as u64);
                let sums = carried.into_iter().zip(&changes);
                let sums = sums.map(|(x, change)| Dispatch::float_add(x, change.clone()));
                (sums.collect(), changes)
            }
            _ => {
                let results = stack.run_blocks(exec, 0..stack.len(), carried.clone(), &shared);
                let changes = results.iter().cloned().zip(carried);
                let changes = changes.map(|(after, before)| Dispatch::float_sub(after, before));
                let changes = changes.collect();
                (results, changes)
            }
        };
        if !last && !spared {
            self.with_changes(|kept| kept.insert(key, changes));
        }
        results
    }
    // ANCHOR_END: run
}
