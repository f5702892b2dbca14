//! `plan`: what a run would do, and about what it would cost.

pub mod checkpoint;
mod cost;

use super::{Loaded, survey::Use, tokens};
use crate::arguments::PlanArguments;
use crate::failure::{Failure, OrFailure};
use crate::terminal;
use cost::{Cost, Work};
use flow_config::{Config, Finetune};
use flow_train::checkpoint::Policy;
use flow_trainer::algorithm::Algorithm;
use flow_trainer::scheduler::StepCoefficients;
use flow_trainer::session::Parts;
use flow_trainer::setup::{self, Environment, WithAlgorithm};
use flow_validate::{Load, MemoryEstimate, Operations, checkpoint_policy};
use std::path::Path;

/// Prints the plan. The weights need not exist yet.
pub fn run(arguments: &PlanArguments) -> Result<(), Failure> {
    let loaded = Loaded::read(&arguments.config, Use::Looking)?;
    let mut config = loaded.config().clone();
    config.model.weights = None;
    let policy = checkpoint_policy(&config);
    let measures = matches!(policy, Policy::Budget { .. });
    if let (Some(folder), false) = (&arguments.out, measures) {
        return Err(Failure::Input(format!(
            "there is no plan to write to `{}`: `checkpointing.policy = \"{}\"` needs none. Add `--set \
             'checkpointing={{ policy = \"budget\", peak_gib = 1.0 }}'`, or leave `--out` away",
            folder.display(),
            policy.name()
        )));
    }
    let describe = |environment: &Environment<'_>| {
        let tokens = tokens(&config, environment).or_bad_input()?;
        setup::with_algorithm(
            &config,
            tokens,
            Describe {
                config: &config,
                environment,
                out: arguments.out.as_deref(),
            },
        )
        .or_bad_input()?
    };
    let text = if measures {
        loaded.compute(&config, describe)?
    } else {
        loaded.inspect(&config, describe)?
    };
    terminal::print(&text)
}

struct Describe<'a> {
    config: &'a Config,
    environment: &'a Environment<'a>,
    out: Option<&'a Path>,
}

impl WithAlgorithm for Describe<'_> {
    type Output = Result<String, Failure>;

    fn with<A: Algorithm + 'static>(self, algorithm: A) -> Self::Output {
        let parts = setup::parts(self.config, self.environment, algorithm).or_bad_input()?;
        if let (Some(record), Some(folder)) = (&parts.checkpoint_plan, self.out) {
            checkpoint::write(record, folder)?;
        }
        text(self.config, self.environment, &parts)
    }
}

