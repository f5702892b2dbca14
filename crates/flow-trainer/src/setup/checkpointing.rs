//! What backward keeps: the engine of the config's policy, and the planner of a budget.

use super::{Environment, ModelParts};
use crate::conditions::Conditioner;
use crate::error::TrainError;
use crate::policy::{CallSite, Conditions, Policy as Guided};
use burn::tensor::Tensor;
use flow_accel::Arrangement;
use flow_checkpoint::planner::{PlanRecord, Planner, Workload};
use flow_checkpoint::{Checkpointing, Policy};
use flow_config::Config;
use flow_core::rng::{Purpose, Stream};
use flow_core::{
    Backends, CallModel, ModelSpec, NoCheckpointing, RegionEngine, Stage, TrainingPass,
    device::ComputeDevice, tensors::zeros_like,
};
use flow_data::Prompt;
use flow_validate::{Load, MemoryEstimate, checkpoint_policy};
use std::sync::Arc;
use std::time::Instant;

const BYTES_PER_GIB: f64 = (1u64 << 30) as f64;

/// The engine of the config's policy; for a budget, which needs measurements, one that keeps everything.
///
/// # Errors
/// [`TrainError::Checkpointing`] if the model has nothing that the policy speaks of.
pub fn regions(config: &Config, spec: &ModelSpec) -> Result<Arc<dyn RegionEngine>, TrainError> {
    let policy = checkpoint_policy(config);
    Ok(match policy.assign(spec)? {
        Some(assignment) if policy != Policy::None => {
            Arc::new(Checkpointing::new(policy.to_string(), assignment))
        }
        _ => Arc::new(NoCheckpointing),
    })
}

/// Training steps as a run has them, for whoever measures: one forward and backward pass of the guided velocity on a
/// micro-batch, and several of them beside one another.
pub struct TrainingSteps<'a> {
    /// Model and weights.
    pub model: &'a ModelParts,
    /// With the run's guidance.
    pub policy: Guided,
    /// Of one micro-batch.
    pub conditions: Conditions,
    /// Images of a micro-batch.
    pub rows: usize,
    /// Where tensors live.
    pub device: ComputeDevice,
    /// Passes beside one another.
    pub passes: usize,
    /// Bytes that a run has in use besides: moments, gradients added up, copies of weights, trajectories.
    pub reserved_bytes: u64,
}

impl TrainingSteps<'_> {
    fn velocity(&self, pass: &TrainingPass<'_>) -> Tensor<2> {
        let values = self.model.model.spec().latent.values();
        let mut latents = vec![0.0; self.rows * values];
        Stream::new(0, Purpose::InitialNoise)
            .at(0, 0)
            .fill_normal(&mut latents);
        let site = CallSite {
            stage: Stage::Training,
            iteration: 0,
            step: 0,
            steps: 1,
            stochastic: true,
            sigma: Some(0.5),
        };
        let samples: Vec<u64> = (0..self.rows as u64).collect();
        let exec = pass.exec(self.policy.call(site, &samples));
        let x = self.device.tensor(latents, [self.rows, values]);
        let sigma = self.device.tensor(vec![0.5; self.rows], [self.rows]);
        self.policy.velocity(&exec, x, sigma, &self.conditions)
    }

    fn training(&self, plan: &Arc<Backends>) -> TrainingPass<'_> {
        TrainingPass::new(
            &self.model.weights,
            plan.clone(),
            self.model.trained.clone().into(),
        )
    }

    /// One forward pass.
    pub fn forward(&self, plan: &Arc<Backends>) {
        drop(self.velocity(&self.training(plan)));
    }

    /// A step: every pass with its backward.
    pub fn step(&self, plan: &Arc<Backends>) {
        let gradients = self.device.concurrently(self.passes, |_| {
            let pass = self.training(plan);
            let velocity = self.velocity(&pass).into_dispatch();
            let target = zeros_like(&flow_core::tensors::plain(&velocity));
            let loss = plan.kernels.ops().loss.mean_squared_distance(&velocity, &target);
            pass.gradients(&Tensor::<1>::from_dispatch(loss).mean_dim(0))
        });
        drop(gradients);
    }

    /// What a planner is told.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if the environment has no probe of the device's memory.
    pub fn planner<'s>(&'s self, environment: &'s Environment<'_>) -> Result<Planner<'s>, TrainError> {
        let memory_probe = environment.memory_probe.clone().ok_or_else(|| {
            TrainError::setting(
                "`checkpointing.policy = \"budget\"` needs a measure of the device's memory, and this program has none",
            )
            .with_help("choose another policy")
            .about("checkpointing.policy")
        })?;
        let (start, waiting) = (Instant::now(), memory_probe.clone());
        let workload = Workload {
            spec: self.model.model.spec(),
            plan: &environment.plan,
            forward: Box::new(|plan| self.forward(plan)),
            step: Box::new(|plan| self.step(plan)),
            passes: self.passes,
            reserved_bytes: self.reserved_bytes,
            memory_probe,
            clock: Arc::new(move || {
                // A GPU works by itself; its probe waits for it.
                waiting.in_use_bytes();
                start.elapsed()
            }),
        };
        Ok(Planner::new(workload)?)
    }
}

