//! DMD2, improved distribution matching distillation (Yin et al. 2024, arXiv 2405.14867), at the student's own steps.
//!
//! Formulas as in Flow-Factory's `dmd2` trainer. `b` is a step drawn for the iteration; a fake score learns the velocities of what the
//! student has there, and the student moves from where the fake score points to where the frozen teacher points:
//!
//! ```text
//! x_gen = x + dt v(x)                     the step into b once more, differentiated; x as the rollout stored it
//! x_s   = (1 - s) x_gen + s e             s drawn for each row, from `perturbation_range`
//! fake score   L = mean((v_fake(x_s) - (e - x_gen))²)        x_gen as the rollout stored it
//! student      n = max(mean|x_gen - real|, 1e-6)             real = x_s - s v_teacher(x_s), fake likewise
//!              L = mean((x_gen - sg(x_gen - (fake - real) / n))²) / 2
//! ```

mod settings;

pub use settings::Dmd2Settings;
pub(super) use settings::check_dynamics;

use super::fake::{RUN_FACTS, Scores, copies, noisy, size, velocity_at_rows};
use super::forward::{detached, distance};
use super::grpo::velocity_at;
use super::{
    Algorithm, AlgorithmFactory, AlgorithmRegistry, LossContext, LossPoint, NetworkPlan, NetworkRole,
    PointLoss, ReferenceWeights, mean_over_rows,
};
use crate::rollout::StepRecord;
use crate::scheduler::{Schedule, StepCoefficients};
use burn::tensor::Tensor;
use flow_accel::Paradigm;
use flow_config::AlgorithmFacts;
use flow_core::rng::{Purpose, Stream};
use flow_core::tensors::plain;
use flow_registry::NameTaken;

const NAME: &str = "dmd2";

/// DMD2.
#[derive(Clone, Debug)]
pub struct Dmd2 {
    settings: Dmd2Settings,
    /// Seed of the run, for noise levels.
    seed: u64,
}

impl Dmd2 {
    /// The algorithm with these settings in a run of this seed.
    pub fn new(settings: Dmd2Settings, seed: u64) -> Self {
        Self { settings, seed }
    }

    /// Adds the algorithm to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is an algorithm of its name.
    pub fn register(registry: &mut AlgorithmRegistry) -> Result<(), NameTaken> {
        let facts = |settings: &Dmd2Settings| AlgorithmFacts {
            is_coupled: false,
            inner_epochs: 1,
            copies: copies(settings.reference),
        };
        let factory = AlgorithmFactory::new::<Dmd2Settings>(
            NAME,
            "DMD2 (arXiv 2405.14867): makes a few-step model of its frozen self, by a fake score. Distillation.",
            facts,
            |context, settings| Ok(Box::new(Self::new(settings, context.config.run.seed))),
        );
        registry.register(
            factory
                .with_rules(settings::check)
                .with_distillation(|_: &Dmd2Settings| RUN_FACTS),
        )
    }

    /// A noise level for each row, addressed by its sample and the draw.
    fn sigmas(&self, context: &LossContext<'_, '_>, draw: u32) -> Vec<f64> {
        let [low, high] = self.settings.perturbation_range;
        let stream = Stream::new(self.seed, Purpose::Timesteps);
        let of = |sample: &u64| low + stream.at(*sample, draw).uniform() * (high - low);
        context.batch.samples.iter().map(of).collect()
    }
}

/// The record of a position, and the address of its noise.
pub(super) fn recorded<'a>(context: &'a LossContext<'_, '_>, position: LossPoint) -> (&'a StepRecord, u32) {
    let LossPoint::Step { index, draw } = position else {
        unreachable!("the positions of a distillation by scores are steps with noise");
    };
    (&context.batch.records[index], draw)
}

impl Algorithm for Dmd2 {
    fn name(&self) -> &str {
        NAME
    }

