//! DiffusionNFT (Zheng et al. 2025, arXiv:2509.16117): reinforcement on the forward process, from final images only.
//!
//! Formulas as in the official `scripts/train_nft_sd3.py` (24af555), lines 914 to 970, and Flow-Factory
//! `trainers/nft.py`, lines 389 to 441, with `b` the strength, `rho` the optimality of a sample:
//!
//! ```text
//! x_t = (1 - sigma) x0 + sigma eps        rho = clamp(A / clip / 2 + 1/2, 0, 1)
//! v+  = b v + (1 - b) v_old               v-  = (1 + b) v_old - b v
//! x±  = x_t - sigma v±                    w±  = max(mean|x± - x0|, 1e-5), no gradient
//! l±  = mean((x± - x0)² / w±)             L   = mean(clip (rho l+ + (1 - rho) l-) / b) + kl_beta mean((v - v_ref)²)
//! ```

use super::{Algorithm, LossContext, Position, ReferenceWeights, SamplingWeights, UnitLoss, mean_over_rows};
use crate::ema::EmaSchedule;
use crate::policy::CallSite;
use crate::scheduler::Schedule;
use crate::timesteps::TimestepSampler;
use burn::tensor::Tensor;
use flow_accel::Paradigm;
use flow_core::rng::{Purpose, Stream};
use flow_core::tensors::plain;

/// How advantages become optimalities (`adv_mode` of the official code).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdvantageMode {
    /// As they are.
    All,
    /// Negative ones count as 0.
    PositiveOnly,
    /// Positive ones count as 0.
    NegativeOnly,
    /// Positive ones count as 1, the others as 0.
    OneOnly,
    /// Their sign.
    Binary,
}

/// DiffusionNFT's settings.
#[derive(Clone, Debug)]
pub struct Nft {
    /// Strength `b` of the implicit guidance.
    pub beta: f32,
    /// Bound on advantages.
    pub advantage_clip: f32,
    /// How advantages become optimalities.
    pub advantage_mode: AdvantageMode,
    /// Factor of the pull towards the reference, with the reference.
    pub kl: Option<(f32, ReferenceWeights)>,
    /// How the sampling weights follow.
    pub old_policy: EmaSchedule,
    /// Where the loss is taken.
    pub timesteps: TimestepSampler,
    /// Passes over one rollout.
    pub inner_epochs: usize,
}

impl Nft {
    fn optimality(&self, advantages_b: Tensor<1>) -> Tensor<1> {
        let chosen = match self.advantage_mode {
            AdvantageMode::All => advantages_b,
            AdvantageMode::PositiveOnly => advantages_b.clamp_min(0.0),
            AdvantageMode::NegativeOnly => advantages_b.clamp_max(0.0),
            AdvantageMode::OneOnly => advantages_b.greater_elem(0.0).float(),
            AdvantageMode::Binary => advantages_b.sign(),
        };
        (chosen / (2.0 * self.advantage_clip) + 0.5).clamp(0.0, 1.0)
    }
}

/// `mean((x - x0)² / w)` per row with `w = max(mean|x - x0|, 1e-5)` held constant; `[B]`.
fn normalised_error(x_bn: Tensor<2>, clean_bn: Tensor<2>) -> Tensor<1> {
    let difference = x_bn - clean_bn;
    let weight_b1: Tensor<2> = Tensor::<2>::from_dispatch(plain(&difference.clone().into_dispatch()))
        .abs()
        .mean_dim(1)
        .clamp_min(1e-5);
    let squared = difference.clone() * difference;
    (squared.mean_dim(1) / weight_b1).squeeze_dim(1)
}

impl Algorithm for Nft {
    const NAME: &'static str = "nft";
    const PARADIGM: Paradigm = Paradigm::Decoupled;

    fn sampling_weights(&self) -> SamplingWeights {
        SamplingWeights::Old
    }

    fn reference(&self) -> Option<ReferenceWeights> {
        self.kl.map(|(_, reference)| reference)
    }

    fn inner_epochs(&self) -> usize {
        self.inner_epochs
    }

    fn advantage_clip(&self) -> f32 {
        self.advantage_clip
    }

    fn positions(&self, _schedule: &Schedule, seed: u64, iteration: u64, pass: usize) -> Vec<Position> {
        let mut draws = Stream::new(seed, Purpose::Timesteps).at(iteration, pass as u32);
        let sigmas = self.timesteps.sample(&mut draws);
        let base = pass * sigmas.len();
        sigmas
            .into_iter()
            .enumerate()
            .map(|(index, sigma)| Position::Time {
                sigma,
                draw: (base + index) as u32,
            })
            .collect()
    }

    fn loss(&self, context: &LossContext<'_, '_>, position: Position) -> UnitLoss {
        let Position::Time { sigma, .. } = position else {
            unreachable!("this algorithm takes its loss at drawn times");
        };
        let batch = context.batch.samples.len();
        let clean = Tensor::<2>::from_dispatch(context.batch.clean.clone());
        let noise = context
            .noise
            .clone()
            .expect("the loop draws the noise of a drawn time");
        let sigma_b: Tensor<1> = context.device.tensor(vec![sigma as f32; batch], [batch]);
        let sigma_b1: Tensor<2> = sigma_b.clone().unsqueeze_dim(1);
        let x_t =
            clean.clone() * (sigma_b1.clone().neg() + 1.0) + Tensor::from_dispatch(noise) * sigma_b1.clone();

        let call = || {
            context.policy.call(
                CallSite {
                    step: 0,
                    sigma: Some(sigma),
                    ..context.site
                },
                &context.batch.samples,
            )
        };
        let conditions = &context.batch.conditions;
        let velocity = |exec: &flow_core::Exec<'_>| {
            context
                .policy
                .velocity(exec, x_t.clone(), sigma_b.clone(), conditions)
        };
        let v = velocity(&context.pass.exec(call()));
        let v_old = velocity(&context.sampling.exec(call()));

        let b = self.beta;
        let positive = v.clone() * b + v_old.clone() * (1.0 - b);
        let negative = v_old * (1.0 + b) - v.clone() * b;
        let error = |v: Tensor<2>| normalised_error(x_t.clone() - v * sigma_b1.clone(), clean.clone());
        let (error_positive, error_negative) = (error(positive), error(negative));
        let rho = self.optimality(context.advantages.clone());
        let weighted = rho.clone() * error_positive + (rho.neg() + 1.0) * error_negative;
        let mut loss = mean_over_rows(weighted) * (self.advantage_clip / b);
        let mut terms = vec![("policy_loss", plain(&loss.clone().into_dispatch()))];
        if let (Some((beta, _)), Some(reference)) = (self.kl, context.reference) {
            let v_ref = plain(&velocity(&reference.exec(call())).into_dispatch());
            let distance = context
                .kernels
                .ops()
                .loss
                .mean_squared_distance(&v.into_dispatch(), &v_ref);
            let distance = mean_over_rows(Tensor::from_dispatch(distance));
            terms.push(("kl", plain(&distance.clone().into_dispatch())));
            loss = loss + distance * beta;
        }
        UnitLoss {
            loss,
            replayed: None,
            terms,
        }
    }

    fn old_policy_decay(&self, iteration: u64) -> Option<f64> {
        Some(self.old_policy.decay_at(iteration))
    }
}
