//! Diffusion-OPD, on-policy distillation (arXiv 2605.15055): a student learns what teachers would do at its own latents.
//!
//! Formulas as in Flow-Factory's `diffusion-opd` trainer; `y` is the mean of a step, the velocity, or the image `x - sigma v`, and `s²`
//! the variance of a stochastic step:
//!
//! ```text
//! d = y - y_teacher
//! l = mean(d²)        of a stochastic step mean(d²) / s²        self-normalised: l / (mean|d| + 1e-8), not differentiated below
//! L = mean over rows of l
//! ```
//!
//! At the same latent all three are linear in the velocity, `d = c (v - v_teacher)`, with `c` the coefficient of the velocity in the mean,
//! 1, or `-sigma`. So velocities are compared, and the loss is multiplied by `c²`.
//!
//! Legend: `B` rows, `N` values of one latent.

mod settings;

pub use settings::{LossTarget, OpdSettings, TeacherConfig};

use super::forward::{detached, distance};
use super::grpo::velocity_at;
use super::{
    Algorithm, AlgorithmFactory, AlgorithmRegistry, LossContext, LossPoint, PointLoss, ReferenceWeights,
    Teacher, mean_over_rows,
};
use crate::error::TrainError;
use crate::rollout::StepRecord;
use crate::scheduler::{Dynamics, Schedule, StepCoefficients};
use burn::tensor::Tensor;
use flow_accel::Paradigm;
use flow_config::AlgorithmFacts;
use flow_core::tensors::plain;
use flow_registry::NameTaken;

const NAME: &str = "diffusion-opd";

/// Keeps the division by a mean absolute difference finite (Flow-Factory's constant).
const LEAST_DIFFERENCE: f64 = 1e-8;

/// Diffusion-OPD.
#[derive(Clone, Debug)]
pub struct Opd {
    settings: OpdSettings,
    teachers: Vec<Teacher>,
    /// Numbers of the steps in the range, whether they are stochastic or not.
    steps: Vec<usize>,
    /// Whether all steps are deterministic, and all in the range are compared; else the stochastic ones.
    is_deterministic: bool,
}

impl Opd {
    /// The algorithm with these settings, for rollouts by `schedule`.
    ///
    /// # Errors
    /// A message, if there is no teacher, or one has no file or two.
    pub fn new(settings: OpdSettings, schedule: &Schedule) -> Result<Self, String> {
        Ok(Self {
            teachers: settings.teachers()?,
            steps: settings::steps_within(settings.step_range, schedule.grid().steps()),
            is_deterministic: schedule.dynamics() == Dynamics::Ode,
            settings,
        })
    }

    /// Adds the algorithm to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is an algorithm of its name.
    pub fn register(registry: &mut AlgorithmRegistry) -> Result<(), NameTaken> {
        let facts = |settings: &OpdSettings| AlgorithmFacts {
            is_coupled: false,
            inner_epochs: settings.inner_epochs,
            copies: 0,
        };
        let factory = AlgorithmFactory::new::<OpdSettings>(
            NAME,
            "Diffusion-OPD (arXiv 2605.15055): learns from teachers at the latents of its own rollouts. Distillation.",
            facts,
            |context, settings| {
                let schedule = crate::setup::schedule(context.config, context.tokens)?;
                let opd = Self::new(settings, &schedule).map_err(TrainError::setting)?;
                Ok(Box::new(opd))
            },
        );
        registry.register(
            factory
                .with_rules(settings::check)
                .with_paths(&["teachers.adapter", "teachers.weights"])
                .with_distillation(OpdSettings::facts),
        )
    }

