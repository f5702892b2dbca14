//! Kernels around others: what a layer does not state, the kernels within answer.

use flow_core::ops::{KernelOps, LayeredKernels, OptimizerOps};
use flow_core::{
    AdamWFactors, AdamWParam, AdamWScalars, AdamWStep, Kernels, RawTensor, Squares, device::ComputeDevice,
};
use flow_kernels::CpuKernels;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// States nothing.
#[derive(Debug)]
struct Transparent(Arc<dyn Kernels>);

impl LayeredKernels for Transparent {
    fn inner(&self) -> &dyn Kernels {
        &*self.0
    }

    fn around(&self, inner: Arc<dyn Kernels>) -> Arc<dyn Kernels> {
        Arc::new(Self(inner))
    }
}

/// Counts what an optimizer adds up.
#[derive(Debug)]
struct Counting {
    inner: Arc<dyn Kernels>,
    sums: Arc<AtomicUsize>,
}

impl LayeredKernels for Counting {
    fn inner(&self) -> &dyn Kernels {
        &*self.inner
    }

    fn around(&self, inner: Arc<dyn Kernels>) -> Arc<dyn Kernels> {
        let sums = self.sums.clone();
        Arc::new(Self { inner, sums })
    }

    fn ops(&self) -> KernelOps<'_> {
        KernelOps {
            optimizer: self,
            ..self.inner.ops()
        }
    }
}

impl OptimizerOps for Counting {
    fn sums_of_squares(&self, tensors: &[&RawTensor]) -> Vec<f64> {
        self.sums.fetch_add(tensors.len(), Ordering::Relaxed);
        self.inner.ops().optimizer.sums_of_squares(tensors)
    }

    fn adamw_scalars(
        &self,
        gradients: &[&RawTensor],
        factors: &AdamWFactors,
        device: &ComputeDevice,
    ) -> AdamWScalars {
        self.inner
            .ops()
            .optimizer
            .adamw_scalars(gradients, factors, device)
    }

    fn squares_piece(&self) -> usize {
        self.inner.ops().optimizer.squares_piece()
    }

    fn squares(&self, gradient: &RawTensor, length: usize) -> Squares {
        self.inner.ops().optimizer.squares(gradient, length)
    }

    fn adamw_scalars_of(
        &self,
        squares: &[Squares],
        factors: &AdamWFactors,
        device: &ComputeDevice,
    ) -> AdamWScalars {
        (self.inner.ops().optimizer).adamw_scalars_of(squares, factors, device)
    }

    fn accumulate(&self, accumulated: &mut RawTensor, gradient: &RawTensor) {
        self.inner.ops().optimizer.accumulate(accumulated, gradient);
    }

    fn adamw_all(&self, weights: Vec<AdamWParam<'_>>, step: &AdamWStep) {
        self.inner.ops().optimizer.adamw_all(weights, step);
    }

    fn average_all(&self, averages: Vec<(&mut RawTensor, &RawTensor)>, decay: &RawTensor) {
        self.inner.ops().optimizer.average_all(averages, decay);
    }
}

/// Where the answers of each group come from.
fn answering(kernels: &dyn Kernels) -> [Option<*const ()>; 8] {
    fn place<T: ?Sized>(group: &T) -> Option<*const ()> {
        Some(std::ptr::from_ref(group).cast())
    }
    let ops = kernels.ops();
    [
        place(ops.model),
        ops.fused.and_then(place),
        ops.experts.and_then(place),
        place(ops.sampler),
        place(ops.loss),
        place(ops.optimizer),
        place(ops.weights),
        place(ops.feature_cache),
    ]
}

#[test]
fn a_layer_that_states_nothing_answers_as_the_kernels_within() {
    let inner: Arc<dyn Kernels> = Arc::new(CpuKernels::default());
    let layer = Transparent(inner.clone());
    let layer: &dyn Kernels = &layer;
    assert_eq!(layer.name(), inner.name());
    assert_eq!(layer.activations(), inner.activations());
    assert_eq!(layer.is_row_independent(), inner.is_row_independent());
    assert_eq!(layer.products(), inner.products());
    assert_eq!(layer.recorder().is_some(), inner.recorder().is_some());
    assert_eq!(answering(layer), answering(&*inner));
}

#[test]
fn the_fused_form_of_a_layer_is_a_layer_around_the_fused_form() {
    let sums = Arc::new(AtomicUsize::new(0));
    let layer = Counting {
        inner: Arc::new(CpuKernels::default()),
        sums: sums.clone(),
    };
    let fused = Kernels::fused(&layer, Arc::new(|| ())).expect("the processor fuses");
    assert_eq!(fused.name(), "cpu-fused");
    assert!(fused.ops().fused.is_some());
    let tensor = ComputeDevice::cpu().plain(vec![3.0, 4.0], &[2]);
    assert_eq!(fused.ops().optimizer.sums_of_squares(&[&tensor]), [25.0]);
    assert_eq!(sums.load(Ordering::Relaxed), 1, "the layer was lost");
}

#[test]
fn no_operation_has_a_body_that_a_layer_could_get_instead_of_what_it_is_around() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops");
    let mut traits = Vec::new();
    for file in std::fs::read_dir(folder).expect("the sources") {
        let path = file.expect("a file").path();
        if path.is_dir() {
            continue;
        }
        let source = std::fs::read_to_string(path).expect("text");
        let mut lines = source.lines();
        while let Some(line) = lines.next() {
            let Some(name) = line.strip_prefix("pub trait ") else {
                continue;
            };
            let name = name.split(':').next().expect("a name").to_owned();
            if !name.ends_with("Ops") && name != "Kernels" {
                continue;
            }
            let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "}").collect();
            let code = body.iter().filter(|line| !line.trim_start().starts_with("//"));
            assert!(code.clone().count() > 1, "{name} has methods");
            let block = code.clone().find(|line| line.contains('{'));
            assert_eq!(block, None, "{name}: a method has a body");
            traits.push(name);
        }
    }
    traits.sort();
    let expected = [
        "ExpertOps",
        "FeatureCacheOps",
        "FusedOps",
        "Kernels",
        "LossOps",
        "ModelOps",
        "OptimizerOps",
        "SamplerOps",
        "WeightOps",
    ];
    assert_eq!(traits, expected);
}