/// The steps of a config's run: micro-batches of images of the first prompts, `passes` of them beside one another.
pub(super) fn training_steps<'a>(
    config: &Config,
    model: &'a ModelParts,
    (conditioner, prompts): (&Conditioner, &[Prompt]),
    passes: usize,
    environment: &Environment<'_>,
) -> TrainingSteps<'a> {
    let rows = config.sampling.micro_batch;
    let (layout, spec) = (model.weights.layout(), model.model.spec());
    let trained = layout.specs().iter().zip(&model.trained);
    let trained = trained.filter(|(_, trained)| **trained);
    let trained = trained
        .map(|(spec, _)| spec.shape.iter().product::<usize>())
        .sum();
    let ranks = environment.exchange.world().ranks;
    let load = Load::of(config, &environment.plugins.catalog()).on_ranks(config, ranks);
    let estimate = MemoryEstimate::new(layout, spec, trained, &load);
    // Gradients of a pass are measured.
    let reserved =
        estimate.moments + estimate.sums + estimate.copies + estimate.teachers + estimate.trajectories;
    TrainingSteps {
        model,
        policy: Guided::new(model.model.clone(), config.sampling.guidance_scale as f32),
        conditions: conditioner.conditions((0..rows).map(|row| &prompts[row % prompts.len()])),
        rows,
        device: environment.device.clone(),
        passes,
        reserved_bytes: reserved as u64,
    }
}

/// The engine of a budget, and its plan, for steps with `acceleration`.
///
/// # Errors
/// [`TrainError::CheckpointPlan`] if the budget cannot be kept; as [`TrainingSteps::planner`].
pub(super) fn planned(
    peak_gib: f64,
    steps: &TrainingSteps<'_>,
    acceleration: Arrangement,
    environment: &Environment<'_>,
) -> Result<(Arc<dyn RegionEngine>, PlanRecord), TrainError> {
    // The steps that are measured have accelerators of their own.
    let measured = acceleration.set_up(&steps.model.weights)?;
    // Called as it is: a recording of the first pass would be replayed in place of those that are measured.
    let plan = Backends {
        velocities: Arc::new(CallModel),
        ..(**measured.training()).clone()
    };
    let accelerated = Environment {
        plan: Arc::new(plan),
        ..environment.with_regions(measured.training().regions.clone())
    };
    let mut planner = steps.planner(&accelerated)?;
    let (assignment, record) = planner.within((peak_gib * BYTES_PER_GIB) as u64)?;
    let name = Policy::Budget { peak_gib }.to_string();
    Ok((Arc::new(Checkpointing::new(name, assignment)), record))
}
