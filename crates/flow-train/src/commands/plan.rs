//! `plan`: what a run would do, and about what it would cost. No weights are made, so a plan of any size is made anywhere.

pub mod checkpoint;
mod cost;

use super::survey::{Target, Use};
use super::{Loaded, tokens};
use crate::arguments::{ExistingFile, PlanArguments};
use crate::failure::{Failure, OrFailure};
use crate::output::{self, Output};
use crate::terminal;
use cost::{Cost, Work};
use flow_config::{Config, Finetune};
use flow_core::{ModelSpec, ParamLayout};
use flow_train::checkpoint::{Policy, planner::PlanRecord};
use flow_trainer::algorithm::Algorithm;
use flow_trainer::geometry::Geometry;
use flow_trainer::scheduler::{Schedule, StepCoefficients};
use flow_trainer::session::Parts;
use flow_trainer::setup::{self, Environment, WithAlgorithm};
use flow_validate::{Load, MemoryEstimate, Operations, Trainer, checkpoint_policy};

/// Prints the plan. The weights need not exist yet.
pub fn run(arguments: &PlanArguments) -> Result<(), Failure> {
    let loaded = Loaded::read_for(&arguments.config, Use::Looking, &arguments.target)?;
    let mut config = loaded.config().clone();
    config.model.weights = None;
    config.model.adapter = None;
    let policy = checkpoint_policy(&config);
    let measures = matches!(policy, Policy::Budget { .. }) && loaded.target == Target::Here;
    if let (Some(folder), false) = (&arguments.out, measures) {
        let name = folder.display();
        return Err(Failure::Input(match policy {
            Policy::Budget { .. } => format!(
                "there is no plan to write to `{name}`: blocks are measured on the device itself, and it is not this machine's. \
                 Leave `--out` away"
            ),
            _ => format!(
                "there is no plan to write to `{name}`: `checkpointing.policy = \"{}\"` needs none. Add `--set \
                 'checkpointing={{ policy = \"budget\", peak_gib = 1.0 }}'`, or leave `--out` away",
                policy.name()
            ),
        }));
    }
    let on_exists = arguments.there.on_exists;
    let folder = arguments.out.as_ref().map(|folder| match on_exists {
        ExistingFile::New => output::free(folder),
        _ => folder.clone(),
    });
    let files = (folder.as_deref()).map(|folder| -> Result<_, Failure> {
        let place = |name: &str| Output::at(&folder.join(name), "--out", on_exists);
        Ok((folder, place("plan.json")?, place("plan.svg")?))
    });
    let files = files.transpose()?;
    let stand_in = loaded.stand_in(&config);
    let describe = |environment: &Environment<'_>| {
        let tokens = tokens(&stand_in, environment).or_bad_input()?;
        let describe = Describe {
            config: &config,
            stand_in: &stand_in,
            environment,
            target: loaded.target,
            measures,
        };
        setup::with_algorithm(&config, tokens, describe).or_bad_input()?
    };
    let (text, record) = if measures {
        loaded.compute(&config, describe)?
    } else {
        loaded.inspect(&stand_in, describe)?
    };
    if let (Some(record), Some((folder, json, svg))) = (&record, &files) {
        json.make_room_and_say()?;
        svg.make_room_and_say()?;
        checkpoint::write(record, folder)?;
    }
    terminal::print(&text)
}

struct Describe<'a> {
    config: &'a Config,
    /// The config with a device that is here.
    stand_in: &'a Config,
    environment: &'a Environment<'a>,
    target: Target,
    measures: bool,
}

impl WithAlgorithm for Describe<'_> {
    type Output = Result<(String, Option<PlanRecord>), Failure>;

    fn with<A: Algorithm + 'static>(self, algorithm: A) -> Self::Output {
        let (config, environment) = (self.config, self.environment);
        if self.measures {
            let model = setup::model(config, environment).or_bad_input()?;
            let parts = setup::parts_of(config, environment, model, algorithm).or_bad_input()?;
            let record = parts.checkpoint_plan.clone();
            return Ok((text(config, environment, &parts)?, record));
        }
        let outline =
            setup::outline(self.stand_in, environment.models, &environment.device).or_bad_input()?;
        let spec = outline.model.spec();
        let dataset = setup::dataset(config).or_bad_input()?;
        setup::fits(spec, &*dataset).or_bad_input()?;
        let trainer = Trainer {
            name: A::NAME.into(),
            paradigm: Some(A::PARADIGM),
        };
        let here = match self.target {
            Target::Here => {
                let (acceleration, _) =
                    setup::acceleration(config, environment, spec, &trainer).or_bad_input()?;
                Computing::of(&acceleration, environment, config)
            }
            elsewhere => Computing::elsewhere(elsewhere, config),
        };
        let described = Described {
            spec,
            layout: &outline.layout,
            trained: &outline.trained,
            geometry: &Geometry::from_config(&config.sampling, &config.optimizer).or_bad_input()?,
            schedule: &setup::schedule(config, spec.tokens).or_bad_input()?,
            data: dataset.name(),
            prompts: dataset.train_prompts().len(),
            evaluated: setup::evaluation_prompts(&*dataset, config.evaluation.prompts).len(),
            text_tokens: Load::of(config).text_tokens,
            here,
        };
        Ok((described.text(config, &algorithm), None))
    }
}

