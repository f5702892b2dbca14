//! `[device]`: where tensors live, and in which type they are stored.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[device]`: device, storage type and threads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DeviceConfig {
    /// Kind of device. `cuda` needs a build with feature `cuda`.
    pub kind: DeviceKind,
    /// Which device of that kind, from 0. Must be 0 on `cpu`.
    #[schemars(range(max = 1023))]
    pub index: usize,
    /// Type of the operands of matrix products. Statistics, log-probabilities, losses and optimizer state are f32
    /// whatever this says.
    pub dtype: DType,
    /// Worker threads of the CPU backend; 0 takes all the cores. Results do not depend on it.
    #[schemars(range(max = 4096))]
    pub threads: usize,
}

/// Kind of device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// The processor, through Burn's flex backend.
    #[default]
    Cpu,
    /// An NVIDIA GPU, through CubeCL.
    Cuda,
}

impl DeviceKind {
    /// As written in the config.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }
}

/// What linear layers round the operands of their matrix products to; on a GPU also what passes between operations. Sums,
/// statistics, losses and optimizer state are f32 in each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DType {
    /// IEEE single precision.
    #[default]
    F32,
    /// bfloat16: eight bits of mantissa with the range of f32. On a CPU it needs AVX512_BF16.
    Bf16,
}

impl DType {
    /// As written in the config.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}
