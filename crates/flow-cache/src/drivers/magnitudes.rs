//! Measuring what MagCache needs: by how much the residual of a stack grows or shrinks from step to step.

use burn::backend::{Dispatch, DispatchTensor, ops::FloatTensorOps};
use flow_core::cpu::to_host;
use flow_core::exec::Stack;
use flow_core::tensors::shape;
use flow_core::{Exec, RawTensor, StackDriver, TrajectoryId};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Added to norms, so that a residual of 0 has a ratio (diffusers `hooks/mag_cache.py`).
const EPSILON: f64 = 1e-8;

/// Computes every block, and measures `γ_s`, the mean over tokens, samples and branches of `‖R_s‖ / ‖R_{s-1}‖`, where
/// `R = H_L - H_0` of the first carried tensor and the norm is Euclidean over channels. For models of one stack.
#[derive(Debug, Default)]
pub struct MagnitudeRatios {
    measured: Mutex<Measured>,
}

#[derive(Debug, Default)]
struct Measured {
    /// Of the last step of each trajectory: the step, and the norm of each token.
    norms: HashMap<TrajectoryId, (u32, Vec<f64>)>,
    /// Sum and number of ratios per step.
    ratios: BTreeMap<u32, (f64, u64)>,
}

impl MagnitudeRatios {
    /// With nothing measured.
    pub fn new() -> Self {
        Self::default()
    }

    fn measured(&self) -> MutexGuard<'_, Measured> {
        self.measured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `γ` of every step up to the last one measured: the parameter of [`MagCache`](crate::MagCache). 1 for the first
    /// step and for steps that were left out.
    pub fn ratios(&self) -> Vec<f64> {
        let measured = self.measured();
        let steps = measured.ratios.keys().next_back().map_or(0, |last| last + 1);
        let mean = |step| {
            measured
                .ratios
                .get(&step)
                .map_or(1.0, |(sum, count)| sum / *count as f64)
        };
        (0..steps).map(mean).collect()
    }
}

/// The Euclidean norm of each token of each row: `[B, …, D]` to `B` lists.
fn norms(residual: &RawTensor, rows: usize) -> Vec<Vec<f64>> {
    let (shape, values) = (shape(residual), to_host(residual));
    let channels = shape.last().copied().unwrap_or(1).max(1);
    let tokens = values.len() / channels;
    let square = |sum: f64, value: &f32| sum + f64::from(*value) * f64::from(*value);
    let norms: Vec<f64> = (values.chunks_exact(channels))
        .map(|token| token.iter().fold(0.0, square).sqrt())
        .collect();
    norms
        .chunks((tokens / rows).max(1))
        .map(<[f64]>::to_vec)
        .collect()
}

impl StackDriver for MagnitudeRatios {
    fn name(&self) -> &str {
        "magnitude-ratios"
    }

    fn run(
        &self,
        exec: &Exec<'_>,
        stack: &dyn Stack,
        carried: Vec<DispatchTensor>,
        shared: Vec<DispatchTensor>,
    ) -> Vec<DispatchTensor> {
        let before = carried[0].clone();
        let results = stack.run_blocks(exec, 0..stack.len(), carried, &shared);
        let (step, trajectories) = (exec.call().step, &exec.call().trajectories);
        if trajectories.is_empty() {
            return results;
        }
        let residual = Dispatch::float_sub(results[0].clone(), before);
        let mut measured = self.measured();
        for (trajectory, now) in trajectories.iter().zip(norms(&residual, trajectories.len())) {
            if let Some((_, before)) = measured.norms.get(trajectory).filter(|(of, _)| of + 1 == step) {
                let ratios = now
                    .iter()
                    .zip(before)
                    .map(|(now, before)| now / (before + EPSILON));
                let mean = ratios.sum::<f64>() / now.len() as f64;
                let (sum, count) = measured.ratios.entry(step).or_default();
                (*sum, *count) = (*sum + mean, *count + 1);
            }
            measured.norms.insert(*trajectory, (step, now));
        }
        results
    }
}
