//! AWM, advantage-weighted matching (Xue et al. 2025, arXiv 2509.25050): policy gradients of the flow-matching error itself.
//!
//! Formulas as in Flow-Factory `trainers/awm.py` (a0b2bc5), lines 284 to 560, and the official `scripts/train_sd3_awm.py` (be51372):
//!
//! ```text
//! x = (1 - sigma) x0 + sigma e            l = mean((v - (e - x0))²)          log p = -l, or one of four weightings of it
//! r = exp(log p - log p_old)              L = mean(max(-A r, -A clamp(r, 1 + lo, 1 + hi)))
//!                                             + kl_beta mean((v - v_ref)²) + old_policy_beta mean((v - v_old)²)
//! ```
//!
//! `log p_old` is the same at the same time and noise under the weights that sampled, computed before the first optimizer step of a pass.

mod settings;

pub use settings::{AwmSettings, ErrorWeighting};

use super::forward::{Forward, distance};
use super::grpo::clipped_loss;
use super::times::{drawn_positions, follows_iterations};
use super::{
    Algorithm, AlgorithmFactory, AlgorithmRegistry, LossContext, LossPoint, Moment, PointLoss,
    ReferenceWeights, SamplingWeights, SlowCopy, mean_over_rows,
};
use crate::ema::EmaSchedule;
use crate::error::TrainError;
use crate::scheduler::{Schedule, SigmaGrid};
use crate::timesteps::TimestepSampler;
use burn::tensor::Tensor;
use flow_accel::Paradigm;
use flow_config::AlgorithmFacts;
use flow_core::RawTensor;
use flow_core::tensors::plain;
use flow_registry::NameTaken;

const NAME: &str = "awm";

/// What keeps roots and powers differentiable at an error of 0.
const SMALL: f64 = 1e-10;

/// Advantage-weighted matching.
#[derive(Clone, Debug)]
pub struct Awm {
    settings: AwmSettings,
    /// How the slower copy follows.
    old_policy: EmaSchedule,
    /// Where the loss is taken.
    timesteps: TimestepSampler,
}

impl Awm {
    /// The algorithm with these settings, its times on the grid of the sampler's steps.
    ///
    /// # Errors
    /// A message, if the range or the count of times does not fit the grid.
    pub fn new(settings: AwmSettings, grid: &SigmaGrid) -> Result<Self, String> {
        Ok(Self {
            old_policy: (&settings.old_policy).into(),
            timesteps: TimestepSampler::from_config(&settings.train_timesteps, grid)?,
            settings,
        })
    }

    /// Adds the algorithm to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is an algorithm of its name.
    pub fn register(registry: &mut AlgorithmRegistry) -> Result<(), NameTaken> {
        let facts = |settings: &AwmSettings| AlgorithmFacts {
            is_coupled: false,
            inner_epochs: settings.inner_epochs,
            copies: usize::from(settings.keeps_old())
                + usize::from(settings.needs() == Some(ReferenceWeights::Snapshot)),
        };
        let factory = AlgorithmFactory::new::<AwmSettings>(
            NAME,
            "AWM (Xue et al. 2025, arXiv 2509.25050): advantage-weighted flow matching with a clipped ratio. Decoupled.",
            facts,
            |context, settings| {
                let schedule = crate::setup::schedule(context.config, context.tokens)?;
                let awm = Self::new(settings, schedule.grid()).map_err(TrainError::setting)?;
                Ok(Box::new(awm))
            },
        );
        registry.register(
            factory
                .with_rules(settings::check)
                .with_step_rule(settings::check_steps),
        )
    }

    /// The log-probability `[B]` of errors `[B]` at a noise level.
    fn log_prob(&self, error_b: Tensor<1>, sigma: f64) -> Tensor<1> {
        let p = self.settings.huber_power;
        match self.settings.weighting {
            ErrorWeighting::Uniform => error_b.neg(),
            ErrorWeighting::Sigma => error_b * -sigma as f32,
            ErrorWeighting::SigmaSquared => error_b * (-sigma * sigma) as f32,
            ErrorWeighting::Huber => ((error_b + SMALL as f32).sqrt() - SMALL.sqrt() as f32) * -sigma as f32,
            ErrorWeighting::GeneralisedHuber => {
                ((error_b + SMALL as f32).powf_scalar(p as f32) - SMALL.powf(p) as f32) * (-sigma / p) as f32
            }
        }
    }
}

