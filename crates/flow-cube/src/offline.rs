//! CUDA sources without a GPU: what a kernel becomes on an H100, for compile checks and for reading.

use cubecl::ir::{AddressType, DeviceProperties, VectorSize};
use cubecl::prelude::*;
use cubecl_core::ir::features::Features;
use cubecl_core::ir::{DeviceIdentity, HardwareProperties, MemoryDeviceProperties, TargetProperties};
use cubecl_core::profile::TimingMethod;
use cubecl_cpp::shared::{CompilationOptions, CppCompiler};
use cubecl_cpp::target::Cuda;
use cubecl_runtime::compiler::Compiler;
use std::sync::Arc;

/// CUDA C++ of a kernel.
#[derive(Clone, Debug)]
pub struct CudaSource {
    /// The text NVRTC gets.
    pub text: String,
    /// Shared memory of a block, in bytes.
    pub shared_memory_bytes: usize,
}

/// A kernel that the compiler refused.
#[derive(Debug, thiserror::Error)]
#[error("CubeCL cannot compile the kernel: {0}")]
pub struct CannotCompile(pub String);

/// What the compiler may assume of an H100, for kernels that are defined here and run nowhere.
pub fn h100() -> Arc<DeviceProperties> {
    Arc::new(DeviceProperties::new(
        Features::default(),
        MemoryDeviceProperties::new(u64::MAX, 512),
        HardwareProperties {
            load_width: 128,
            vector_register_count: None,
            plane_size_min: 32,
            plane_size_max: 32,
            max_bindings: 1024,
            max_shared_memory_size: 227 * 1024,
            max_cube_count: (i32::MAX as u32, u16::MAX as u32, u16::MAX as u32),
            max_units_per_cube: 1024,
            max_cube_dim: (1024, 1024, 64),
            num_streaming_multiprocessors: Some(132),
            num_tensor_cores: Some(4),
            min_tensor_cores_dim: Some(8),
            num_cpu_cores: None,
            last_level_cache_size: None,
            max_vector_size: VectorSize::MAX,
            cube_mma_reserved_shared_memory: 0,
        },
        TimingMethod::Device,
        DeviceIdentity {
            name: "offline".into(),
            fingerprint: "offline".into(),
            physical: None,
        },
    ))
}

/// Settings of a kernel with blocks of `threads` threads, without bounds checks.
pub fn settings(threads: u32) -> KernelSettings {
    KernelSettings::new(
        *CubeDim::new_1d(threads),
        ExecutionMode::Unchecked,
        AddressType::U32,
    )
}

/// Target properties of a kernel defined offline.
pub fn target() -> Arc<TargetProperties> {
    Arc::new(TargetProperties::default())
}

/// What a kernel is defined for: two of them that have this and their arguments in common are the same kernel.
#[derive(Clone, Debug)]
pub struct Properties {
    /// The device's.
    pub device: Arc<DeviceProperties>,
    /// The runtime's.
    pub target: Arc<TargetProperties>,
}

impl Properties {
    /// Of an H100 that is not there.
    pub fn h100() -> Self {
        Self {
            device: h100(),
            target: target(),
        }
    }

    /// Of the device that `client` launches on.
    pub fn of(client: &Client) -> Self {
        Self {
            device: client.properties_shared(),
            target: client.target_properties_shared(),
        }
    }
}

/// Compiles a kernel definition to CUDA C++.
///
/// # Errors
/// [`CannotCompile`] with the compiler's words.
pub fn cuda_source(kernel: KernelDefinition) -> Result<CudaSource, CannotCompile> {
    let mut options = CompilationOptions::default();
    options.supports_features.grid_constants = true;
    options.supports_features.clusters = true;
    options.supports_features.fast_math = true;
    options.supports_features.fast_tanh = true;
    options.supports_features.elect_sync = true;
    options.supports_features.dp4a = true;
    let kernel = CppCompiler::<Cuda>::default()
        .compile(kernel, &options)
        .map_err(|error| CannotCompile(format!("{error:?}")))?;
    Ok(CudaSource {
        shared_memory_bytes: kernel.shared_memory_size,
        text: kernel.source,
    })
}
