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
    /// `(1 / c) / mean (1 / c)` with the length `c` of the gradient of a step's log-probability with respect to the velocity, per noise,
    /// `sqrt(-dt) / s + s sqrt(-dt) (1 - sigma) / (2 sigma)` of an SDE: the temporal gradient rectification of Flash-GRPO (arXiv
    /// 2605.15980). Every step moves the velocity as far.
    InverseGradient,
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
            Self::InverseGradient => relative(|step| 1.0 / step.velocity_gradient()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::{
        Dynamics, NoiseLevel, Schedule, ScheduleOptions, SdeWindow, SigmaEnds, SigmaGrid, SigmaShift,
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

    #[test]
    fn the_inverse_gradient_is_what_the_official_code_of_flash_grpo_has_for_wan() {
        // Wan's 20 steps with a shift of 3, of which the first ten are trained. The diffusion is `sigmas[1] sigma` there.
        let (steps, shift) = (20, SigmaShift::Static(3.0));
        let grid = SigmaGrid::new(steps, shift).expect("a grid");
        let sigmas = grid.sigmas();
        let levels = sigmas[..steps].iter().map(|sigma| sigmas[1] * sigma).collect();
        let schedule = Schedule::new(&ScheduleOptions {
            steps,
            ends: SigmaEnds::default(),
            shift,
            dynamics: Dynamics::DanceSde,
            noise_level: NoiseLevel::PerStep(levels),
            window: SdeWindow::List((0..10).collect()),
            seed: 0,
        });
        let trained = &schedule.expect("every step has noise").steps_for(0)[..10];
        // `value_dict` of `train_wanx2_1_flash.py`, whose first sigma is a little below 1.
        let published = [
            7.4770, 7.0414, 6.6112, 6.1867, 5.7682, 5.3559, 4.9502, 4.5513, 4.1596, 3.7754,
        ];
        let mean = published.iter().sum::<f64>() / 10.0;
        let weight = |step: &StepCoefficients| StepWeights::InverseGradient.of(step, trained);
        for (step, published) in trained.iter().zip(published) {
            let (weight, number) = (weight(step), step.step);
            assert!(
                (weight - published / mean).abs() < 1e-4,
                "step {number}: {weight}"
            );
            let inverse = 1.0 / step.velocity_gradient();
            assert!(
                (inverse / published - 1.0).abs() < 2e-3,
                "step {number}: {inverse}"
            );
        }
        let sum: f64 = trained.iter().map(weight).sum();
        assert!((sum - 10.0).abs() < 1e-12, "{sum}");
    }
}
