//! Everything that can be said of a config before its parts are built.

pub use super::target::Target;
use super::{CommandContext, memory, nearest, pretrain};
use crate::arguments::{ConfigArguments, TargetArguments};
use crate::failure::{Failure, OrFailure};
use flow_accel::AcceleratorRegistry;
use flow_config::{Catalog, Config, Diagnostic, Report, Resolved, Severity};
use flow_core::device::ComputeDevice;
use flow_exchange::Alone;
use flow_train::Registries;
use flow_train::checkpoint::Policy;
use flow_trainer::TrainError;
use flow_trainer::setup::{self, ModelOutline, PipelineFolders};
use flow_validate::codes::{NO_CHECKPOINTING, REFUSED, UNUSABLE};
use flow_validate::{
    Capabilities, Companions, Load, Machine, MemoryTable, Question, Trained, TrainerKind, checkpoint_policy,
    validate,
};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// What a config is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigUse {
    /// Reinforcement learning: rewards, weights and memory are needed.
    Training,
    /// Pretraining: all weights, no rollouts.
    Pretraining,
    /// Anything that trains nothing. What is merely worth knowing about training is not said.
    Inspection,
}

/// A config with everything that was found about it.
pub struct ConfigReport {
    /// Errors and warnings with their places.
    pub report: Report,
    /// The config, if it could be read at all. If the report has errors, as far as it could be.
    pub context: Option<CommandContext>,
    /// What training asks of memory, if it is to be trained and the config says enough.
    pub memory: Option<MemoryTable>,
}

impl ConfigReport {
    /// Reads a config and finds everything that is wrong with it, by itself and for this build and machine, or for the device
    /// that `target` names in their place, on one of so many `ranks`. `folders` opens its diffusers folder, for whoever computes with it, too.
    pub fn of(
        arguments: &ConfigArguments,
        (wanted, ranks): (ConfigUse, usize),
        target: &TargetArguments,
        folders: &PipelineFolders,
    ) -> Result<Self, Failure> {
        let registries = Registries::built_in().or_failed()?;
        let catalog = registries.catalog();
        let known = (&registries.plugins.models, &catalog);
        let inspection = super::described::inspect(arguments, wanted, known, folders)?;
        let Some(mut resolved) = inspection.partial else {
            let mut report = inspection.report;
            let config = &arguments.config;
            let is_pipeline = config.join("model_index.json").is_file();
            // A pipe was read: what is wrong is in it, and not in its name.
            if !config.exists() || config.is_dir() && !is_pipeline {
                nearest::suggest_config(config, folders, &mut report);
            }
            return Ok(Self {
                report,
                context: None,
                memory: None,
            });
        };
        let place = Target::of(target, &mut resolved.config);
        let base = flow_config::base_dir(&arguments.config);
        let asked = Asked {
            known: (&registries, &catalog),
            wanted,
            ranks,
            target: place,
            memory_gib: target.memory_gib,
            folder: (&base, folders),
        };
        let (found, memory) = asked.found(&resolved);
        let report = resolved.located(found);
        Ok(Self {
            report,
            memory,
            context: Some(CommandContext {
                resolved,
                base,
                registries,
                catalog,
                options: OnceLock::new(),
                target: place,
                folders: folders.clone(),
                exchange: Arc::new(Alone),
            }),
        })
    }
}

/// What a config is asked for, and by what it is judged.
struct Asked<'a> {
    known: (&'a Registries, &'a Catalog),
    wanted: ConfigUse,
    /// Processes that are to train as one run.
    ranks: usize,
    target: Target,
    /// Memory that the command line says.
    memory_gib: Option<f64>,
    /// Where relative paths start, and what opens diffusers folders.
    folder: (&'a Path, &'a PipelineFolders),
}

