//! A plan for programs; `docs/src/config.md` describes it. Numbers carry their unit in the key and are not rounded.

use super::described::{Described, Figures};
use flow_config::{Config, Finetune};
use flow_trainer::algorithm::Algorithm;
use flow_trainer::scheduler::StepCoefficients;
use flow_trainer::trainer::Parts;
use flow_trainer::setup::Environment;
use serde_json::{Map, Value, json};

/// The plan of a run whose parts are there.
pub(super) fn of_parts<A: Algorithm>(
    config: &Config,
    environment: &Environment<'_>,
    parts: &Parts<A>,
) -> Value {
    let mut plan = Described::of_parts(config, environment, parts).json(config, &parts.algorithm);
    plan["checkpoint_plan"] = json!(parts.checkpoint_plan);
    plan
}

impl Described<'_> {
    /// What [`text`](Self::text) says, key by key.
    pub(super) fn json<A: Algorithm>(&self, config: &Config, algorithm: &A) -> Value {
        let steps = self.schedule.steps_for(0);
        let figures = self.figures(config, algorithm, steps.len());
        let here = &self.here;
        let rewards = config.rewards.iter();
        let rewards: Vec<Value> = rewards
            .map(|reward| json!({ "name": reward.name(), "kind": reward.kind, "weight": reward.weight }))
            .collect();
        let mut plan = json!({
            "run": {
                "name": config.run.name,
                "dir": config.run.dir.display().to_string(),
                "iterations": config.run.steps,
            },
            "model": self.model(config),
            "data": {
                "name": self.data,
                "train_prompts": self.prompts,
                "evaluated_prompts": self.evaluated,
            },
            "rewards": rewards,
            "algorithm": { "name": algorithm.name(), "paradigm": algorithm.paradigm().to_string() },
            "device": here.device,
            "attention": here.attention,
            "kernels": here.kernels,
            "checkpointing": here.regions,
            "accelerators": here.accelerators,
        });
        self.iteration(&figures, &mut plan);
        plan["schedule"] = steps.iter().map(step).collect();
        if let Some(saved) = self.schedule.steps_saved(0) {
            plan["calls_saved_per_image"] = saved.into();
        }
        plan["checkpoint_plan"] = Value::Null;
        plan
    }

    fn model(&self, config: &Config) -> Value {
        let spec = self.spec;
        let latent = spec.latent;
        let blocks = spec.stacks.iter();
        let blocks: Map<String, Value> = blocks
            .map(|(name, count)| (name.to_string(), json!(count)))
            .collect();
        json!({
            "architecture": spec.architecture,
            "latent": {
                "channels": latent.channels,
                "frames": latent.frames,
                "height": latent.height,
                "width": latent.width,
            },
            "tokens": spec.tokens,
            "blocks": blocks,
            "parameters": self.layout.count_values(|_| true),
            "trained_parameters": self.trained_values(),
            "finetune": match config.model.finetune {
                Finetune::Full => "full",
                Finetune::Lora => "lora",
            },
        })
    }

    /// What an iteration computes and keeps.
    fn iteration(&self, figures: &Figures, plan: &mut Value) {
        let geometry = self.geometry;
        let Figures {
            passes,
            guided,
            work,
            cost,
            memory,
        } = figures;
        plan["batch"] = json!({
            "prompts": geometry.prompts(),
            "group_size": geometry.group_size(),
            "images": geometry.samples(),
            "micro_batches": geometry.micro_batches(),
            "micro_batch": geometry.micro_batch_size(),
            "optimizer_steps": geometry.updates(),
            "passes": passes,
        });
        plan["model_calls"] = json!({
            "sampling": work.sampling_calls,
            "training": work.training_calls,
            "reference": work.reference_calls,
            "rows": work.rows,
            "guided": guided,
        });
        plan["operations_flop"] = json!({ "sampling": cost.sampling_flop, "training": cost.training_flop });
        plan["memory_bytes"] = json!({
            "total": memory.total(),
            "state": memory.state(),
            "trajectories": memory.trajectories,
            "activations": memory.activations,
        });
    }
}

/// A step of the sampler; what a deterministic one has not is null.
fn step(step: &StepCoefficients) -> Value {
    let random = |value: f64| step.is_stochastic().then_some(value);
    let mut of_step = json!({
        "step": step.step,
        "sigma": step.sigma,
        "sigma_next": step.sigma_next,
        "std_dev": random(step.std_dev),
        "noise": random(step.noise),
        "mean_x": step.mean_x,
        "mean_v": step.mean_v,
        "trained": step.log_prob.is_some(),
    });
    if step.history != 0.0 {
        of_step["image_before"] = step.history.into();
    }
    of_step
}
