//! How often a rollout waits for the device: never for a policy that decides by a plan, and for the others once to decide
//! about all rows of a call and once to learn from those that were computed. And how often rows are kept one by one: never, where
//! all are computed at the same steps.

use crate::isolation::{SAMPLES, STEPS, policies, sigma, start, toy};
use crate::toy::{Run, trajectory_id};
use burn::backend::TensorMetadata;
use flow_cache::Rules;
use flow_core::ops::{DeferredSums, RowSource, TensorRow};
use flow_core::{FeatureCacheOps, KernelOps, Kernels, LatentShape, LayeredKernels, RawTensor};
use flow_kernels::{CpuFeatureCache, CpuKernels};
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

    fn keep(&self, outputs: &RawTensor) {
        self.kept_rows.fetch_max(outputs.shape()[0], Ordering::Relaxed);
    }
}

impl FeatureCacheOps for Counts {
    fn assemble(
        &self,
        shape: &[usize],
        computed: Option<&RawTensor>,
        base: Option<&RawTensor>,
        rows: &[RowSource<'_>],
    ) -> RawTensor {
        CpuFeatureCache.assemble(shape, computed, base, rows)
    }

    fn features(&self, outputs: &RawTensor, base: Option<(&RawTensor, &[usize])>) -> Vec<RawTensor> {
        self.apart.fetch_add(1, Ordering::Relaxed);
        self.keep(outputs);
        CpuFeatureCache.features(outputs, base)
    }

    fn together(&self, outputs: &RawTensor, base: Option<(&RawTensor, &[usize])>) -> RawTensor {
        self.keep(outputs);
        CpuFeatureCache.together(outputs, base)
    }

    fn changes(&self, pairs: &[(TensorRow<'_>, TensorRow<'_>)]) -> DeferredSums {
        let (sums, counts) = (CpuFeatureCache.changes(pairs), self.clone());
        DeferredSums::deferred(move || {
            counts.reads.fetch_add(1, Ordering::Relaxed);
            sums.read()
        })
    }

    fn frequencies(
        &self,
        pairs: &[(TensorRow<'_>, TensorRow<'_>)],
        shape: &LatentShape,
    ) -> Vec<[RawTensor; 2]> {
        CpuFeatureCache.frequencies(pairs, shape)
    }
}

/// The processor's kernels with a counted feature cache.
#[derive(Debug)]
struct Counted {
    kernels: Arc<dyn Kernels>,
    counts: Counts,
}

impl LayeredKernels for Counted {
    fn inner(&self) -> &dyn Kernels {
        &*self.kernels
    }

    fn around(&self, kernels: Arc<dyn Kernels>) -> Arc<dyn Kernels> {
        let counts = self.counts.clone();
        Arc::new(Self { kernels, counts })
    }

    fn ops(&self) -> KernelOps<'_> {
        KernelOps {
            feature_cache: &self.counts,
            ..self.kernels.ops()
        }
    }
}

/// The run on counted kernels, and their counts.
fn counted(run: Run) -> (Run, Counts) {
    let counts = Counts::default();
    let kernels = Counted {
        kernels: Arc::new(CpuKernels::default()),
        counts: counts.clone(),
    };
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
        let row = |conditional| {
            (0..SAMPLES).map(move |sample| (trajectory_id(sample, conditional), latent(sample)))
        };
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
