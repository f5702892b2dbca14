//! `graph_capture`: a denoising step recorded once and replayed. No device of this build can, and it says so.

use flow_accel::{Accelerator, AcceleratorStage, Refusal, Safety, Target};
use flow_core::Plan;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Parameters of `graph_capture`; there are none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GraphCaptureParams {}

/// Refuses: a processor runs operations as they are asked for, there is no graph to record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GraphCapture;

impl GraphCapture {
    pub(crate) const NAME: &'static str = "graph_capture";
}

impl Accelerator for GraphCapture {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn stage(&self) -> AcceleratorStage {
        AcceleratorStage::Both
    }

    fn safety(&self, _: &Plan) -> Safety {
        Safety::Lossless
    }

    fn after(&self) -> &[(&'static str, &'static str)] {
        const WHY: &str = "a capture records the kernels that are in force";
        &[
            (crate::AttentionBackendAccelerator::NAME, WHY),
            (crate::FusedKernelsAccelerator::NAME, WHY),
        ]
    }

    fn apply(&self, _: Plan, _: &Target<'_>) -> Result<Plan, Refusal> {
        Err(Refusal::new(
            "the devices of this build (cpu) run operations as they are asked for and have no graphs to record",
            "Remove the entry",
        ))
    }
}
