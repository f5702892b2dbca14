//! An NVIDIA GPU as kernels are chosen by, as data.

/// An NVIDIA GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its name, for messages.
    pub name: String,
    /// Compute capability: major, minor.
    pub compute_capability: (u32, u32),
}

impl Gpu {
    /// Whether it has Hopper's asynchronous tensor cores (`wgmma`, PTX ISA 9.0, section 9.7.15: sm_90a alone).
    pub fn is_hopper(&self) -> bool {
        self.compute_capability == (9, 0)
    }

    /// Whether it has tensor cores for bf16 with asynchronous copies (`mma.sync`, `cp.async`: since 8.0).
    pub fn has_mma(&self) -> bool {
        self.compute_capability >= (8, 0)
    }

    /// The compute capability as NVIDIA writes it.
    pub fn capability(&self) -> String {
        let (major, minor) = self.compute_capability;
        format!("{major}.{minor}")
    }
}
