//! What NVIDIA's driver counts as this process's memory, through its management library (NVML), and what it has left.
//!
//! The runtime's pools know tensors. The driver knows the context, the programs and what other libraries take, too, and is what
//! `nvidia-smi` prints.

use cudarc::driver::CudaContext;
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use std::fmt;
use std::sync::Arc;

/// Bytes free on GPU number `index` of those that this process sees, by `cuMemGetInfo`, which knows the parts of a divided GPU
/// (MIG) and the numbers of `CUDA_VISIBLE_DEVICES`; none if the driver does not answer.
pub(super) fn bytes_free(index: usize) -> Option<u64> {
    // The context that the runtime uses, too; nothing is made.
    let context = CudaContext::new(index).ok()?;
    let (free, _) = context.mem_get_info().ok()?;
    u64::try_from(free).ok()
}

/// GPUs that this process sees; 0 without a driver.
pub(super) fn visible() -> usize {
    // Without the library of the driver, everything else of cudarc panics.
    // SAFETY: it loads the library, whose initialisers are those of the driver, if the process has not loaded it.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return 0;
    }
    let count = CudaContext::device_count().ok();
    count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0)
}

/// The driver's count.
#[derive(Clone)]
pub(super) struct DriverMemory(Arc<Nvml>);

impl fmt::Debug for DriverMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DriverMemory")
    }
}

impl DriverMemory {
    /// Asks for the library; none where it is not installed.
    pub fn open() -> Option<Self> {
        Nvml::init().ok().map(|library| Self(Arc::new(library)))
    }

    /// All that the GPU with the most memory has.
    pub fn largest_device_bytes(&self) -> Option<u64> {
        let library = &self.0;
        let devices =
            (0..library.device_count().ok()?).filter_map(|index| library.device_by_index(index).ok());
        let sizes = devices.filter_map(|device| Some(device.memory_info().ok()?.total));
        sizes.max()
    }

    /// Name and compute capability of GPU number `index`.
    pub fn compute_capability(&self, index: usize) -> Option<(String, (u32, u32))> {
        let device = self.0.device_by_index(u32::try_from(index).ok()?).ok()?;
        let capability = device.cuda_compute_capability().ok()?;
        let (major, minor) = (
            capability.major.try_into().ok()?,
            capability.minor.try_into().ok()?,
        );
        Some((device.name().ok()?, (major, minor)))
    }

    /// Bytes of this process on all GPUs; none where the driver does not tell processes apart (some containers).
    pub fn bytes(&self) -> Option<u64> {
        let library = &self.0;
        let devices =
            (0..library.device_count().ok()?).filter_map(|index| library.device_by_index(index).ok());
        let processes = devices.flat_map(|device| device.running_compute_processes().unwrap_or_default());
        let own = processes.filter(|process| process.pid == std::process::id());
        own.filter_map(|process| match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        })
        .reduce(|sum, bytes| sum + bytes)
    }
}