/// Who computes, in words.
struct Computing {
    device: String,
    attention: String,
    kernels: String,
    regions: String,
    accelerators: String,
}

impl Computing {
    fn of(arrangement: &flow_accel::Arrangement, environment: &Environment<'_>, config: &Config) -> Self {
        Self {
            device: format!(
                "{}, {}, {} threads",
                environment.device.name(),
                config.device.dtype.name(),
                rayon::current_num_threads()
            ),
            attention: arrangement.attention_name().to_owned(),
            kernels: arrangement.kernels_name().to_owned(),
            regions: match checkpoint_policy(config) {
                Policy::Budget { .. } => arrangement.regions_name().to_owned(),
                policy => policy.name().to_owned(),
            },
            accelerators: arrangement.to_string(),
        }
    }

    fn elsewhere(target: Target, config: &Config) -> Self {
        let listed = &config.acceleration;
        let named = |entries: &[flow_config::AcceleratorEntry]| match entries {
            [] => "none".to_owned(),
            some => some
                .iter()
                .map(|entry| entry.name.clone())
                .collect::<Vec<_>>()
                .join(", "),
        };
        let unknown = "the device's own; not asked, since it is not this machine's";
        Self {
            device: format!("{target}, {}", config.device.dtype.name()),
            attention: unknown.into(),
            kernels: unknown.into(),
            regions: match checkpoint_policy(config) {
                Policy::Budget { peak_gib } => {
                    format!("budget of {peak_gib} GiB, which is planned on the device itself")
                }
                policy => policy.name().to_owned(),
            },
            accelerators: format!(
                "shared {}, rollout {}",
                named(&listed.shared),
                named(&listed.rollout)
            ),
        }
    }
}

/// What a plan is made of.
struct Described<'a> {
    spec: &'a ModelSpec,
    layout: &'a ParamLayout,
    trained: &'a [bool],
    geometry: &'a Geometry,
    schedule: &'a Schedule,
    data: &'a str,
    prompts: usize,
    evaluated: usize,
    text_tokens: usize,
    here: Computing,
}

/// What is trained, by what and where, in a sentence; and that a loss near 0 is no fault, where there will be one.
pub fn headline<A: Algorithm>(config: &Config, environment: &Environment<'_>, parts: &Parts<A>) -> String {
    let spec = parts.sampler.policy.model.spec();
    let layout = parts.state.weights.current.layout();
    let text = format!(
        "{} of {} M weights, {} trained, by {} on {}, {}",
        spec.architecture,
        millions(layout.count_values(|_| true)),
        finetune(config),
        A::NAME,
        environment.device.name(),
        config.device.dtype.name()
    );
    let one_step = parts.settings.geometry.updates() == 1 && parts.algorithm.inner_epochs() == 1;
    if A::PARADIGM == flow_accel::Paradigm::Coupled && one_step {
        return format!(
            "{text}; with one optimizer step per rollout the ratios are 1 and the advantages of a group add up to 0, so the loss \
             is near 0 whatever is learned: look at the reward"
        );
    }
    text
}

fn millions(count: usize) -> String {
    format!("{:.2}", count as f64 / 1e6)
}

/// The plan of a run whose parts are there.
pub fn text<A: Algorithm>(
    config: &Config,
    environment: &Environment<'_>,
    parts: &Parts<A>,
) -> Result<String, Failure> {
    let described = Described {
        spec: parts.sampler.policy.model.spec(),
        layout: parts.state.weights.current.layout(),
        trained: parts.state.optimizer.trained(),
        geometry: &parts.settings.geometry,
        schedule: &parts.schedule,
        data: parts.dataset.name(),
        prompts: parts.prompts.len(),
        evaluated: parts.evaluation.prompts.len(),
        text_tokens: parts.conditioner.text_tokens(),
        here: Computing::of(&parts.acceleration, environment, config),
    };
    let mut text = described.text(config, &parts.algorithm);
    if let Some(record) = &parts.checkpoint_plan {
        text.push_str(&checkpoint::text(record));
    }
    Ok(text)
}

