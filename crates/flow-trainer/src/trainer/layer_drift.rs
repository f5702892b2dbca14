//! How far what blocks give is from what they give with other weights, at the same latents: one number for each block of the model.

use super::Parts;
use crate::algorithm::Algorithm;
use crate::observer::Observer;
use burn::backend::DispatchTensor;
use flow_accel::Acceleration;
use flow_core::cpu::to_host;
use flow_core::exec::Stack;
use flow_core::{Exec, StackDriver, Weights};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the tensors that leave a block differ by.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerDrift {
    /// The stack.
    pub stack: String,
    /// The block in it.
    pub block: usize,
    /// `‖y - y_exact‖ / ‖y_exact‖`, Euclidean over rows, tokens and channels of all of them, each from what the blocks before it made.
    pub relative_l2: f64,
}

/// Runs every block, and keeps what leaves it at the first step of trajectories, or compares that with what was kept before.
#[derive(Debug, Default)]
struct BlockOutputs {
    exact: Vec<Vec<f32>>,
    found: Mutex<Found>,
}

#[derive(Debug, Default)]
struct Found {
    outputs: Vec<Vec<f32>>,
    drifts: Vec<LayerDrift>,
}

impl BlockOutputs {
    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn see(&self, stack: &str, block: usize, carried: &[DispatchTensor]) {
        let values: Vec<f32> = carried.iter().flat_map(to_host).collect();
        let mut found = self.found();
        let stack = stack.to_owned();
        // The same blocks in the same order.
        match self.exact.get(found.drifts.len()) {
            Some(exact) => found.drifts.push(LayerDrift {
                stack,
                block,
                relative_l2: relative_l2(&values, exact),
            }),
            None => found.outputs.push(values),
        }
    }
}

/// 0 where no bit differs, even of zeros.
fn relative_l2(values: &[f32], exact: &[f32]) -> f64 {
    let square = |value: f64| value * value;
    let pairs = values.iter().zip(exact);
    let change: f64 = pairs
        .map(|(value, exact)| square(f64::from(*value) - f64::from(*exact)))
        .sum();
    let size: f64 = exact.iter().map(|exact| square(f64::from(*exact))).sum();
    if change == 0.0 {
        0.0
    } else {
        (change / size).sqrt()
    }
}

impl StackDriver for BlockOutputs {
    fn name(&self) -> &str {
        "block-outputs"
    }

    fn run(
        &self,
        exec: &Exec<'_>,
        stack: &dyn Stack,
        carried: Vec<DispatchTensor>,
        shared: Vec<DispatchTensor>,
    ) -> Vec<DispatchTensor> {
        // Later steps begin at latents that differ.
        let is_first = exec.call().step == 0;
        (0..stack.len()).fold(carried, |carried, block| {
            let carried = stack.run_block(exec, block, carried, shared.clone());
            if is_first {
                self.see(stack.name(), block, &carried);
            }
            carried
        })
    }
}

impl<A: Algorithm> Parts<A, Acceleration> {
    /// What the blocks' outputs differ by from those with the weights `exact`, of the same layout, in the order of the blocks: at the first
    /// step of the first micro-batch of this iteration. Outputs of all blocks are on the host meanwhile.
    pub fn layer_drift(&self, exact: &Weights, observer: &mut dyn Observer) -> Vec<LayerDrift> {
        let kept = Arc::new(BlockOutputs::default());
        self.measure_with(exact, 1, kept.clone(), observer);
        let compared = Arc::new(BlockOutputs {
            exact: mem::take(&mut kept.found().outputs),
            found: Mutex::default(),
        });
        self.measure_with(self.sampling_weights(), 1, compared.clone(), observer);
        mem::take(&mut compared.found().drifts)
    }
}
