//! The kernel sets that a config can name.

use crate::CpuKernels;
use flow_core::Kernels;
use flow_registry::{NameTaken, NotFound, Registry};
use std::sync::Arc;

/// Kernel sets by name. Built by the program that uses it; there is no global one.
#[derive(Clone, Debug)]
pub struct KernelRegistry {
    kernels: Registry<Arc<dyn Kernels>>,
}

impl Default for KernelRegistry {
    fn default() -> Self {
        Self {
            kernels: Registry::new("kernel set"),
        }
    }
}

impl KernelRegistry {
    /// Adds `kernels` under their own name.
    ///
    /// # Errors
    /// [`NameTaken`] if there are some of their name.
    pub fn register(&mut self, kernels: Arc<dyn Kernels>) -> Result<(), NameTaken> {
        let name = kernels.name().to_owned();
        self.kernels.register(&name, kernels)?;
        Ok(())
    }

    /// The kernels called `name`, upper and lower case alike.
    ///
    /// # Errors
    /// [`NotFound`] with the names there are.
    pub fn get(&self, name: &str) -> Result<Arc<dyn Kernels>, NotFound> {
        self.kernels.find(name).cloned()
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.kernels.names()
    }
}

/// Registers the kernels of this crate: `cpu`, and `cpu-bf16` where the processor has the instructions; with feature
/// `cuda` also `cuda` and `cuda-bf16`, with feature `lavapipe` also `vulkan`.
///
/// # Errors
/// [`NameTaken`] if one of the names is taken.
pub fn register(registry: &mut KernelRegistry) -> Result<(), NameTaken> {
    #[cfg(feature = "cuda")]
    for kernels in [crate::CubeKernels::cuda(), crate::CubeKernels::cuda_bf16()] {
        registry.register(Arc::new(kernels))?;
    }
    #[cfg(feature = "lavapipe")]
    registry.register(Arc::new(crate::CubeKernels::vulkan()))?;
    registry.register(Arc::new(CpuKernels::default()))?;
    if let Ok(kernels) = CpuKernels::bf16() {
        registry.register(Arc::new(kernels))?;
    }
    Ok(())
}
