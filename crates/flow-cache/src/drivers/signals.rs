//! Measuring what TeaCache needs: by how much the output of a stack changes for a change of what its first attention reads.

use crate::policy::Change;
use burn::backend::DispatchTensor;
use flow_core::exec::Stack;
use flow_core::{Exec, RawTensor, StackDriver, TrajectoryId};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Computes every block, and measures from each step to the next the relative L1 change of a signal and of the stack's first
/// output (Liu et al. 2024, arXiv:2411.19108, section 3.2). For models of one stack.
#[derive(Debug)]
pub struct SignalChanges {
    conditioning: bool,
    measured: Mutex<Measured>,
}

#[derive(Debug, Default)]
struct Measured {
    /// Of the last step of each trajectory: the step, the signal, and the output, `[1, …]`.
    last: HashMap<TrajectoryId, (u32, RawTensor, RawTensor)>,
    points: Vec<(f64, f64)>,
}

impl SignalChanges {
    /// With nothing measured. The signal is the conditioning, or else the modulated input of the first block.
    pub fn new(conditioning: bool) -> Self {
        Self {
            conditioning,
            measured: Mutex::default(),
        }
    }

    fn measured(&self) -> MutexGuard<'_, Measured> {
        self.measured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Change of the signal and change of the output, per trajectory and pair of steps.
    pub fn points(&self) -> Vec<(f64, f64)> {
        self.measured().points.clone()
    }
}

impl StackDriver for SignalChanges {
    fn name(&self) -> &str {
        "signal-changes"
    }

    fn run(
        &self,
        exec: &Exec<'_>,
        stack: &dyn Stack,
        carried: Vec<DispatchTensor>,
        shared: Vec<DispatchTensor>,
    ) -> Vec<DispatchTensor> {
        let signal = if self.conditioning {
            shared.first().cloned()
        } else {
            stack.modulated_input(exec, 0, &carried, &shared)
        };
        let results = stack.run_blocks(exec, 0..stack.len(), carried, &shared);
        let (step, trajectories) = (exec.call().step, &exec.call().trajectories);
        let Some(signal) = signal.filter(|_| !trajectories.is_empty()) else {
            return results;
        };
        let ops = exec.backends().kernels.ops().feature_cache;
        let rows = ops
            .features(&signal, None)
            .into_iter()
            .zip(ops.features(&results[0], None));
        let mut measured = self.measured();
        for (trajectory, (signal, output)) in trajectories.iter().zip(rows) {
            let now = (step, signal.clone(), output.clone());
            let before = measured
                .last
                .insert(*trajectory, now)
                .filter(|(of, ..)| of + 1 == step);
            if let Some((_, before_signal, before_output)) = before {
                let pairs = [
                    ((&signal, 0), (&before_signal, 0)),
                    ((&output, 0), (&before_output, 0)),
                ];
                let sums = ops.changes(&pairs).read();
                let changes = (Change::of(&sums[0]).relative(), Change::of(&sums[1]).relative());
                measured.points.push(changes);
            }
        }
        results
    }
}

/// The polynomial of `degree` that has the least squared error over `points`, highest power first; `None` if they do not
/// determine one.
pub fn fit_polynomial(points: &[(f64, f64)], degree: usize) -> Option<Vec<f64>> {
    let points: Vec<_> = points
        .iter()
        .filter(|(x, y)| x.is_finite() && y.is_finite())
        .collect();
    // Powers of numbers up to 1 keep the equations well scaled.
    let scale = points
        .iter()
        .map(|(x, _)| x.abs())
        .fold(0.0, f64::max)
        .max(f64::MIN_POSITIVE);
    let count = degree + 1;
    let mut rows = vec![vec![0.0; count + 1]; count];
    for (x, y) in points {
        let powers: Vec<f64> = (0..count)
            .map(|power| (x / scale).powi((degree - power) as i32))
            .collect();
        for (row, of) in rows.iter_mut().zip(&powers) {
            row.iter_mut()
                .zip(powers.iter().chain([y]))
                .for_each(|(sum, value)| *sum += of * value);
        }
    }
    // Gauss with pivots.
    for column in 0..count {
        let pivot =
            (column..count).max_by(|a, b| rows[*a][column].abs().total_cmp(&rows[*b][column].abs()))?;
        rows.swap(column, pivot);
        let (top, below) = rows[column..].split_first_mut()?;
        if top[column].abs() < 1e-13 {
            return None;
        }
        for row in below {
            let factor = row[column] / top[column];
            row.iter_mut()
                .zip(&*top)
                .for_each(|(value, of)| *value -= factor * of);
        }
    }
    let mut solution = vec![0.0; count];
    for at in (0..count).rev() {
        let known: f64 = (at + 1..count)
            .map(|other| rows[at][other] * solution[other])
            .sum();
        solution[at] = (rows[at][count] - known) / rows[at][at];
    }
    let unscale = |(power, value): (usize, f64)| value / scale.powi((degree - power) as i32);
    Some(solution.into_iter().enumerate().map(unscale).collect())
}
