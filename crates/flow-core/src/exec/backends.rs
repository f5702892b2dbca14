//! Who answers a model's requests, where nothing else is chosen.

use super::{Backends, CallModel, ComputeAllLayers, NoCheckpointing, NoReuse, RunAllBlocks};
use crate::ops::{AttentionBackend, Kernels};
use std::sync::Arc;

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
