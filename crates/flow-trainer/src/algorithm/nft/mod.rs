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

mod settings;

pub use settings::{AdvantageMode, NftSettings};

use super::forward::{Forward, optimality};
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
use flow_core::tensors::plain;
use flow_registry::NameTaken;

const NAME: &str = "nft";

/// DiffusionNFT.
#[derive(Clone, Debug)]
pub struct Nft {
    settings: NftSettings,
    /// How the sampling weights follow.
    old_policy: EmaSchedule,
    /// Where the loss is taken.
    timesteps: TimestepSampler,
}

impl Nft {
    /// The algorithm with these settings, its times on the grid of the sampler's steps.
    ///
    /// # Errors
    /// A message, if the range or the count of times does not fit the grid.
    pub fn new(settings: NftSettings, grid: &SigmaGrid) -> Result<Self, String> {
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
        let facts = |settings: &NftSettings| AlgorithmFacts {
            is_coupled: false,
            inner_epochs: settings.inner_epochs,
            // The weights that sample, and a snapshot.
            copies: 1 + usize::from(needs(settings) == Some(ReferenceWeights::Snapshot)),
        };
        let factory = AlgorithmFactory::new::<NftSettings>(
            NAME,
            "DiffusionNFT (Zheng et al. 2025, arXiv 2509.16117): trains on clean images and any solver. Decoupled.",
            facts,
            |context, settings| {
                let schedule = crate::setup::schedule(context.config, context.tokens)?;
                let nft = Self::new(settings, schedule.grid()).map_err(TrainError::setting)?;
                Ok(Box::new(nft))
            },
        );
        registry.register(
            factory
                .with_rules(settings::check)
                .with_step_rule(settings::check_steps),
        )
    }
}

/// The reference that the pull needs, if there is one.
fn needs(settings: &NftSettings) -> Option<ReferenceWeights> {
    (settings.kl_beta > 0.0).then_some(settings.reference)
}

impl Nft {
    fn optimality(&self, advantages_b: Tensor<1>) -> Tensor<1> {
        let chosen = match self.settings.advantage_mode {
            AdvantageMode::All => advantages_b,
            AdvantageMode::PositiveOnly => advantages_b.clamp_min(0.0),
            AdvantageMode::NegativeOnly => advantages_b.clamp_max(0.0),
            AdvantageMode::OneOnly => advantages_b.greater_elem(0.0).float(),
            AdvantageMode::Binary => advantages_b.sign(),
        };
        optimality(chosen, self.advantage_clip())
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
    fn name(&self) -> &str {
        NAME
    }

    fn paradigm(&self) -> Paradigm {
        Paradigm::Decoupled
    }

    fn sampling_weights(&self, _steps: u64) -> SamplingWeights {
        SamplingWeights::Slow(SlowCopy::Old)
    }

    fn reference(&self) -> Option<ReferenceWeights> {
        needs(&self.settings)
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

    fn loss(&self, context: &LossContext<'_, '_>, position: LossPoint) -> PointLoss {
        let forward = Forward::new(context, position);
        let (sigma_b1, x_t, clean) = (&forward.sigma_b1, &forward.x_bn, &forward.clean_bn);
        let v = forward.velocity(context, |call| context.pass.exec(call));
        let v_old = forward.velocity(context, |call| context.sampling.exec(call));

        let b = self.settings.beta as f32;
        let positive = v.clone() * b + v_old.clone() * (1.0 - b);
        let negative = v_old * (1.0 + b) - v.clone() * b;
        let error = |v: Tensor<2>| normalised_error(x_t.clone() - v * sigma_b1.clone(), clean.clone());
        let (error_positive, error_negative) = (error(positive), error(negative));
        let rho = self.optimality(context.advantages.clone());
        let weighted = rho.clone() * error_positive + (rho.neg() + 1.0) * error_negative;
        let mut loss = mean_over_rows(weighted) * (self.advantage_clip() / b);
        let mut terms = vec![("policy_loss", plain(&loss.clone().into_dispatch()))];
        if let (Some(_), Some(reference)) = (needs(&self.settings), context.reference) {
            let v_ref = plain(
                &forward
                    .velocity(context, |call| reference.exec(call))
                    .into_dispatch(),
            );
            let distance = context
                .kernels
                .ops()
                .loss
                .mean_squared_distance(&v.into_dispatch(), &v_ref);
            let distance = mean_over_rows(Tensor::from_dispatch(distance));
            terms.push(("kl", plain(&distance.clone().into_dispatch())));
            loss = loss + distance * self.settings.kl_beta as f32;
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
