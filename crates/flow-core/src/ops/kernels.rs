//! A set of kernels: what a config names, and who answers for each group of operations.

use super::{
    Composed, ExpertOps, FeatureCacheOps, FusedOps, LossOps, ModelOps, OptimizerOps, SamplerOps, WeightOps,
};
use crate::device::graph::Recorder;
use burn::tensor::{DType, FloatDType};
use std::fmt::Debug;
use std::sync::Arc;

/// Called once for every operation that fused kernels compute as one.
pub type OnFused = Arc<dyn Fn() + Send + Sync>;

/// Who answers for each group of operations. Kernels around others name their own groups and take the rest by
/// `..inner.ops()`, so that a group that is added later is theirs, too.
#[derive(Clone, Copy, Debug)]
pub struct KernelOps<'a> {
    /// A model's layers.
    pub model: &'a dyn ModelOps,
    /// Sequences of a model's operations as one each; without, [`Composed`] answers.
    pub fused: Option<&'a dyn FusedOps>,
    /// A mixture of experts; a model with experts cannot run without.
    pub experts: Option<&'a dyn ExpertOps>,
    /// A sampler's steps.
    pub sampler: &'a dyn SamplerOps,
    /// Losses.
    pub loss: &'a dyn LossOps,
    /// Gradient sums, steps and averages.
    pub optimizer: &'a dyn OptimizerOps,
    /// Weights that are stored or copied.
    pub weights: &'a dyn WeightOps,
    /// A feature cache.
    pub feature_cache: &'a dyn FeatureCacheOps,
}

impl KernelOps<'_> {
    /// What `ask` gets of the fused operations, or of the sequences that they are made of where nothing is fused.
    pub fn fused_or_composed<T>(&self, ask: impl FnOnce(&dyn FusedOps) -> T) -> T {
        match self.fused {
            Some(fused) => ask(fused),
            None => ask(&Composed(self.model)),
        }
    }
}

/// A set of kernels for one kind of device.
pub trait Kernels: Debug + Send + Sync {
    /// Name in configs, logs and manifests.
    fn name(&self) -> &str;

    /// Type of the tensors that pass from operation to operation of a model.
    fn activations(&self) -> DType;

    /// Whether the bits of a row of the batch in every forward here depend neither on the other rows nor on their number,
    /// so that a row that was computed elsewhere, or for another row with the same operands, may be taken instead. A matrix
    /// product that chooses another order of additions for few rows is not so. If unsure, no.
    fn is_row_independent(&self) -> bool;

    /// The kernels that matrix products got so far, by sizes, sorted, for logs and manifests; empty where there is one for all.
    fn products(&self) -> Vec<String>;

    /// The recorder of this device's computations, if it has graphs.
    fn recorder(&self) -> Option<Arc<dyn Recorder>>;

    /// The same kernels with [`FusedOps`], which call `on_fused` once for each operation that they compute as one. `None` if
    /// there are none, or if these are they.
    fn fused(&self, on_fused: OnFused) -> Option<Arc<dyn Kernels>>;

    /// The same kernels with gradients of the matrices of linear layers stored as `dtype`; `None` if they cannot.
    fn with_matrix_gradients(&self, dtype: FloatDType) -> Option<Arc<dyn Kernels>>;

    /// The operations, by who asks for them.
    fn ops(&self) -> KernelOps<'_>;
}
