//! `feature_cache`: blocks of a rollout answered from what an earlier step computed.

use flow_accel::{Accelerator, AcceleratorStage, Engagement, Refusal, Safety, StepScope, Target};
use flow_cache::{FirstBlock, Rules, StackCache};
use flow_core::{Plan, RunAll, StackDriver};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Parameters of `feature_cache`, chosen by `policy`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "policy", rename_all = "snake_case", deny_unknown_fields)]
pub enum FeatureCacheParams {
    /// The first block decides for the others (ParaAttention; diffusers `hooks/first_block_cache.py`).
    FirstBlock(FirstBlockParams),
}

/// Parameters of the policy `first_block`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FirstBlockParams {
    /// Largest relative change of the first block's residual at which a step is answered. Above about 0.2 images suffer.
    #[schemars(range(max = 10.0), extend("exclusiveMinimum" = 0.0))]
    pub threshold: f64,
    /// Steps at the start of a trajectory that are computed.
    #[schemars(range(max = 1000))]
    pub warmup_steps: u32,
    /// Most steps in a row that are answered; 0 for any number.
    #[schemars(range(max = 1000))]
    pub max_consecutive: u32,
    /// Whether the last step is computed.
    pub compute_last: bool,
    /// In which steps blocks may be answered: `all_steps`, or `outside_sde_window`, which a coupled algorithm needs.
    pub scope: StepScope,
}

impl Default for FirstBlockParams {
    fn default() -> Self {
        Self {
            threshold: 0.08,
            warmup_steps: 0,
            max_consecutive: 0,
            compute_last: false,
            scope: StepScope::AllSteps,
        }
    }
}

/// Puts a cache in the place of the driver that runs every block.
#[derive(Clone, Debug)]
pub(crate) struct FeatureCache {
    params: FirstBlockParams,
}

impl FeatureCache {
    pub(crate) const NAME: &'static str = "feature_cache";

    pub(crate) fn new(params: FeatureCacheParams) -> Result<Self, Refusal> {
        let FeatureCacheParams::FirstBlock(params) = params;
        if !(params.threshold > 0.0 && params.threshold <= 10.0) {
            return Err(Refusal::new(
                format!(
                    "`threshold` is {}, but must be above 0 and at most 10",
                    params.threshold
                ),
                "Set `params.threshold`, for instance to 0.08",
            ));
        }
        Ok(Self { params })
    }
}

impl Accelerator for FeatureCache {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn stage(&self) -> AcceleratorStage {
        AcceleratorStage::Rollout
    }

    fn safety(&self, _: &Plan) -> Safety {
        Safety::Lossy(self.params.scope)
    }

    fn apply(&self, plan: Plan, target: &Target<'_>) -> Result<Plan, Refusal> {
        if !target.model.stacks.iter().any(|(_, blocks)| *blocks >= 2) {
            return Err(Refusal::new(
                format!(
                    "the model `{}` declares no stack of at least two blocks, so there is nothing to leave out",
                    target.model.architecture
                ),
                "Remove the entry",
            ));
        }
        if plan.stacks.name() != RunAll.name() {
            return Err(Refusal::new(
                format!("`{}` drives the stacks of this plan already", plan.stacks.name()),
                "Keep one of the entries",
            ));
        }
        let params = &self.params;
        let policy = FirstBlock {
            threshold: params.threshold,
        };
        let rules = Rules {
            warmup_steps: params.warmup_steps,
            max_consecutive: params.max_consecutive,
            compute_last: params.compute_last,
            outside_sde_window: params.scope == StepScope::OutsideSdeWindow,
            per_batch: false,
        };
        let meter = target.meter.clone();
        let count = move |blocks| meter.count(Engagement::BlockSkipped, blocks);
        Ok(Plan {
            stacks: Arc::new(StackCache::new(policy, rules, Box::new(count))),
            ..plan
        })
    }

    fn why_idle(&self) -> String {
        format!(
            "no step changed the first block by as little as `threshold = {}` since the last computed one; with few \
             steps neighbours are far apart. Raise `threshold` or `scheduler.steps`, or remove the entry",
            self.params.threshold
        )
    }
}