/// The plan of a run whose parts are there.
pub fn text<A: Algorithm>(
    config: &Config,
    environment: &Environment<'_>,
    parts: &Parts<A>,
) -> Result<String, Failure> {
    let spec = parts.sampler.policy.model.spec();
    let layout = parts.state.weights.current.layout();
    let flags = parts.state.optimizer.trained();
    let trained: usize = layout
        .specs()
        .iter()
        .zip(flags)
        .filter(|(_, trained)| **trained)
        .map(|(spec, _)| spec.shape.iter().product::<usize>())
        .sum();
    let all = layout.count_values(|_| true);
    let geometry = &parts.settings.geometry;
    let steps = parts.schedule.steps_for(0);
    let positions = parts
        .algorithm
        .positions(&parts.schedule, parts.settings.seed, 0, 0)
        .len();
    let passes = parts.algorithm.inner_epochs();
    let guided = parts.sampler.policy.is_guided();
    let branches = if guided { 2 } else { 1 };
    let updates = positions * geometry.micro_batches() * passes;

    let latent = spec.latent;
    let blocks: Vec<String> = spec
        .stacks
        .iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    let mut lines: Vec<(&str, String)> = vec![
        (
            "run",
            format!(
                "{} in {}, {} iterations",
                config.run.name,
                config.run.dir.display(),
                config.run.steps
            ),
        ),
        (
            "model",
            format!(
                "{}, latents {}x{}x{} (channels, height, width), {} tokens, {}",
                spec.architecture,
                latent.channels,
                latent.height,
                latent.width,
                spec.tokens,
                blocks.join(", ")
            ),
        ),
        (
            "parameters",
            format!("{all}, of which {trained} are trained ({})", finetune(config)),
        ),
        (
            "data",
            format!(
                "{}, {} prompts to train on, {} held-out prompts evaluated",
                parts.dataset.name(),
                parts.prompts.len(),
                parts.evaluation.prompts.len()
            ),
        ),
        (
            "rewards",
            parts
                .rewards
                .1
                .iter()
                .map(|reward| format!("{} x {}", reward.weight, reward.name))
                .collect::<Vec<_>>()
                .join(" + "),
        ),
        ("algorithm", format!("{} ({})", A::NAME, A::PARADIGM)),
        (
            "device",
            format!(
                "{}, {}, {} threads",
                environment.device.name(),
                config.device.dtype.name(),
                rayon::current_num_threads()
            ),
        ),
        ("plan", parts.acceleration.describe_training()),
        ("accelerators", parts.acceleration.to_string()),
        (
            "geometry",
            format!(
                "{} prompts x {} images = {} images, {} micro-batches of {}, {} optimizer steps per pass, {passes} passes",
                geometry.prompts(),
                geometry.group_size(),
                geometry.samples(),
                geometry.micro_batches(),
                geometry.micro_batch_size(),
                geometry.updates()
            ),
        ),
        (
            "calls",
            format!(
                "per iteration {} to sample and {updates} to train (forward and backward), of {} rows{}",
                geometry.micro_batches() * steps.len(),
                geometry.micro_batch_size() * branches,
                if guided { ", guidance included" } else { "" }
            ),
        ),
    ];
    let work = Work {
        rows: geometry.micro_batch_size() * branches,
        sampling_calls: geometry.micro_batches() * steps.len(),
        training_calls: updates,
        reference_calls: parts.algorithm.reference().map_or(0, |_| updates),
    };
    let text_tokens = parts.conditioner.text_tokens();
    let cost = Cost::of(&Operations::of(layout, spec, flags, text_tokens), &work);
    let load = Load {
        text_tokens,
        ..Load::of(config)
    };
    let memory = MemoryEstimate::new(layout, spec, trained, &load);
    lines.push((
        "about",
        format!(
            "{} per iteration: sampling {}, training {}",
            scaled(cost.sampling_flop + cost.training_flop),
            scaled(cost.sampling_flop),
            scaled(cost.training_flop)
        ),
    ));
    lines.push((
        "about",
        format!(
            "{} of memory: weights and optimizer {}, trajectories {}, activations of one call {}",
            bytes(memory.total()),
            bytes(memory.state()),
            bytes(memory.trajectories),
            bytes(memory.activations)
        ),
    ));
    let mut text = String::new();
    for (name, value) in lines {
        text.push_str(&format!("{name:10}  {value}\n"));
    }
    text.push_str(&format!("\nschedule of iteration 1, {}\n", dynamics(config)));
    text.push_str(&terminal::table(&schedule(&steps), 0));
    if let Some(record) = &parts.checkpoint_plan {
        text.push_str(&checkpoint::text(record));
    }
    Ok(text)
}

/// A count of operations with a decimal prefix.
fn scaled(count: f64) -> String {
    let (unit, prefix) = if count < 1e9 {
        (1e6, "M")
    } else if count < 1e12 {
        (1e9, "G")
    } else {
        (1e12, "T")
    };
    format!("{:.1} {prefix}FLOP", count / unit)
}

/// An amount of memory with a binary prefix.
fn bytes(amount: f64) -> String {
    const MIB: f64 = (1u64 << 20) as f64;
    if amount < 1024.0 * MIB {
        format!("{:.1} MiB", amount / MIB)
    } else {
        format!("{:.2} GiB", amount / MIB / 1024.0)
    }
}

fn finetune(config: &Config) -> String {
    match config.model.finetune {
        Finetune::Full => "all weights".into(),
        Finetune::Lora => format!(
            "adapters of rank {}, alpha {}",
            config.lora.rank,
            config.lora.effective_alpha()
        ),
    }
}

fn dynamics(config: &Config) -> &'static str {
    match config.scheduler.dynamics {
        flow_config::Dynamics::FlowSde => "flow-sde",
        flow_config::Dynamics::DanceSde => "dance-sde",
        flow_config::Dynamics::Cps => "cps",
        flow_config::Dynamics::Ode => "ode",
    }
}

/// One row per step; what a deterministic step has not is left empty.
fn schedule(steps: &[StepCoefficients]) -> Vec<Vec<String>> {
    let head = [
        "step", "sigma", "to", "std_dev", "noise", "mean_x", "mean_v", "trained",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for step in steps {
        let random = |value: f64| {
            if step.is_stochastic() {
                format!("{value:.5}")
            } else {
                "-".into()
            }
        };
        rows.push(vec![
            step.step.to_string(),
            format!("{:.5}", step.sigma),
            format!("{:.5}", step.sigma_next),
            random(step.std_dev),
            random(step.noise),
            format!("{:.5}", step.mean_x),
            format!("{:.5}", step.mean_v),
            if step.log_prob.is_some() { "yes" } else { "-" }.into(),
        ]);
    }
    rows
}
