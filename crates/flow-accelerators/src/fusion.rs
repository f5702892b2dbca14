//! `fusion`: Burn's own fusion of elementwise operations. It is part of Burn's CubeCL backends only, and this build says so.

use flow_accel::{Accelerator, AcceleratorStage, Refusal, Safety, StepScope, Target};
use flow_core::Backends;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Parameters of `fusion`; there are none. How far it searches is the matter of `[runtime.options]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FusionParams {}

/// Refuses: the backend of a processor has no fusion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fusion;

impl Fusion {
    pub(crate) const NAME: &'static str = "fusion";
}

impl Accelerator for Fusion {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn stage(&self) -> AcceleratorStage {
        AcceleratorStage::Both
    }

    // Which operations are fused depends on what is asked for around them, so a loss need not get the rollout's kernels.
    fn safety(&self, _: &Backends) -> Safety {
        Safety::Lossy(StepScope::AllSteps)
    }

    fn apply(&self, _: Backends, _: &Target<'_>) -> Result<Backends, Refusal> {
        Err(Refusal::new(
            format!(
                "Burn compiles its fusion into its CubeCL backends only, where they are built with it, and this program's devices ({}) \
                 run without it",
                flow_core::device::available().join(", ")
            ),
            "Remove the entry; `fused_kernels` computes operations together, with the same bits",
        ))
    }
}
