//! Who answers a model's requests.

use super::{
    AttentionLog, CallModel, ComputeAllLayers, LayerDriver, NoCheckpointing, NoReuse, RegionEngine,
    ReuseDriver, RunAllBlocks, StackDriver, VelocityDriver,
};
use crate::ops::{AttentionBackend, Kernels};
use std::sync::Arc;

/// The implementations behind an execution context. Built once per stage, shared by all its calls.
#[derive(Clone, Debug)]
pub struct Backends {
    /// Computes attention.
    pub attention: Arc<dyn AttentionBackend>,
    /// Computes everything else.
    pub kernels: Arc<dyn Kernels>,
    /// Computes it within the blocks of a stack, if not the same kernels do.
    pub block_kernels: Option<Arc<dyn Kernels>>,
    /// Decides what backward keeps of a region.
    pub regions: Arc<dyn RegionEngine>,
    /// Runs the blocks of a stack; a feature cache may answer for some.
    pub stacks: Arc<dyn StackDriver>,
    /// Computes attention layers; a feature cache may answer for some.
    pub layers: Arc<dyn LayerDriver>,
    /// Calls the model; a feature cache may answer for it.
    pub velocities: Arc<dyn VelocityDriver>,
    /// Computes what several rows or calls have in common, or takes it from where it was computed.
    pub reuse: Arc<dyn ReuseDriver>,
    /// Which kernels answered.
    pub attention_log: Arc<AttentionLog>,
}

impl Backends {
    /// Every block runs, backward keeps everything.
    pub fn new(attention: Arc<dyn AttentionBackend>, kernels: Arc<dyn Kernels>) -> Self {
        Self {
            attention,
            kernels,
            block_kernels: None,
            regions: Arc::new(NoCheckpointing),
            stacks: Arc::new(RunAllBlocks),
            layers: Arc::new(ComputeAllLayers),
            velocities: Arc::new(CallModel),
            reuse: Arc::new(NoReuse),
            attention_log: Arc::default(),
        }
    }

    /// Whether no kernel lets a row of a result depend on the other rows of its batch, nor on their number.
    pub fn is_row_independent(&self) -> bool {
        let kernels = std::iter::once(&self.kernels).chain(&self.block_kernels);
        self.attention.is_row_independent() && kernels.into_iter().all(|kernels| kernels.is_row_independent())
    }

    /// The plan in words, for logs and the run manifest.
    pub fn describe(&self) -> String {
        let blocks = self.block_kernels.as_ref();
        let blocks = blocks.map(|kernels| format!(" (in blocks {})", kernels.name()));
        format!(
            "attention {}, kernels {}{}, regions {}, stacks {}, layers {}, velocities {}, reuse {}",
            self.attention.name(),
            self.kernels.name(),
            blocks.unwrap_or_default(),
            self.regions.name(),
            self.stacks.name(),
            self.layers.name(),
            self.velocities.name(),
            self.reuse.name()
        )
    }
}
