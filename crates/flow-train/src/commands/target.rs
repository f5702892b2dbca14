//! The device that a config is judged for: this machine's, or one that is not here.

use crate::arguments::TargetArguments;
use crate::named_devices::Gpu;
use flow_config::{CheckpointingConfig, Config, DType, DeviceKind, GradientStorage, WeightStorage};
use flow_runtime::Feature;
use flow_validate::Machine;
use std::fmt;

/// Where a config is to run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// On this machine's device.
    Here,
    /// On a GPU that is not this machine's: a known one, or any with so much memory.
    Elsewhere {
        /// What is known of it.
        gpu: Option<Gpu>,
        /// Its memory.
        memory_gib: f64,
    },
}

impl Target {
    /// What the command line asks for; `config.device.kind` follows `--device`. A GPU of which the memory alone is given is
    /// this machine's where it has one.
    pub fn of(arguments: &TargetArguments, config: &mut Config) -> Self {
        if let Some(device) = arguments.device {
            config.device.kind = device.kind();
            config.device.index = 0;
        }
        let gpu = arguments.device.and_then(|device| device.gpu());
        let is_here = flow_core::device::gpu_memory_bytes().is_some();
        let memory_gib = arguments.memory_gib.or(gpu.map(Gpu::memory_gib));
        match memory_gib {
            Some(memory_gib) if config.device.kind == DeviceKind::Cuda && (gpu.is_some() || !is_here) => {
                Self::Elsewhere { gpu, memory_gib }
            }
            _ => Self::Here,
        }
    }

    /// What can be done there. `memory_gib` is taken in the place of this machine's.
    pub fn machine(self, kind: DeviceKind, memory_gib: Option<f64>) -> Machine {
        let Self::Elsewhere { gpu, memory_gib } = self else {
            return flow_train::machine(kind, memory_gib);
        };
        Machine {
            devices: vec!["cpu", "cuda"],
            bf16: Ok(()),
            gpu: gpu.map(|gpu| flow_validate::Gpu {
                name: gpu.name.to_owned(),
                compute_capability: gpu.compute_capability,
            }),
            runtime_features: [Feature::Cubecl, Feature::Cuda, Feature::Persistence].into(),
            ..flow_train::machine(kind, Some(memory_gib))
        }
    }

    /// The config with this machine's processor in the place of a device that is not here, and without what only that device
    /// knows: of it files, shapes and prompts can be built here.
    pub fn stand_in(self, config: &Config) -> Config {
        let mut config = config.clone();
        if self == Self::Here {
            return config;
        }
        config.device.kind = DeviceKind::Cpu;
        config.device.dtype = DType::F32;
        config.device.index = 0;
        config.optimizer.gradients = GradientStorage::F32;
        config.optimizer.weights = WeightStorage::F32;
        config.acceleration.shared.clear();
        config.acceleration.rollout.clear();
        config.runtime.options.clear();
        if matches!(config.checkpointing, CheckpointingConfig::Budget(_)) {
            config.checkpointing = CheckpointingConfig::None(Default::default());
        }
        config
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here => f.write_str("this machine's"),
            Self::Elsewhere { gpu: Some(gpu), .. } => gpu.fmt(f),
            Self::Elsewhere { memory_gib, .. } => write!(f, "a GPU of {memory_gib} GiB"),
        }
    }
}
