//! Weights of the steps of a trajectory in the policy term of a coupled loss.

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
    /// The weight of `step` among the steps that are trained of its group ([`Trajectories::trained`](crate::rollout::Trajectories::trained));
    /// means are over these.
    pub(super) fn of(self, step: &StepCoefficients, trained: &[StepCoefficients]) -> f64 {
        let relative = |size: fn(&StepCoefficients) -> f64| {
            let sum: f64 = trained.iter().map(size).sum();
            size(step) * trained.len() as f64 / sum
        };
        match self {
            Self::None => 1.0,
            Self::InverseInterval => 1.0 / -step.dt,
            Self::Diffusion => relative(|step| step.std_dev),
            Self::Noise => relative(|step| step.noise),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::{
        Dynamics, NoiseLevel, Schedule, ScheduleOptions, SdeWindow, SigmaEnds, SigmaShift,
    };

    #[test]
    fn the_noise_aware_weight_is_the_noise_of_a_step_over_its_mean() {
        let (steps, level) = (10, 0.7);
        let schedule = Schedule::new(&ScheduleOptions {
            steps,
            ends: SigmaEnds::default(),
            shift: SigmaShift::Static(1.0),
            dynamics: Dynamics::FlowSde,
            noise_level: NoiseLevel::Constant(level),
            window: SdeWindow::List((0..steps).collect()),
            seed: 0,
        });
        let trained = schedule.expect("every step has noise").steps_for(0);
        // `s sqrt(-dt)` of an even grid, whose first step takes the second sigma in `1 - sigma`.
        let noise = |step: usize| {
            let sigma = 1.0 - step as f64 / steps as f64;
            let rest = 1.0 - sigma.min(1.0 - 1.0 / steps as f64);
            level * (sigma / rest).sqrt() * (1.0 / steps as f64).sqrt()
        };
        let mean = (0..steps).map(noise).sum::<f64>() / steps as f64;
        let published = [
            2.224, 2.1098, 1.4066, 1.0743, 0.8613, 0.7033, 0.5742, 0.4604, 0.3516, 0.2344,
        ];
        for (step, rounded) in published.into_iter().enumerate() {
            let weight = StepWeights::Noise.of(&trained[step], &trained);
            assert!(
                (weight - noise(step) / mean).abs() < 1e-9,
                "step {step}: {weight}"
            );
            assert!((weight - rounded).abs() < 5e-4, "step {step}: {weight}");
            // Those of some steps are relative to these.
            let alone = StepWeights::Noise.of(&trained[step], &trained[step..=step]);
            assert!((alone - 1.0).abs() < 1e-12, "step {step}: {alone}");
        }
    }
}
