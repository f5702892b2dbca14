//! How often a rollout waits for the device: never for a policy that decides by a plan, and for the others once to decide
//! about all rows of a call and once to learn from those that were computed. And how often rows are kept one by one: never, where
//! all are computed at the same steps.

use crate::isolation::{SAMPLES, STEPS, policies, sigma, start, toy};
use crate::toy::{Run, lane};
use burn::backend::{DispatchTensor, TensorMetadata};
use flow_cache::Rules;
use flow_core::exec::Stash;
use flow_core::kernels::{HostLanes, LaneRow, LaneSums, LinearWeights, RowOf, SdeOutputs};
use flow_core::{Activation, AdamWStep, Kernels, LaneKernels, LatentShape, Plain, Updated};
use flow_kernels::CpuKernels;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts what is read of sums that a device may still be computing, tensors whose rows were taken apart, and the rows that were
/// kept of each, at most.
#[derive(Clone, Debug, Default)]
struct Counts {
    reads: Arc<AtomicUsize>,
    apart: Arc<AtomicUsize>,
    kept_rows: Arc<AtomicUsize>,
}

impl Counts {
    fn take(count: &AtomicUsize) -> usize {
        count.swap(0, Ordering::Relaxed)
    }

    fn keep(&self, outputs: &Plain) {
        self.kept_rows.fetch_max(outputs.shape()[0], Ordering::Relaxed);
    }
}

impl LaneKernels for Counts {
    fn assemble(
        &self,
        shape: &[usize],
        computed: Option<&Plain>,
        base: Option<&Plain>,
        rows: &[LaneRow<'_>],
    ) -> Plain {
        HostLanes.assemble(shape, computed, base, rows)
    }

    fn features(&self, outputs: &Plain, base: Option<(&Plain, &[usize])>) -> Vec<Plain> {
        self.apart.fetch_add(1, Ordering::Relaxed);
        self.keep(outputs);
        HostLanes.features(outputs, base)
    }

    fn together(&self, outputs: &Plain, base: Option<(&Plain, &[usize])>) -> Plain {
        self.keep(outputs);
        HostLanes.together(outputs, base)
    }

    fn changes(&self, pairs: &[(RowOf<'_>, RowOf<'_>)]) -> LaneSums {
        let (sums, counts) = (HostLanes.changes(pairs), self.clone());
        LaneSums::deferred(move || {
            counts.reads.fetch_add(1, Ordering::Relaxed);
            sums.read()
        })
    }

    fn frequencies(&self, pairs: &[(RowOf<'_>, RowOf<'_>)], shape: &LatentShape) -> Vec<[Plain; 2]> {
        HostLanes.frequencies(pairs, shape)
    }
}

/// The processor's kernels with counted lanes.
#[derive(Debug, Default)]
struct Counted {
    kernels: CpuKernels,
    counts: Counts,
}

impl Kernels for Counted {
    fn name(&self) -> &str {
        self.kernels.name()
    }

    fn lanes(&self) -> &dyn LaneKernels {
        &self.counts
    }

    fn linear(
        &self,
        stash: &dyn Stash,
        x: &DispatchTensor,
        weights: &LinearWeights,
        activation: Activation,
    ) -> DispatchTensor {
        self.kernels.linear(stash, x, weights, activation)
    }

    fn activation(&self, x: &DispatchTensor, activation: Activation) -> DispatchTensor {
        self.kernels.activation(x, activation)
    }

    fn modulated_layer_norm(
        &self,
        x: &DispatchTensor,
        modulation: &DispatchTensor,
        shift: usize,
        scale: usize,
        epsilon: f32,
    ) -> DispatchTensor {
        self.kernels
            .modulated_layer_norm(x, modulation, shift, scale, epsilon)
    }

    fn gated_residual(
        &self,
        residual: &DispatchTensor,
        branch: &DispatchTensor,
        modulation: &DispatchTensor,
        gate: usize,
    ) -> DispatchTensor {
        self.kernels.gated_residual(residual, branch, modulation, gate)
    }

    fn rms_norm(&self, x: &DispatchTensor, weight: Option<&DispatchTensor>, epsilon: f32) -> DispatchTensor {
        self.kernels.rms_norm(x, weight, epsilon)
    }

    fn rotary(&self, x: &DispatchTensor, cos: &Plain, sin: &Plain) -> DispatchTensor {
        self.kernels.rotary(x, cos, sin)
    }

    fn embedding(&self, table: &DispatchTensor, index: &Plain) -> DispatchTensor {
        self.kernels.embedding(table, index)
    }