    /// The velocities `[B, N]` that the teachers of the rows have at a recorded step, without a graph.
    fn taught(&self, context: &LossContext<'_, '_>, record: &StepRecord) -> Tensor<2> {
        let mut sum: Option<Tensor<2>> = None;
        for taught in &context.teachers {
            let conditions = &context.batch.conditions;
            let own = self.teachers[taught.teacher]
                .guidance_scale
                .map(|scale| context.policy.under(scale as f32, conditions));
            let policy = match &own {
                Some((policy, conditions)) => (policy, conditions),
                None => (context.policy, conditions),
            };
            // Of all rows, in the shapes of the student's call: equal weights then give equal bits.
            let velocity = velocity_at(context, record, policy, |call| taught.pass.exec(call));
            let mut velocity_bn = detached(&velocity);
            if taught.rows.contains(&false) {
                let shares: Vec<f32> = taught.rows.iter().map(|own| f32::from(u8::from(*own))).collect();
                let rows = shares.len();
                let shares_b: Tensor<1> = context.device.tensor(shares, [rows]);
                let shares_b1: Tensor<2> = shares_b.unsqueeze_dim(1);
                velocity_bn = velocity_bn * shares_b1;
            }
            sum = Some(match sum {
                None => velocity_bn,
                Some(sum) => sum + velocity_bn,
            });
        }
        sum.expect("the loop gives each row a teacher that the algorithm names")
    }

    /// Whether steps are compared of these coefficients.
    fn compares(&self, step: &StepCoefficients) -> bool {
        self.steps.contains(&step.step) && (self.is_deterministic || step.log_prob.is_some())
    }
}

impl Algorithm for Opd {
    fn name(&self) -> &str {
        NAME
    }

    fn paradigm(&self) -> Paradigm {
        Paradigm::Distillation
    }

    fn reference(&self) -> Option<ReferenceWeights> {
        None
    }

    fn inner_epochs(&self) -> usize {
        self.settings.inner_epochs
    }

    /// No bound: advantages are not read.
    fn advantage_clip(&self) -> f32 {
        f32::MAX
    }

    fn teachers(&self) -> &[Teacher] {
        &self.teachers
    }

    fn keeps_step(&self, step: &StepCoefficients) -> bool {
        self.compares(step)
    }

    fn guidance_scales(&self) -> Vec<f64> {
        self.teachers
            .iter()
            .filter_map(|teacher| teacher.guidance_scale)
            .collect()
    }

    fn positions(&self, schedule: &Schedule, _seed: u64, iteration: u64, _pass: usize) -> Vec<LossPoint> {
        let steps = schedule.steps_for(iteration);
        let compared = steps.iter().filter(|step| self.compares(step)).count();
        (0..compared).map(LossPoint::Recorded).collect()
    }

    fn loss(&self, context: &LossContext<'_, '_>, position: LossPoint) -> PointLoss {
        let LossPoint::Recorded(index) = position else {
            unreachable!("the positions of a distillation are steps of the rollout");
        };
        let record = &context.batch.records[index];
        let ours = (context.policy, &context.batch.conditions);
        let velocity_bn = velocity_at(context, record, ours, |call| context.pass.exec(call));
        let target_bn = self.taught(context, record);
        let distance_b = distance(context, velocity_bn.clone(), target_bn.clone());
        let slope = self.settings.loss_target.slope(&record.step);
        let variance = match record.step.is_stochastic() {
            true => record.step.noise.powi(2),
            false => 1.0,
        };
        let mut loss_b = distance_b.clone() * (slope * slope / variance) as f32;
        if self.settings.self_normalise {
            let difference_b1 = (detached(&velocity_bn) - target_bn).abs().mean_dim(1);
            let size_b1 = difference_b1 * slope.abs() as f32 + LEAST_DIFFERENCE as f32;
            let size_b: Tensor<1> = size_b1.squeeze_dim(1);
            loss_b = loss_b / size_b;
        }
        let distance = mean_over_rows(detached(&distance_b));
        PointLoss {
            loss: mean_over_rows(loss_b),
            replayed: None,
            terms: vec![("teacher_distance", plain(&distance.into_dispatch()))],
        }
    }
}
