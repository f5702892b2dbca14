//! An algorithm: reward-weighted regression.

use burn::tensor::Tensor;
use flow_accel::Paradigm;
use flow_config::AlgorithmFacts;
use flow_core::rng::{Purpose, Stream};
use flow_core::tensors::plain;
use flow_registry::NameTaken;
use flow_trainer::algorithm::{
    Algorithm, AlgorithmFactory, AlgorithmRegistry, LossContext, LossPoint, PointLoss, ReferenceWeights,
};
use flow_trainer::policy::CallSite;
use flow_trainer::scheduler::Schedule;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const NAME: &str = "reward-weighted";

/// Reward-weighted regression (Peters and Schaal 2007) on the flow-matching loss:
/// `mean(exp(A / temperature) · mean((v - (noise - x0))²))`, over images that the current policy made. Its fields are what a
/// config may say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RewardWeighted {
    /// The smaller, the more the best images count.
    #[schemars(range(min = 0.01, max = 100.0))]
    pub temperature: f64,
    /// Times per image at which the loss is taken.
    #[schemars(range(min = 1, max = 1000))]
    pub times_per_image: usize,
}

impl Default for RewardWeighted {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            times_per_image: 4,
        }
    }
}

impl Algorithm for RewardWeighted {
    fn name(&self) -> &str {
        NAME
    }

    fn paradigm(&self) -> Paradigm {
        Paradigm::Decoupled
    }

    fn reference(&self) -> Option<ReferenceWeights> {
        None
    }

    fn inner_epochs(&self) -> usize {
        1
    }

    fn advantage_clip(&self) -> f32 {
        5.0
    }

    fn positions(&self, _schedule: &Schedule, seed: u64, iteration: u64, pass: usize) -> Vec<LossPoint> {
        let mut draws = Stream::new(seed, Purpose::Timesteps).at(iteration, pass as u32);
        let time = |number| LossPoint::Time {
            sigma: 1.0 - draws.uniform(),
            draw: number as u32,
        };
        (0..self.times_per_image).map(time).collect()
    }

    fn loss(&self, context: &LossContext<'_, '_>, position: LossPoint) -> PointLoss {
        let LossPoint::Time { sigma, .. } = position else {
            unreachable!("`positions` gives times only");
        };
        let batch = &context.batch;
        let rows = batch.samples.len();
        let noise =
            Tensor::<2>::from_dispatch(context.noise.clone().expect("the loop draws the noise of a time"));
        let clean = Tensor::<2>::from_dispatch(batch.clean.clone());
        let x = clean.clone() * (1.0 - sigma) + noise.clone() * sigma;
        let target = plain(&(noise - clean).into_dispatch());

        let call = context.policy.call(
            CallSite {
                step: 0,
                sigma: Some(sigma),
                ..context.site
            },
            &batch.samples,
        );
        let exec = context.pass.exec(call);
        let sigma_b = context.device.tensor(vec![sigma as f32; rows], [rows]);
        let v = context.policy.velocity(&exec, x, sigma_b, &batch.conditions);
        let losses = context.kernels.ops().loss;
        let error_b = losses.mean_squared_distance(&v.into_dispatch(), &target);
        let weight_b = (context.advantages.clone() / self.temperature as f32).exp();
        let loss = (Tensor::<1>::from_dispatch(error_b) * weight_b).mean_dim(0);
        PointLoss {
            loss,
            replayed: None,
            terms: Vec::new(),
        }
    }
}

/// Adds the algorithm.
///
/// # Errors
/// [`NameTaken`] if there is one of its name.
pub fn register(registry: &mut AlgorithmRegistry) -> Result<(), NameTaken> {
    let facts = |_: &RewardWeighted| AlgorithmFacts {
        is_coupled: false,
        inner_epochs: 1,
        copies: 0,
    };
    registry.register(AlgorithmFactory::new::<RewardWeighted>(
        NAME,
        "Reward-weighted regression (Peters and Schaal 2007) on the flow-matching loss. Decoupled.",
        facts,
        |_, algorithm| Ok(Box::new(algorithm)),
    ))
}
