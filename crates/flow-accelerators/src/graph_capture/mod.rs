//! `graph_capture`: calls of the model recorded once and replayed, in rollout and training alike.

mod calls;
mod driver;

use driver::Replaying;
use flow_accel::{Accelerator, AcceleratorStage, Refusal, Safety, Target};
use flow_core::VelocityDriver;
use flow_core::{
    Backends, CallModel, ComputeAllLayers, LayerDriver, NoReuse, ReuseDriver, RunAllBlocks, StackDriver,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Parameters of `graph_capture`; there are none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GraphCaptureParams {}

/// Puts recordings into the place of calls of the model.
#[derive(Clone, Copy, Debug)]
pub struct GraphCaptureAccelerator;

impl GraphCaptureAccelerator {
    /// The name in configs.
    pub const NAME: &'static str = "graph_capture";
}

const DECIDES: &str = "it decides call by call what is computed, and a recording always computes the same";

impl Accelerator for GraphCaptureAccelerator {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn stage(&self) -> AcceleratorStage {
        AcceleratorStage::Both
    }

    // A replay launches what a call would, on the same bits, in the same order.
    fn safety(&self, _: &Backends) -> Safety {
        Safety::Lossless
    }

    // A `feature_cache` comes later, and says itself whether it answers for whole calls, below which recordings may stand.
    fn conflicts(&self) -> &[(&'static str, &'static str)] {
        &[(crate::ExactReuseAccelerator::NAME, DECIDES)]
    }

    fn after(&self) -> &[(&'static str, &'static str)] {
        const WHY: &str = "a capture records the kernels that are in force";
        &[
            (crate::AttentionBackendAccelerator::NAME, WHY),
            (crate::FusedKernelsAccelerator::NAME, WHY),
        ]
    }

    fn apply(&self, plan: Backends, target: &Target<'_>) -> Result<Backends, Refusal> {
        let deciding = [
            (plan.stacks.name(), RunAllBlocks.name()),
            (plan.layers.name(), ComputeAllLayers.name()),
            (plan.velocities.name(), CallModel.name()),
            (plan.reuse.name(), NoReuse.name()),
        ];
        if let Some((other, _)) = deciding.iter().find(|(found, plain)| found != plain) {
            return Err(Refusal::new(
                format!("`{other}` is in force: {DECIDES}"),
                "Keep one of the entries",
            ));
        }
        let Some(recorder) = plan.kernels.recorder() else {
            return Err(Refusal::new(
                format!(
                    "the device of the kernels `{}` runs operations as they are asked for and has no graphs to record",
                    plan.kernels.name()
                ),
                "Set `device.kind = \"cuda\"`, or remove the entry",
            ));
        };
        let (meter, recorded) = (target.meter.clone(), target.below.to_vec());
        let velocities = Replaying::new(plan.velocities.clone(), recorder, meter, recorded);
        Ok(Backends {
            velocities: Arc::new(velocities),
            ..plan
        })
    }

    fn why_idle(&self) -> String {
        "no call of the model was replayed; remove the entry".into()
    }
}
