//! What this build and this machine can do, as the validator wants to know it.

use flow_config::DeviceKind;
use flow_validate::{Gpu, Machine};

/// This build, and this machine's devices of `kind`, of several GPUs the first. `memory_gib` is taken in the place of what they have, so that a config
/// can be checked for another machine.
pub fn machine(kind: DeviceKind, memory_gib: Option<f64>) -> Machine {
    const BYTES_PER_GIB: f64 = (1u64 << 30) as f64;
    let in_bytes = |gib: f64| (gib * BYTES_PER_GIB) as u64;
    let of_device = || match kind {
        DeviceKind::Cpu => flow_report::Host::detect().memory_gib.map(in_bytes),
        DeviceKind::Cuda => flow_core::device::gpu_memory_bytes(),
    };
    Machine {
        devices: flow_core::device::available().to_vec(),
        bf16: match (kind, flow_kernels::CpuKernels::bf16()) {
            (DeviceKind::Cpu, Err(why)) => Err(why.to_string()),
            _ => Ok(()),
        },
        gpu: match kind {
            DeviceKind::Cpu => None,
            DeviceKind::Cuda => {
                flow_core::device::gpu_compute_capability(0).map(|(name, compute_capability)| Gpu {
                    name,
                    compute_capability,
                })
            }
        },
        checkpointing: flow_checkpoint::Policy::all().map(|(name, _)| name).collect(),
        runtime_features: crate::runtime_options::FEATURES.iter().copied().collect(),
        processors: std::thread::available_parallelism().ok().map(usize::from),
        memory_bytes: memory_gib.map(in_bytes).or_else(of_device),
    }
}
