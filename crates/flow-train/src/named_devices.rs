//! Devices by name, so that a config can be checked and planned for one that is not here.

use clap::ValueEnum;
use flow_train::config::DeviceKind;

/// A device that `--device` knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NamedDevice {
    /// A processor; the memory is this machine's
    Cpu,
    /// NVIDIA B200, 179 GiB
    B200,
    /// NVIDIA H200, 140 GiB
    H200,
    /// NVIDIA H100, 80 GB
    H100,
    /// NVIDIA A100, 80 GB
    A100,
    /// NVIDIA A100, 40 GB
    A100_40gb,
    /// NVIDIA L40S, 48 GB
    L40s,
    /// NVIDIA L4, 24 GB
    L4,
    /// NVIDIA A10G, 24 GB
    A10g,
    /// NVIDIA GeForce RTX 5090, 32 GB
    Rtx5090,
    /// NVIDIA GeForce RTX 4090, 24 GB
    Rtx4090,
    /// NVIDIA GeForce RTX 3090, 24 GB
    Rtx3090,
    /// NVIDIA V100, 32 GB
    V100,
    /// NVIDIA T4, 16 GB
    T4,
}

/// What is known of an NVIDIA GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu {
    /// Its name.
    pub name: &'static str,
    /// Memory in MiB as `nvidia-smi` shows it, with error correction on where it is by default.
    pub memory_mib: u32,
    /// Compute capability, major and minor (NVIDIA, "CUDA GPU Compute Capability").
    pub compute_capability: (u32, u32),
}

impl NamedDevice {
    /// What `device.kind` it is.
    pub fn kind(self) -> DeviceKind {
        match self {
            Self::Cpu => DeviceKind::Cpu,
            _ => DeviceKind::Cuda,
        }
    }

    /// What is known of it, if it is a GPU.
    pub fn gpu(self) -> Option<Gpu> {
        let (name, memory_mib, compute_capability) = match self {
            Self::Cpu => return None,
            Self::B200 => ("NVIDIA B200", 183_359, (10, 0)),
            Self::H200 => ("NVIDIA H200", 143_771, (9, 0)),
            Self::H100 => ("NVIDIA H100", 81_559, (9, 0)),
            Self::A100 => ("NVIDIA A100 80GB", 81_920, (8, 0)),
            Self::A100_40gb => ("NVIDIA A100 40GB", 40_960, (8, 0)),
            Self::L40s => ("NVIDIA L40S", 46_068, (8, 9)),
            Self::L4 => ("NVIDIA L4", 23_034, (8, 9)),
            Self::A10g => ("NVIDIA A10G", 23_028, (8, 6)),
            Self::Rtx5090 => ("NVIDIA GeForce RTX 5090", 32_607, (12, 0)),
            Self::Rtx4090 => ("NVIDIA GeForce RTX 4090", 24_564, (8, 9)),
            Self::Rtx3090 => ("NVIDIA GeForce RTX 3090", 24_576, (8, 6)),
            Self::V100 => ("NVIDIA V100 32GB", 32_768, (7, 0)),
            Self::T4 => ("NVIDIA T4", 15_360, (7, 5)),
        };
        Some(Gpu {
            name,
            memory_mib,
            compute_capability,
        })
    }
}

impl Gpu {
    /// Memory in GiB.
    pub fn memory_gib(self) -> f64 {
        f64::from(self.memory_mib) / 1024.0
    }
}

impl std::fmt::Display for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (major, minor) = self.compute_capability;
        write!(
            f,
            "{}, {:.1} GiB, compute capability {major}.{minor}",
            self.name,
            self.memory_gib()
        )
    }
}