impl Asked<'_> {
    /// Everything that is found, and what training asks of memory.
    fn found(&self, resolved: &Resolved) -> (Vec<Diagnostic>, Option<MemoryTable>) {
        let Self {
            known: (registries, catalog),
            wanted,
            target,
            memory_gib,
            ..
        } = *self;
        let config = match wanted {
            ConfigUse::Pretraining => pretrain::fresh(&resolved.config),
            ConfigUse::Training | ConfigUse::Inspection => resolved.config.clone(),
        };
        let config = without_wrong_sections(config, resolved);
        let mut found = Vec::new();
        if wanted == ConfigUse::Training {
            found.extend(resolved.check_training().diagnostics);
        }
        let wrong = resolved.report.has_errors();
        let outline = setup::outline(&config, &registries.plugins.models, &ComputeDevice::cpu());
        let outline = match outline {
            Ok(outline) => Some(outline),
            // If the config is wrong by itself, that is why.
            Err(_) if wrong => None,
            Err(error) => {
                found.extend(super::setup_diagnostics::diagnostics(&error));
                None
            }
        };
        // A rule on accelerators speaks of algorithm and schedule too.
        let judged = ["algorithm", "scheduler"]
            .iter()
            .all(|section| resolved.is_whole(section));
        let plan = if judged {
            flow_train::base_plan(&target.stand_in(&config), registries).ok()
        } else {
            None
        };
        let sigmas = outline
            .as_ref()
            .filter(|_| judged)
            .map(|outline| setup::step_sigmas(&config, outline.model.spec().tokens));
        let sigmas = sigmas.unwrap_or_default();
        let training = wanted == ConfigUse::Training && !wrong;
        let machine = target.machine(config.device.kind, memory_gib);
        let judged_model = outline.as_ref().filter(|_| training);
        let (companions, table) = match judged_model.map(|outline| self.memory(&config, outline, &machine)) {
            Some(Ok((companions, table))) => (companions, Some(table)),
            Some(Err(error)) => {
                found.extend(super::setup_diagnostics::diagnostics(&error));
                (None, None)
            }
            None => (None, None),
        };
        let question = Question {
            config: &config,
            catalog,
            accelerators: &registries.accelerators,
            plan: plan.as_ref(),
            model: outline.as_ref().map(capabilities),
            sigmas: &sigmas,
            trainer: &TrainerKind::of(&config, catalog),
            machine: &machine,
            companions: companions.as_ref(),
            ranks: self.ranks,
            // An estimate from wrong numbers would be wrong.
            training,
        };
        let mut of_parts = validate(&question);
        if target != Target::Here {
            // The processor was asked in the place of the device, and refuses what is not for it.
            let of_device = |one: &Diagnostic| [REFUSED, UNUSABLE].contains(&one.code);
            let stores_weights =
                |one: &Diagnostic| is_of_stored_weights(one, &config, &registries.accelerators);
            of_parts.retain(|one| !of_device(one) || stores_weights(one));
        }
        found.extend(of_parts);
        if wanted == ConfigUse::Pretraining && matches!(checkpoint_policy(&config), Policy::Budget { .. }) {
            found.push(no_budget());
        }
        if wanted == ConfigUse::Inspection {
            found.retain(|one| one.severity == Severity::Error);
        }
        (found, table)
    }

    /// What training asks of memory: the models beside the one that is trained, and all of it as a table.
    fn memory(
        &self,
        config: &Config,
        outline: &ModelOutline,
        machine: &Machine,
    ) -> Result<(Option<Companions>, MemoryTable), TrainError> {
        let spec = outline.model.spec();
        let (registries, catalog) = self.known;
        let of_model = (&*outline.layout, spec);
        let load = Load::of_run(config, catalog, &registries.accelerators, of_model, self.ranks);
        let (base, folders) = self.folder;
        let around = memory::Around {
            base,
            folders,
            rewards: &self.known.0.plugins.rewards,
        };
        let companions = memory::companions(config, around, (spec, &load))?;
        let model = Trained {
            layout: &outline.layout,
            spec,
            values: outline.trained_values(),
            load: &load,
        };
        let table = MemoryTable::new(config, model, companions.as_ref(), machine.memory_bytes);
        Ok((companions, table))
    }
}

/// Whether a diagnostic is of an accelerator that says how frozen weights are stored: a matter of config and model, on any device.
fn is_of_stored_weights(one: &Diagnostic, config: &Config, accelerators: &AcceleratorRegistry) -> bool {
    let mut entries = config.acceleration.shared.iter().enumerate();
    entries.any(|(position, entry)| {
        let is_of_entry = one.path.starts_with(&format!("acceleration.shared.{position}."));
        is_of_entry && accelerators.low_precision(std::slice::from_ref(entry)).is_some()
    })
}

/// Why there is no budget of activation checkpointing here.
fn no_budget() -> Diagnostic {
    let message = "`checkpointing.policy = \"budget\"` plans a step of reinforcement learning, and pretraining has none";
    Diagnostic::error(NO_CHECKPOINTING, message)
        .path("checkpointing.policy")
        .help("add `--set 'checkpointing={ policy = \"attn-only\" }'`, or another policy, for pretraining")
}

fn capabilities(outline: &ModelOutline) -> Capabilities<'_> {
    Capabilities {
        spec: outline.model.spec(),
        layout: &outline.layout,
        trained: outline.trained_values(),
    }
}

/// With the defaults of the sections that are wrong by themselves, about which nothing more can be said.
fn without_wrong_sections(mut config: Config, resolved: &Resolved) -> Config {
    if !resolved.is_whole("acceleration") {
        config.acceleration = Default::default();
    }
    if !resolved.is_whole("checkpointing") {
        config.checkpointing = Default::default();
    }
    if !resolved.is_whole("runtime") {
        config.runtime = Default::default();
    }
    if !resolved.is_whole("device") {
        config.device = Default::default();
    }
    config
}
