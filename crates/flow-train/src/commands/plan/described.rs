//! What a plan is made of, and how it reads.

use super::cost::{Cost, Work};
use crate::commands::config_report::Target;
use crate::commands::memory;
use crate::terminal;
use flow_config::{Config, Finetune};
use flow_core::{ModelSpec, ParamLayout};
use flow_train::checkpoint::Policy;
use flow_trainer::Trainer;
use flow_trainer::algorithm::{Algorithm, NetworkRole};
use flow_trainer::branching::Branches;
use flow_trainer::geometry::BatchGeometry;
use flow_trainer::scheduler::{Schedule, StepCoefficients};
use flow_trainer::setup::Environment;
use flow_validate::{Companions, Load, MemoryEstimate, Operations, checkpoint_policy};

/// Who computes, in words.
pub(super) struct Computing {
    pub(super) device: String,
    pub(super) attention: String,
    pub(super) kernels: String,
    pub(super) regions: String,
    pub(super) accelerators: String,
}

impl Computing {
    pub(super) fn of(
        arrangement: &flow_accel::Arrangement,
        environment: &Environment<'_>,
        config: &Config,
    ) -> Self {
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

    pub(super) fn elsewhere(target: Target, config: &Config) -> Self {
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
pub(super) struct Described<'a> {
    pub(super) spec: &'a ModelSpec,
    pub(super) layout: &'a ParamLayout,
    pub(super) load: Load,
    /// The models beside the one that is trained.
    pub(super) companions: Option<Companions>,
    pub(super) trained: &'a [bool],
    pub(super) geometry: &'a BatchGeometry,
    pub(super) schedule: &'a Schedule,
    pub(super) data: &'a str,
    pub(super) prompts: usize,
    pub(super) evaluated: usize,
    pub(super) text_tokens: usize,
    pub(super) here: Computing,
}

/// What an iteration asks for, in numbers.
pub(super) struct Figures {
    /// Passes over the samples of a rollout.
    pub(super) passes: usize,
    pub(super) guided: bool,
    pub(super) work: Work,
    pub(super) cost: Cost,
    pub(super) memory: MemoryEstimate,
}

impl<'a> Described<'a> {
    /// Of a run whose trainer is there.
    pub(super) fn of_trainer<A: Algorithm>(
        config: &Config,
        environment: &Environment<'_>,
        trainer: &'a Trainer<A>,
    ) -> Self {
        let spec = trainer.sampler.policy.model.spec();
        let layout = trainer.state.weights.current.layout();
        let catalog = environment.plugins.catalog();
        let load = Load::of_run(config, &catalog, environment.accelerators, (layout, spec), 1);
        // What cannot be measured has been refused: the trainer is there.
        let companions = memory::companions(config, memory::Around::of(environment), (spec, &load));
        Self {
            load,
            companions: companions.unwrap_or_default(),
            spec,
            layout,
            trained: trainer.state.optimizer.trained(),
            geometry: &trainer.settings.geometry,
            schedule: &trainer.schedule,
            data: trainer.dataset.name(),
            prompts: trainer.prompts.len(),
            evaluated: trainer.evaluation.prompts.len(),
            text_tokens: trainer.conditioner.text_tokens(),
            here: Computing::of(&trainer.acceleration, environment, config),
        }
    }
}

impl Described<'_> {
    pub(super) fn text<A: Algorithm>(&self, config: &Config, algorithm: &A) -> String {
        let steps = self.schedule.steps_for(0);
        let mut lines = self.subject(
            config,
            &format!("{} ({})", algorithm.name(), algorithm.paradigm()),
        );
        lines.extend(self.work(&self.figures(config, algorithm, steps.len())));
        let mut text = terminal::pairs(&lines);
        text.push_str(&format!("\nschedule of iteration 1, {}\n", dynamics(config)));
        text.push_str(&terminal::table(&schedule(&steps), 0));
        if let Some(saved) = self.schedule.steps_saved(0) {
            text.push_str(&format!(
                "behind the window DPM-Solver++ takes the place of Euler's steps: {} calls of the model for an image, {saved} fewer\n",
                steps.len()
            ));
        }
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
            .map(|reward| format!("{} x {}", reward.weight, reward.name()))
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

    pub(super) fn trained_values(&self) -> usize {
        let specs = self.layout.specs().iter().zip(self.trained);
        let trained = specs.filter(|(_, trained)| **trained);
        trained
            .map(|(spec, _)| spec.shape.iter().product::<usize>())
            .sum()
    }

    /// What an iteration computes and keeps.
    pub(super) fn figures<A: Algorithm>(&self, config: &Config, algorithm: &A, steps: usize) -> Figures {
        let geometry = self.geometry;
        let positions = algorithm.positions(self.schedule, config.run.seed, 0, 0);
        let branching = Branches::new(
            &config.sampling.branching,
            geometry.group_size(),
            self.schedule,
            0,
        );
        let positions = branching.positions(positions).len();
        let passes = algorithm.inner_epochs();
        // Records are read, not sampled, and learnt without guidance.
        let samples = algorithm.records().is_none();
        let guided = samples && config.sampling.guidance_scale != 1.0;
        let branches = if guided { 2 } else { 1 };
        let updates = positions * geometry.micro_batches() * passes;
        let exploration = &config.exploration;
        let exploring_calls = match exploration.is_on() {
            true => geometry.candidate_micro_batches() * exploration.steps.unwrap_or(steps),
            false => 0,
        };
        let networks = NetworkRole::ALL
            .into_iter()
            .filter_map(|role| algorithm.network(role));
        let networks: Vec<usize> = networks.map(|network| network.updates).collect();
        let turns: usize = networks.iter().sum();
        // A reference, and the teacher of a micro-batch's rows.
        let frozen =
            usize::from(algorithm.reference().is_some()) + usize::from(!algorithm.teachers().is_empty());
        let work = Work {
            rows: geometry.micro_batch_size() * branches,
            sampling_calls: match samples {
                true => geometry.micro_batches() * steps + exploring_calls,
                false => 0,
            },
            training_calls: updates * (1 + turns),
            reference_calls: updates * (frozen + networks.len()),
        };
        let operations = Operations::of(self.layout, self.spec, self.trained, self.text_tokens);
        let load = Load {
            text_tokens: self.text_tokens,
            ..self.load
        };
        let memory = MemoryEstimate::new(self.layout, self.spec, self.trained_values(), &load);
        Figures {
            passes,
            guided,
            cost: Cost::of(&operations, &work),
            memory: match &self.companions {
                Some(companions) => memory.with_companions(companions, load.stored),
                None => memory,
            },
            work,
        }
    }

    /// The same in words.
    fn work(&self, figures: &Figures) -> Vec<(&'static str, String)> {
        let geometry = self.geometry;
        let Figures {
            passes,
            guided,
            work,
            cost,
            memory,
        } = figures;
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
                    counted(*passes, "pass", "passes")
                ),
            ),
            (
                "model calls",
                format!(
                    "per iteration {} to sample and {} to train (forward and backward), of {} rows{}",
                    work.sampling_calls,
                    work.training_calls,
                    work.rows,
                    if *guided { ", guidance included" } else { "" }
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
pub(super) fn bytes(amount: f64) -> String {
    const MIB: f64 = (1u64 << 20) as f64;
    if amount < 1024.0 * MIB {
        format!("{:.1} MiB", amount / MIB)
    } else {
        format!("{:.2} GiB", amount / MIB / 1024.0)
    }
}

pub(super) fn finetune(config: &Config) -> String {
    match config.model.finetune {
        Finetune::Full => "all weights".into(),
        Finetune::Lora => format!(
            "adapters of rank {}, alpha {}",
            config.lora.rank,
            config.lora.effective_alpha()
        ),
    }
}

pub(super) fn dynamics(config: &Config) -> &'static str {
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
    let is_of_second_order = steps.iter().any(|step| step.history != 0.0);
    if is_of_second_order {
        rows[0].push("image before".to_owned());
    }
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
        if let (true, Some(row)) = (is_of_second_order, rows.last_mut()) {
            row.push(if step.history == 0.0 {
                "-".into()
            } else {
                format!("{:.5}", step.history)
            });
        }
    }
    rows
}
