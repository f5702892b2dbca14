//! About how much a run computes: [`flow_validate::Operations`], as often as calls are made. What a checkpoint policy computes again
//! is not counted. Memory is [`flow_validate::MemoryEstimate`]'s.

use flow_validate::Operations;

/// What an iteration asks for.
pub struct Work {
    /// Rows of a call.
    pub rows: usize,
    /// Calls of the rollout.
    pub sampling_calls: usize,
    /// Calls of the loss, forward and backward.
    pub training_calls: usize,
    /// Calls of the reference, forward only.
    pub reference_calls: usize,
}

/// What it comes to.
pub struct Cost {
    /// Operations of the rollout.
    pub sampling_flop: f64,
    /// Operations of the update.
    pub training_flop: f64,
}

impl Cost {
    /// Estimates an iteration of calls that take `operations` a row.
    pub fn of(operations: &Operations, work: &Work) -> Self {
        let calls = |count: usize, operations: f64| (work.rows * count) as f64 * operations;
        let (forward, backward) = (operations.forward(), operations.backward());
        Self {
            sampling_flop: calls(work.sampling_calls, forward),
            training_flop: calls(work.training_calls, forward + backward)
                + calls(work.reference_calls, forward),
        }
    }
}