impl Described<'_> {
    fn text<A: Algorithm>(&self, config: &Config, algorithm: &A) -> String {
        let steps = self.schedule.steps_for(0);
        let mut lines = self.subject(config, &format!("{} ({})", A::NAME, A::PARADIGM));
        lines.extend(self.work(config, algorithm, steps.len()));
        let mut text = terminal::pairs(&lines);
        text.push_str(&format!("\nschedule of iteration 1, {}\n", dynamics(config)));
        text.push_str(&terminal::table(&schedule(&steps), 0));
        text
    }

    /// What is trained, on what, by whom.
    fn subject(&self, config: &Config, algorithm: &str) -> Vec<(&'static str, String)> {
        let spec = self.spec;
        let latent = spec.latent;
        let blocks: Vec<String> = spec
            .stacks
            .iter()
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        let all = self.layout.count_values(|_| true);
        let rewards = config.rewards.iter();
        let rewards: Vec<String> = rewards
            .map(|reward| format!("{} x {}", reward.weight(), reward.name()))
            .collect();
        let here = &self.here;
        vec![
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
                format!(
                    "{all}, of which {} are trained ({})",
                    self.trained_values(),
                    finetune(config)
                ),
            ),
            (
                "data",
                format!(
                    "{}, {} prompts to train on, {} held-out prompts evaluated",
                    self.data, self.prompts, self.evaluated
                ),
            ),
            ("rewards", rewards.join(" + ")),
            ("algorithm", algorithm.to_owned()),
            ("device", here.device.clone()),
            ("attention", here.attention.clone()),
            ("kernels", here.kernels.clone()),
            ("checkpointing", here.regions.clone()),
            ("accelerators", here.accelerators.clone()),
        ]
    }

    fn trained_values(&self) -> usize {
        let specs = self.layout.specs().iter().zip(self.trained);
        let trained = specs.filter(|(_, trained)| **trained);
        trained
            .map(|(spec, _)| spec.shape.iter().product::<usize>())
            .sum()
    }

    /// What an iteration computes and keeps.
    fn work<A: Algorithm>(
        &self,
        config: &Config,
        algorithm: &A,
        steps: usize,
    ) -> Vec<(&'static str, String)> {
        let geometry = self.geometry;
        let positions = algorithm.positions(self.schedule, config.run.seed, 0, 0).len();
        let passes = algorithm.inner_epochs();
        let guided = config.sampling.guidance_scale != 1.0;
        let branches = if guided { 2 } else { 1 };
        let updates = positions * geometry.micro_batches() * passes;
        let work = Work {
            rows: geometry.micro_batch_size() * branches,
            sampling_calls: geometry.micro_batches() * steps,
            training_calls: updates,
            reference_calls: algorithm.reference().map_or(0, |_| updates),
        };
        let operations = Operations::of(self.layout, self.spec, self.trained, self.text_tokens);
        let cost = Cost::of(&operations, &work);
        let load = Load {
            text_tokens: self.text_tokens,
            ..Load::of(config)
        };
        let memory = MemoryEstimate::new(self.layout, self.spec, self.trained_values(), &load);
        vec![
            (
                "batch",
                format!(
                    "{} x {} = {} images, {} of {}, {} per pass, {}",
                    counted(geometry.prompts(), "prompt", "prompts"),
                    counted(geometry.group_size(), "image", "images"),
                    geometry.samples(),
                    counted(geometry.micro_batches(), "micro-batch", "micro-batches"),
                    geometry.micro_batch_size(),
                    counted(geometry.updates(), "optimizer step", "optimizer steps"),
                    counted(passes, "pass", "passes")
                ),
            ),
            (
                "model calls",
                format!(
                    "per iteration {} to sample and {updates} to train (forward and backward), of {} rows{}",
                    work.sampling_calls,
                    work.rows,
                    if guided { ", guidance included" } else { "" }
                ),
            ),
            (
                "operations",
                format!(
                    "about {} per iteration: sampling {}, training {}",
                    scaled(cost.sampling_flop + cost.training_flop),
                    scaled(cost.sampling_flop),
                    scaled(cost.training_flop)
                ),
            ),
            (
                "memory",
                format!(
                    "about {}: weights and optimizer {}, trajectories {}, activations of one call {}",
                    bytes(memory.total()),
                    bytes(memory.state()),
                    bytes(memory.trajectories),
                    bytes(memory.activations)
                ),
            ),
        ]
    }
}

fn counted(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
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
