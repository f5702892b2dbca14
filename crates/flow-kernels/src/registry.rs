//! The kernel sets that a config can name.

use crate::CpuKernels;
use flow_core::Kernels;
use flow_registry::UnknownName;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A name that no registered kernel set has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct UnknownKernels(#[from] pub UnknownName);

/// Kernel sets by name. Built by the program that uses it; there is no global one.
#[derive(Clone, Debug, Default)]
pub struct KernelRegistry {
    kernels: BTreeMap<String, Arc<dyn Kernels>>,
}

impl KernelRegistry {
    /// Adds `kernels` under their own name; returns those that had the name before.
    pub fn insert(&mut self, kernels: Arc<dyn Kernels>) -> Option<Arc<dyn Kernels>> {
        self.kernels.insert(kernels.name().to_owned(), kernels)
    }

    /// The kernels called `name`.
    ///
    /// # Errors
    /// [`UnknownKernels`] with the names there are.
    pub fn get(&self, name: &str) -> Result<Arc<dyn Kernels>, UnknownKernels> {
        let kernels = self.kernels.get(name).cloned();
        kernels.ok_or_else(|| UnknownKernels(UnknownName::new("kernel set", name, self.names())))
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.kernels.keys().map(String::as_str)
    }
}

/// Registers the kernels of this crate: `cpu`, and `cpu-bf16` where the processor has the instructions; with feature
/// `cuda` also `cuda` and `cuda-bf16`, with feature `lavapipe` also `vulkan`.
pub fn register(registry: &mut KernelRegistry) {
    #[cfg(feature = "cuda")]
    for kernels in [crate::CubeKernels::cuda(), crate::CubeKernels::cuda_bf16()] {
        registry.insert(Arc::new(kernels));
    }
    #[cfg(feature = "lavapipe")]
    registry.insert(Arc::new(crate::CubeKernels::vulkan()));
    registry.insert(Arc::new(CpuKernels::default()));
    if let Ok(kernels) = CpuKernels::bf16() {
        registry.insert(Arc::new(kernels));
    }
}
