//! Weights of the steps of a trajectory in the policy term of a coupled loss.

use crate::rollout::StepRecord;
use crate::scheduler::StepCoefficients;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How much the policy term of a step counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StepWeights {
    /// All steps count alike.
    #[default]
    None,
    /// `1 / -dt`, as the official code of GRPO-Guard has it (Wang et al. 2025, arXiv 2510.22319).
    InverseInterval,
    /// `s / mean s` with the diffusion `s` of a step, as GARDO has it (flow_grpo, `train_sd3_gardo.py`).
    Diffusion,
    /// `q / mean q` with the standard deviation `q` of a step's noise, `s sqrt(-dt)` of an SDE: the noise-aware weight of TempFlow-GRPO
    /// (arXiv 2508.04324).
    Noise,
}

impl StepWeights {
    /// The weight of `step` among the recorded steps of its trajectory; means are over these.
    pub(super) fn of(self, step: &StepCoefficients, records: &[StepRecord]) -> f64 {
        let relative = |size: fn(&StepCoefficients) -> f64| {
            let sum: f64 = records.iter().map(|record| size(&record.step)).sum();
            size(step) * records.len() as f64 / sum
        };
        match self {
            Self::None => 1.0,
            Self::InverseInterval => 1.0 / -step.dt,
            Self::Diffusion => relative(|step| step.std_dev),
            Self::Noise => relative(|step| step.noise),
        }
    }
}
