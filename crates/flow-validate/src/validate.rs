//! The whole of a config at once.

use crate::codes::LARGE_LEARNING_RATE;
use crate::{Companions, Gpu, Load, MemoryEstimate};
use crate::{TrainerKind, features, kernels, low_precision, memory_check, resolve, resolve_exploration};
use flow_accel::AcceleratorRegistry;
use flow_config::{Catalog, Config, Diagnostic, Severity};
use flow_core::{Backends, ModelSpec, ParamLayout};
use std::collections::BTreeSet;

/// What a build and a machine can do, as data.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Kinds of device that the build can open.
    pub devices: Vec<&'static str>,
    /// Why the device cannot take bf16 operands, if it cannot; without a full stop.
    pub bf16: Result<(), String>,
    /// Policies of activation checkpointing that the build has, "none" among them.
    pub checkpointing: Vec<&'static str>,
    /// The GPU that the config's device is, if it is one and known; otherwise nothing is said of what it lacks.
    pub gpu: Option<Gpu>,
    /// Features of the build that options of Burn and CubeCL need.
    pub runtime_features: BTreeSet<flow_runtime::Feature>,
    /// Processors that threads may run on at a time, if they are known.
    pub processors: Option<usize>,
    /// Memory of the device in bytes, if it is known; otherwise nothing is said of memory.
    pub memory_bytes: Option<u64>,
}

/// A model, before it has weights.
#[derive(Clone, Copy, Debug)]
pub struct Capabilities<'a> {
    /// What it is.
    pub spec: &'a ModelSpec,
    /// Its weights' names and shapes, adapters included.
    pub layout: &'a ParamLayout,
    /// How many of the layout's values are trained.
    pub trained: usize,
}

/// Everything that the answer depends on.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The config.
    pub config: &'a Config,
    /// What the config can name.
    pub catalog: &'a Catalog,
    /// The accelerators of the program.
    pub accelerators: &'a AcceleratorRegistry,
    /// Who computes without accelerators; nothing if the config's device is not there.
    pub plan: Option<&'a Backends>,
    /// The model; nothing if the config does not describe one.
    pub model: Option<Capabilities<'a>>,
    /// The sigma at the start of each of the sampler's steps; empty if the config has no schedule.
    pub sigmas: &'a [f64],
    /// The trainer.
    pub trainer: &'a TrainerKind,
    /// Build and machine.
    pub machine: &'a Machine,
    /// The models beside the one that is trained, if there are any.
    pub companions: Option<&'a Companions>,
    /// Processes that are to train as one run.
    pub ranks: usize,
    /// Whether a run is to be trained, so that its memory matters.
    pub training: bool,
}

/// Learning rate above which a step replaces the weights rather than changes them.
const LARGE: f64 = 0.1;

/// Everything that is wrong with a config that is right in itself, or worth knowing about it. No file is read and no
/// clock, so equal questions have equal answers.
pub fn validate(question: &Question<'_>) -> Vec<Diagnostic> {
    let Question {
        config,
        catalog,
        accelerators,
        plan,
        model,
        sigmas,
        trainer,
        machine,
        companions,
        ranks,
        training,
    } = *question;
    let mut found = features::device(config, machine);
    found.extend(features::checkpointing(config, machine, model.as_ref()));
    found.extend(features::runtime(config, machine, question.training));
    found.extend(
        model
            .as_ref()
            .and_then(|model| features::images(config, catalog, model)),
    );
    found.extend(kernels::check(config, machine, model.as_ref()));
    if let (Some(plan), Some(model)) = (plan, model) {
        let (of_run, arrangement) = resolve(config, accelerators, plan, model.spec, trainer);
        found.extend(of_run);
        found.extend(low_precision::of_model(config, accelerators, &model));
        let exploring = arrangement.map(|run| resolve_exploration(config, accelerators, &run).0);
        found.extend(exploring.into_iter().flatten());
    }
    let algorithm = catalog.algorithms().get(&config.algorithm.kind);
    found.extend(algorithm.and_then(|kind| kind.check_steps(&config.algorithm.params, sigmas)));
    if training && config.optimizer.learning_rate >= LARGE {
        let message = format!(
            "a step of AdamW changes each weight by about {}, which is more than most weights are",
            config.optimizer.learning_rate
        );
        found.push(
            Diagnostic::warning(LARGE_LEARNING_RATE, message)
                .path("optimizer.learning_rate")
                .help("1e-5 to 1e-3 are usual"),
        );
    }
    if let (true, Some(model)) = (training, model) {
        let of_model = (model.layout, model.spec);
        let load = Load::of_run(config, catalog, accelerators, of_model, ranks);
        let estimate = MemoryEstimate::new(model.layout, model.spec, model.trained, &load);
        let estimate = companions.map_or(estimate, |all| estimate.with_companions(all, load.stored));
        found.extend(memory_check::check_budget(config, &estimate));
        if let Some(available) = machine.memory_bytes {
            found.extend(memory_check::check(config, catalog, &estimate, available));
        }
    }
    found
}

/// Whether one of `found` forbids the run.
pub fn errors(found: &[Diagnostic]) -> bool {
    found.iter().any(|one| one.severity == Severity::Error)
}
