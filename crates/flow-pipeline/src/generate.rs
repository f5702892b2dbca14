//! From embeddings and noise to latents, by the steps of the pipeline's scheduler.

mod unipc;

use crate::{GuidanceRule, Pipeline, PipelineError, sigmas};
use burn::tensor::Tensor;
use flow_core::exec::{CallContext, Exec, InferencePass, Stage};
use flow_core::{Backends, Condition, FlowModel, ModelInput, Weights};
use flow_diffusers::Scheduler;
use std::sync::Arc;
use unipc::Solver;

/// Two branches of a batch, or one.
#[derive(Clone, Debug)]
pub struct Guidance {
    /// What the other branch is told: the negative prompts.
    pub unconditional: Condition,
    /// How far beyond the other branch, by the model's [`GuidanceRule`].
    pub scale: f64,
}

/// What is generated, and with what.
#[derive(Debug)]
pub struct Generation<'a> {
    /// The transformer.
    pub model: &'a dyn FlowModel,
    /// Its weights, with adapters if there are some.
    pub weights: &'a Weights,
    /// Kernels and attention.
    pub plan: &'a Arc<Backends>,
    /// What to generate, one row for each sample.
    pub condition: Condition,
    /// Guidance by a second branch; none: the condition alone.
    pub guidance: Option<Guidance>,
    /// Steps.
    pub steps: usize,
}

/// The latents `[B, N]` that the pipeline makes of noise `start_BN`; `on_step` is called with those after each step.
///
/// Steps are those of the folder's scheduler: Euler's, or UniPC's. Both compute in f32, with coefficients in f64.
///
/// # Errors
/// [`PipelineError::Setting`] for a number of steps that the scheduler does not have.
pub fn generate(
    pipeline: &Pipeline,
    generation: &Generation<'_>,
    start_bn: Tensor<2>,
    mut on_step: impl FnMut(usize, &Tensor<2>),
) -> Result<Tensor<2>, PipelineError> {
    let tokens = generation.model.spec().tokens;
    let sigmas = sigmas(pipeline.family(), pipeline.scheduler(), generation.steps, tokens)?;
    let pass = InferencePass::new(generation.weights, generation.plan.clone());
    let exec = pass.exec(CallContext::single(Stage::Evaluation));
    let mut solver = match pipeline.scheduler() {
        Scheduler::FlowMatchEuler(_) => None,
        Scheduler::UniPc(settings) => Some(Solver::new(settings.clone(), sigmas.clone())),
    };
    let mut x_bn = start_bn;
    for step in 0..generation.steps {
        let level = match pipeline.scheduler() {
            Scheduler::FlowMatchEuler(_) => sigmas[step],
            // Its timesteps are whole numbers, cut off.
            Scheduler::UniPc(settings) => {
                let trained = settings.num_train_timesteps as f64;
                (sigmas[step] * trained).floor() / trained
            }
        };
        let v_bn = velocity(generation, &exec, x_bn.clone(), level as f32);
        x_bn = match &mut solver {
            Some(solver) => solver.step(step, x_bn, v_bn),
            None => x_bn + v_bn * ((sigmas[step + 1] - sigmas[step]) as f32),
        };
        on_step(step, &x_bn);
    }
    Ok(x_bn)
}

/// The guided velocity; both branches are one batch, conditional rows first.
fn velocity(generation: &Generation<'_>, exec: &Exec<'_>, x_bn: Tensor<2>, sigma: f32) -> Tensor<2> {
    let ([batch, values], device) = (x_bn.dims(), x_bn.device());
    let levels = |rows: usize| Tensor::<1>::full([rows], sigma, &device);
    let Some(guidance) = &generation.guidance else {
        let input = ModelInput {
            x: x_bn,
            sigma: levels(batch),
            condition: generation.condition.clone(),
        };
        return exec.velocity(generation.model, input);
    };
    let input = ModelInput {
        x: Tensor::cat(vec![x_bn.clone(), x_bn], 0),
        sigma: levels(2 * batch),
        condition: generation
            .condition
            .clone()
            .stacked(guidance.unconditional.clone()),
    };
    let both = exec.velocity(generation.model, input);
    let conditional = both.clone().slice([0..batch, 0..values]);
    let empty = both.slice([batch..2 * batch, 0..values]);
    let rule = GuidanceRule::of(generation.model.spec());
    rule.combine(conditional, empty, guidance.scale as f32)
}