    fn paradigm(&self) -> Paradigm {
        Paradigm::Distillation
    }

    fn reference(&self) -> Option<ReferenceWeights> {
        Some(self.settings.reference)
    }

    fn inner_epochs(&self) -> usize {
        1
    }

    /// No bound: advantages are not read.
    fn advantage_clip(&self) -> f32 {
        f32::MAX
    }

    fn keeps_step(&self, _step: &StepCoefficients) -> bool {
        true
    }

    fn guidance_scales(&self) -> Vec<f64> {
        self.settings.real_guidance_scale.into_iter().collect()
    }

    fn positions(&self, schedule: &Schedule, seed: u64, iteration: u64, _pass: usize) -> Vec<LossPoint> {
        let steps = schedule.grid().steps() as u64;
        let mut draws = Stream::new(seed, Purpose::Window).at(iteration, 0);
        vec![LossPoint::Step {
            index: draws.below(steps) as usize,
            draw: 0,
        }]
    }

    fn loss(&self, context: &LossContext<'_, '_>, position: LossPoint) -> PointLoss {
        let (record, draw) = recorded(context, position);
        let ours = (context.policy, &context.batch.conditions);
        let velocity_bn = velocity_at(context, record, ours, |call| context.pass.exec(call));
        let before_bn = Tensor::<2>::from_dispatch(record.x.clone());
        let made_bn = velocity_bn * record.step.mean_v as f32 + before_bn * record.step.mean_x as f32;
        let plain_bn = detached(&made_bn);
        let sigmas = self.sigmas(context, draw);
        let (x_bn, _) = noisy(context, &plain_bn, &sigmas);
        let guidance = self.settings.real_guidance_scale;
        let scores = Scores::at(context, &x_bn, &sigmas, guidance);
        let size_b1 = size(&plain_bn, &scores.real_bn);
        let direction_bn = (scores.fake_bn - scores.real_bn) / size_b1;
        let stored_bn = Tensor::<2>::from_dispatch(record.x_next.clone());
        let replay_b1 = (plain_bn.clone() - stored_bn).abs().max_dim(1);
        let distance_b = distance(context, made_bn, plain_bn - direction_bn) * 0.5;
        PointLoss {
            loss: mean_over_rows(distance_b),
            replayed: None,
            terms: vec![("replay_difference", plain(&replay_b1.into_dispatch()))],
        }
    }

    fn network(&self, role: NetworkRole) -> Option<NetworkPlan> {
        (role == NetworkRole::FakeScore).then(|| (&self.settings.fake_score).into())
    }

    fn network_positions(&self, _role: NetworkRole, positions: &[LossPoint], turn: usize) -> Vec<LossPoint> {
        later_draws(positions, turn)
    }

    fn network_loss(
        &self,
        _role: NetworkRole,
        context: &LossContext<'_, '_>,
        position: LossPoint,
    ) -> PointLoss {
        let (record, draw) = recorded(context, position);
        let made_bn = Tensor::<2>::from_dispatch(record.x_next.clone());
        let sigmas = self.sigmas(context, draw);
        let (x_bn, noise_bn) = noisy(context, &made_bn, &sigmas);
        let velocity_bn = velocity_at_rows(context, x_bn, &sigmas, 1.0, |call| context.pass.exec(call));
        PointLoss {
            loss: mean_over_rows(distance(context, velocity_bn, noise_bn - made_bn)),
            replayed: None,
            terms: Vec::new(),
        }
    }
}

/// The same steps with noise of their own, for a turn of a network beside the student.
pub(super) fn later_draws(positions: &[LossPoint], turn: usize) -> Vec<LossPoint> {
    let later = positions.len() * (turn + 1);
    let of = |position: &LossPoint| match *position {
        LossPoint::Step { index, draw } => LossPoint::Step {
            index,
            draw: draw + later as u32,
        },
        other => other,
    };
    positions.iter().map(of).collect()
}
