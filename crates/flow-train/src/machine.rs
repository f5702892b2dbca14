//! What this build and this machine can do, as the validator wants to know it.

use flow_validate::Machine;

/// This build and this machine. `memory_gib` is taken in the place of what the operating system says, so that a config
/// can be checked for another machine.
pub fn machine(memory_gib: Option<f64>) -> Machine {
    const BYTES_PER_GIB: f64 = (1u64 << 30) as f64;
    let memory_gib = memory_gib.or_else(|| flow_report::Host::detect().memory_gib);
    Machine {
        devices: flow_core::device::available().to_vec(),
        bf16: match flow_kernels::CpuKernels::bf16() {
            Ok(_) => Ok(()),
            Err(why) => Err(why.to_string()),
        },
        checkpointing: flow_checkpoint::Policy::all().map(|(name, _)| name).collect(),
        runtime_features: crate::runtime_options::FEATURES.iter().copied().collect(),
        memory_bytes: memory_gib.map(|gib| (gib * BYTES_PER_GIB) as u64),
    }
}
