//! `fused_kernels`: operations that are made of others computed as one, in rollout and training alike.

use flow_accel::{Accelerator, AcceleratorStage, Engagement, Refusal, Safety, Target};
use flow_core::Backends;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Parameters of `fused_kernels`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FusedKernelsParams {
    /// Where operations are fused.
    pub mode: FusedKernelsMode,
}

/// Where operations are fused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FusedKernelsMode {
    /// Within the model's repeated blocks.
    Regional,
    /// Everywhere.
    Full,
}

/// Puts the fused form of the plan's kernels into their place.
#[derive(Clone, Debug)]
pub struct FusedKernelsAccelerator {
    params: FusedKernelsParams,
}

impl FusedKernelsAccelerator {
    /// The name in configs.
    pub const NAME: &'static str = "fused_kernels";

    /// With `params`.
    pub fn new(params: FusedKernelsParams) -> Self {
        Self { params }
    }
}

impl Accelerator for FusedKernelsAccelerator {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn stage(&self) -> AcceleratorStage {
        AcceleratorStage::Both
    }

    // Fused kernels are one kernel for plain and tracked operands by their contract, and both stages get them.
    fn safety(&self, _: &Backends) -> Safety {
        Safety::Lossless
    }

    fn apply(&self, plan: Backends, target: &Target<'_>) -> Result<Backends, Refusal> {
        let mode = self.params.mode;
        if mode == FusedKernelsMode::Regional && target.model.stacks.is_empty() {
            return Err(Refusal::new(
                format!(
                    "the model `{}` declares no repeated blocks, so `mode = \"regional\"` has no place to fuse in",
                    target.model.architecture
                ),
                "Set `params.mode = \"full\"`, or remove the entry",
            ));
        }
        if let Some(kernels) = &plan.block_kernels {
            return Err(Refusal::new(
                format!("`{}` compute the blocks of this plan already", kernels.name()),
                "Keep one of the entries",
            ));
        }
        let meter = target.meter.clone();
        let on_fused = Arc::new(move || meter.count(Engagement::KernelReplaced, 1));
        let Some(fused) = plan.kernels.fused(on_fused) else {
            return Err(Refusal::new(
                format!(
                    "the kernels `{}` have no fused form other than themselves",
                    plan.kernels.name()
                ),
                "Remove the entry",
            ));
        };
        Ok(match mode {
            FusedKernelsMode::Regional => Backends {
                block_kernels: Some(fused),
                ..plan
            },
            FusedKernelsMode::Full => Backends {
                kernels: fused,
                ..plan
            },
        })
    }

    fn why_idle(&self) -> String {
        "the model asked for no operation that has a fused form where `mode` allows one; set `mode = \"full\"` or remove \
         the entry"
            .into()
    }
}