    fn sde_step(&self, x: &Plain, v: &Plain, noise: &Plain, coefficients: &Plain) -> SdeOutputs {
        self.kernels.sde_step(x, v, noise, coefficients)
    }

    fn sde_log_prob(
        &self,
        x: &Plain,
        v: &DispatchTensor,
        x_next: &Plain,
        coefficients: &Plain,
    ) -> (DispatchTensor, DispatchTensor) {
        self.kernels.sde_log_prob(x, v, x_next, coefficients)
    }

    fn mean_squared_distance(&self, a: &DispatchTensor, b: &Plain) -> DispatchTensor {
        self.kernels.mean_squared_distance(a, b)
    }

    fn sums_of_squares(&self, tensors: &[&Plain]) -> Vec<f64> {
        self.kernels.sums_of_squares(tensors)
    }

    fn step_values(
        &self,
        gradients: &[&Plain],
        factors: &flow_core::StepFactors,
        device: &flow_core::device::ComputeDevice,
    ) -> flow_core::StepValues {
        self.kernels.step_values(gradients, factors, device)
    }

    fn accumulate(&self, accumulated: &mut Plain, gradient: &Plain) {
        self.kernels.accumulate(accumulated, gradient);
    }

    fn adamw_all(&self, weights: Vec<Updated<'_>>, step: &AdamWStep) {
        self.kernels.adamw_all(weights, step);
    }

    fn split(&self, value: &Plain) -> flow_core::Halves {
        self.kernels.split(value)
    }

    fn join(&self, halves: &[flow_core::Halves]) -> Vec<Plain> {
        self.kernels.join(halves)
    }

    fn average_all(&self, averages: Vec<(&mut Plain, &Plain)>, decay: &Plain) {
        self.kernels.average_all(averages, decay);
    }
}

/// The run on counted kernels, and their counts.
fn counted(run: Run) -> (Run, Counts) {
    let kernels = Counted::default();
    let counts = kernels.counts.clone();
    (run.with_kernels(Arc::new(kernels)), counts)
}

/// The steps of a rollout, both branches of all samples in each call. `after` is told the number of each.
fn rollout(run: &Run, mut after: impl FnMut(u32)) {
    let model = toy();
    for step in 0..STEPS {
        let latent = |sample| -> Vec<f32> {
            let start = start(sample).into_iter();
            start.map(|x| x * sigma(step) as f32).collect()
        };
        let row = |conditional| (0..SAMPLES).map(move |sample| (lane(sample, conditional), latent(sample)));
        let rows: Vec<_> = row(true).chain(row(false)).collect();
        run.call(&model, step, sigma(step), false, &rows);
        after(step);
    }
    assert!(run.skipped() > 0);
}

#[test]
fn plans_never_wait_for_the_device_and_other_policies_once_per_question() {
    for (name, run) in policies(Rules::default()) {
        let (run, counts) = counted(run);
        let most = match name {
            "step_mask" | "magcache" | "taylorseer" | "newton" | "pyramid" | "faster" => 0,
            // They compare before a step, and never look at what it gave.
            "first_block" | "db_cache" | "teacache" => 1,
            "easycache" | "auto" => 2,
            other => panic!("`{other}` is not known here"),
        };
        let mut found = 0;
        rollout(&run, |step| {
            let of_step = Counts::take(&counts.reads);
            assert!(of_step <= most, "{name}, step {step}: waited {of_step} times");
            found = found.max(of_step);
        });
        assert_eq!(found, most, "{name}");
    }
}

#[test]
fn what_is_computed_at_the_same_steps_for_all_lanes_is_kept_in_one_tensor() {
    for (name, run) in policies(Rules::default()) {
        let (run, counts) = counted(run);
        rollout(&run, |_| ());
        let apart = Counts::take(&counts.apart);
        if matches!(
            name,
            "step_mask" | "taylorseer" | "newton" | "pyramid" | "magcache" | "faster"
        ) {
            assert_eq!(apart, 0, "{name}: rows were taken apart");
        }
    }
}

#[test]
fn nothing_is_kept_of_lanes_that_are_never_answered() {
    for (name, run) in policies(Rules::default()) {
        let (run, counts) = counted(run);
        rollout(&run, |_| ());
        let samples = SAMPLES as usize;
        let rows = match name {
            // Attention is extrapolated in the conditional branch alone.
            "faster" => samples,
            _ => 2 * samples,
        };
        assert_eq!(Counts::take(&counts.kept_rows), rows, "{name}");
    }
}