impl Algorithm for Awm {
    fn name(&self) -> &str {
        NAME
    }

    fn paradigm(&self) -> Paradigm {
        Paradigm::Decoupled
    }

    fn sampling_weights(&self, _steps: u64) -> SamplingWeights {
        if self.settings.off_policy {
            SamplingWeights::Slow(SlowCopy::Old)
        } else {
            SamplingWeights::Current
        }
    }

    fn keeps(&self, copy: SlowCopy) -> bool {
        copy == SlowCopy::Old && self.settings.keeps_old()
    }

    fn reference(&self) -> Option<ReferenceWeights> {
        self.settings.needs()
    }

    fn inner_epochs(&self) -> usize {
        self.settings.inner_epochs
    }

    fn advantage_clip(&self) -> f32 {
        self.settings.advantage_clip as f32
    }

    fn positions(&self, _schedule: &Schedule, seed: u64, iteration: u64, pass: usize) -> Vec<LossPoint> {
        drawn_positions(&self.timesteps, seed, iteration, pass)
    }

    fn looks_before(&self) -> bool {
        true
    }

    fn before(&self, context: &LossContext<'_, '_>, position: LossPoint) -> Option<RawTensor> {
        let forward = Forward::new(context, position);
        let v_old = forward.velocity(context, |call| context.sampling.exec(call));
        let log_prob = self.log_prob(forward.error(context, v_old), forward.sigma);
        Some(plain(&log_prob.into_dispatch()))
    }

    fn loss(&self, context: &LossContext<'_, '_>, position: LossPoint) -> PointLoss {
        let forward = Forward::new(context, position);
        let v = forward.velocity(context, |call| context.pass.exec(call));
        let log_prob = self.log_prob(forward.error(context, v.clone()), forward.sigma);
        let before = context.before.clone();
        let old = Tensor::from_dispatch(
            before.expect("the loop computes what this algorithm looks at before a pass"),
        );
        let ratio = (log_prob - old).exp();
        let mut terms = vec![("ratio", plain(&ratio.clone().into_dispatch()))];
        let (policy_b, decided_b) = clipped_loss(ratio, context.advantages.clone(), self.settings.clip_range);
        terms.push(("clip_fraction", decided_b.into_dispatch()));
        let mut loss = mean_over_rows(policy_b);
        terms.push(("policy_loss", plain(&loss.clone().into_dispatch())));
        let pulls = [
            ("kl", self.settings.kl_beta, context.reference),
            ("old_policy_kl", self.settings.old_policy_beta, context.old),
        ];
        for (name, beta, towards) in pulls.into_iter().filter(|(_, beta, _)| *beta > 0.0) {
            let towards = towards.expect("the loop provides the weights an algorithm asks for");
            let other = forward.velocity(context, |call| towards.exec(call));
            let pull = mean_over_rows(distance(context, v.clone(), other));
            terms.push((name, plain(&pull.clone().into_dispatch())));
            loss = loss + pull * beta as f32;
        }
        PointLoss {
            loss,
            replayed: None,
            terms,
        }
    }

    fn survives(&self, _copy: SlowCopy, moment: Moment) -> Option<f64> {
        follows_iterations(&self.old_policy, moment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow_core::cpu;
    use flow_core::device::ComputeDevice;

    #[test]
    fn each_weighting_follows_its_formula() {
        let grid = SigmaGrid::new(4, crate::scheduler::SigmaShift::NONE).expect("a grid");
        for (weighting, expected) in [
            (ErrorWeighting::Uniform, -0.04),
            (ErrorWeighting::Sigma, -0.02),
            (ErrorWeighting::SigmaSquared, -0.01),
            (ErrorWeighting::Huber, -0.099_995_000_125),
            (ErrorWeighting::GeneralisedHuber, -0.888_102_636_238_6),
        ] {
            let settings = AwmSettings {
                weighting,
                ..AwmSettings::default()
            };
            let awm = Awm::new(settings, &grid).expect("the times fit the grid");
            let error = ComputeDevice::cpu().tensor(vec![0.04], [1]);
            let found = cpu::to_host(&awm.log_prob(error, 0.5).into_dispatch())[0];
            assert!(
                (f64::from(found) - expected).abs() < 2e-7,
                "{weighting:?}: {found}"
            );
        }
    }
}
