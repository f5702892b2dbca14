//! `exact_reuse`: what members of a group have in common is computed once, in every call that is not differentiated.

use flow_accel::{Accelerator, AcceleratorStage, Engagement, Part, Refusal, Safety, Target};
use flow_cache::{ExactReuse, OnReused, Reused};
use flow_core::{Backends, NoReuse, ReuseDriver};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Parameters of `exact_reuse`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExactReuseParams {
    /// Most memory for what is kept, in MiB. Beyond it nothing more is kept until the next rollout; what is kept then depends
    /// on the order of threads, so counts may too, but never a result.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub limit_mib: u64,
}

impl Default for ExactReuseParams {
    fn default() -> Self {
        Self { limit_mib: 1024 }
    }
}

/// Puts a store into the plan that computes nothing twice.
#[derive(Clone, Debug)]
pub struct ExactReuseAccelerator {
    params: ExactReuseParams,
}

impl ExactReuseAccelerator {
    /// The name in configs.
    pub const NAME: &'static str = "exact_reuse";

    /// With `params`.
    pub fn new(params: ExactReuseParams) -> Self {
        Self { params }
    }
}

impl Accelerator for ExactReuseAccelerator {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn stage(&self) -> AcceleratorStage {
        AcceleratorStage::Both
    }

    // A value is taken in place of one that the same kernels would compute from the same operands with the same weights, and
    // no kernel of the plan lets a row depend on others: `apply` sees to that.
    fn safety(&self, _: &Backends) -> Safety {
        Safety::Lossless
    }

    fn after(&self) -> &[(&'static str, &'static str)] {
        const WHY: &str = "it asks the kernels that are in force whether a row depends on others";
        &[
            (crate::AttentionBackendAccelerator::NAME, WHY),
            (crate::FusedKernelsAccelerator::NAME, WHY),
        ]
    }

    fn apply(&self, plan: Backends, target: &Target<'_>) -> Result<Backends, Refusal> {
        if plan.reuse.name() != NoReuse.name() {
            return Err(Refusal::new(
                format!("`{}` reuses in this plan already", plan.reuse.name()),
                "Keep one of the entries",
            ));
        }
        if !plan.is_row_independent() {
            return Err(Refusal::new(
                format!(
                    "attention `{}` and kernels `{}` do not promise that a row has the same bits whatever batch it is in, so \
                     what was computed for one row is not exactly what would be for another",
                    plan.attention.name(),
                    plan.kernels.name()
                ),
                "Remove the entry, or choose another attention backend or device",
            ));
        }
        let limit_bytes = self.params.limit_mib << 20;
        let reuse = Arc::new(ExactReuse::new(limit_bytes, count(target)));
        Ok(Backends { reuse, ..plan })
    }

    fn why_idle(&self) -> String {
        "no two rows had the same condition and noise level, and no call came again with the same weights. Put members of a \
         group into one micro-batch (`sampling.micro_batch`), set `sampling.initial_noise = \"per_group\"`, or remove the \
         entry"
            .into()
    }
}

fn count(target: &Target<'_>) -> OnReused {
    let meter = target.meter.clone();
    Box::new(move |reused| match reused {
        Reused::Part {
            rows,
            computed,
            kept_bytes,
        } => {
            meter.count(Engagement::PartReused, rows - computed);
            meter.keeps(kept_bytes);
        }
        Reused::Call { step, rows, computed } => {
            meter.count(Engagement::ForwardShared, rows - computed);
            meter.share(Engagement::ForwardShared, Part::Step(step), rows - computed, rows);
        }
    })
}
