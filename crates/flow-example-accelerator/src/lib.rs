//! An accelerator from outside of flow-train: the code of the guide `docs/src/howto/accelerator.md`.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod driver;

pub use driver::StepReuseDriver;

use flow_accel::{
    Accelerator, AcceleratorRegistry, AcceleratorStage, NameTaken, Refusal, Safety, StepScope, Target,
};
use flow_core::Backends;
use flow_core::exec::{RunAllBlocks, StackDriver};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

// ANCHOR: params
/// Parameters of `step_reuse`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StepReuseParams {
    /// Every how many steps the blocks are computed.
    #[schemars(range(min = 2, max = 1000))]
    pub every: u32,
    /// In which steps blocks may be left out: `all_steps`, or `outside_sde_window`, which a coupled algorithm needs.
    #[serde(default)]
    pub scope: StepScope,
}
// ANCHOR_END: params

// ANCHOR: accelerator
/// Answers the steps between the computed ones with the change that the blocks made last.
#[derive(Clone, Debug)]
pub struct StepReuse {
    params: StepReuseParams,
}

impl StepReuse {
    /// The name in configs.
    pub const NAME: &'static str = "step_reuse";

    /// With `params`.
    pub fn new(params: StepReuseParams) -> Self {
        Self { params }
    }
}

impl Accelerator for StepReuse {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn stage(&self) -> AcceleratorStage {
        AcceleratorStage::Rollout
    }

    fn safety(&self, _: &Backends) -> Safety {
        Safety::Lossy(self.params.scope)
    }

    fn apply(&self, plan: Backends, target: &Target<'_>) -> Result<Backends, Refusal> {
        if target.model.stacks.is_empty() {
            return Err(Refusal::new(
                format!(
                    "the model `{}` has no stack of blocks, so there is nothing to leave out",
                    target.model.architecture
                ),
                "Remove the entry",
            ));
        }
        if plan.stacks.name() != RunAllBlocks.name() {
            return Err(Refusal::new(
                format!("`{}` drives the stacks of this plan already", plan.stacks.name()),
                "Keep one of the entries",
            ));
        }
        let spare_stochastic = self.params.scope == StepScope::OutsideSdeWindow;
        Ok(Backends {
            stacks: Arc::new(StepReuseDriver::new(
                self.params.every,
                spare_stochastic,
                target.meter.clone(),
            )),
            ..plan
        })
    }

    fn why_idle(&self) -> String {
        format!(
            "no trajectory had a step to answer between computed ones; lower `every = {}`, raise `scheduler.steps`, or \
             remove the entry",
            self.params.every
        )
    }
}
// ANCHOR_END: accelerator

// ANCHOR: register
/// Registers `step_reuse`.
///
/// # Errors
/// [`NameTaken`] if the name is taken.
pub fn register(registry: &mut AcceleratorRegistry) -> Result<(), NameTaken> {
    registry.register(
        StepReuse::NAME,
        AcceleratorStage::Rollout,
        "the change of the last computed step used again (lossy; `every` is required)",
        |params: StepReuseParams| Ok(StepReuse::new(params)),
    )?;
    Ok(())
}
// ANCHOR_END: register
