//! What computes a network: a device and its plan.

use crate::problem::BuildError;
use flow_attention::CpuAttention;
use flow_core::Backends;
use flow_core::device::ComputeDevice;
use flow_kernels::CpuKernels;
use flow_registry::Refusal;
use flow_rewards::RewardContext;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A device, and who answers for what on it. A program lends one to its rewards ([`Lent`](flow_rewards::Lent)).
#[derive(Clone, Debug)]
pub struct Computation {
    /// Where weights are, and in which precision networks compute.
    pub device: ComputeDevice,
    /// Who computes.
    pub plan: Arc<Backends>,
}

impl Computation {
    /// The processor, in f32.
    pub fn processor() -> Self {
        Self {
            device: ComputeDevice::cpu(),
            plan: Arc::new(Backends::new(
                Arc::new(CpuAttention),
                Arc::new(CpuKernels::default()),
            )),
        }
    }

    /// What `device` stands for in `context`.
    pub(crate) fn of(device: RewardDevice, context: &RewardContext<'_>) -> Result<Self, BuildError> {
        match device {
            RewardDevice::Cpu => Ok(Self::processor()),
            RewardDevice::Run => context.lent.get::<Self>().cloned().ok_or_else(|| {
                BuildError::Params(Refusal::new(
                    "`device`: \"run\" is the device of a training run, and this program lends none to its rewards",
                    "set \"cpu\"",
                ))
            }),
        }
    }
}

/// Where a reward's network computes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RewardDevice {
    /// On the processor, in f32, beside the generation.
    #[default]
    Cpu,
    /// On the device of the run and in its precision, between the run's own work.
    Run,
}
