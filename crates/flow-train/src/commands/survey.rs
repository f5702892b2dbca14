//! Everything that can be said of a config before its parts are built.

pub use super::target::Target;
use super::{Loaded, nearest, pretrain};
use crate::arguments::{ConfigArguments, TargetArguments};
use crate::failure::{Failure, OrFailure};
use flow_config::{Catalog, Config, Diagnostic, Report, Resolved, Severity};
use flow_core::device::ComputeDevice;
use flow_exchange::Alone;
use flow_train::Registries;
use flow_train::checkpoint::Policy;
use flow_trainer::setup::{self, ModelOutline};
use flow_validate::codes::{NO_CHECKPOINTING, REFUSED, UNUSABLE};
use flow_validate::{Capabilities, Question, Trainer, checkpoint_policy, validate};
use std::sync::{Arc, OnceLock};

/// What a config is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Reinforcement learning: rewards, weights and memory are needed.
    Training,
    /// Pretraining: all weights, no rollouts.
    Pretraining,
    /// Anything that trains nothing. What is merely worth knowing about training is not said.
    Looking,
}

/// A config with everything that was found about it.
pub struct Survey {
    /// Errors and warnings with their places.
    pub report: Report,
    /// The config, if it could be read at all. If the report has errors, as far as it could be.
    pub loaded: Option<Loaded>,
}

impl Survey {
    /// Reads a config and finds everything that is wrong with it, by itself and for this build and machine, or for the device
    /// that `target` names in their place.
    pub fn of(arguments: &ConfigArguments, wanted: Use, target: &TargetArguments) -> Result<Self, Failure> {
        let registries = Registries::built_in().or_failed()?;
        let catalog = registries.catalog();
        let inspection = super::described::inspect(arguments, wanted, &registries.plugins.models, &catalog)?;
        let Some(mut resolved) = inspection.partial else {
            let mut report = inspection.report;
            if !arguments.config.exists() {
                nearest::suggest_config(&arguments.config, &mut report);
            }
            return Ok(Self { report, loaded: None });
        };
        let place = Target::of(target, &mut resolved.config);
        let report = resolved.located(found(
            &resolved,
            (&registries, &catalog),
            wanted,
            place,
            target.memory_gib,
        ));
        Ok(Self {
            report,
            loaded: Some(Loaded {
                resolved,
                base: flow_config::base_dir(&arguments.config),
                registries,
                catalog,
                options: OnceLock::new(),
                target: place,
                exchange: Arc::new(Alone),
            }),
        })
    }
}

fn found(
    resolved: &Resolved,
    (registries, catalog): (&Registries, &Catalog),
    wanted: Use,
    target: Target,
    memory_gib: Option<f64>,
) -> Vec<Diagnostic> {
    let config = match wanted {
        Use::Pretraining => pretrain::fresh(&resolved.config),
        Use::Training | Use::Looking => resolved.config.clone(),
    };
    let config = without_wrong_sections(config, resolved);
    let mut found = Vec::new();
    if wanted == Use::Training {
        found.extend(resolved.check_training().diagnostics);
    }
    let wrong = resolved.report.has_errors();
    let outline = setup::outline(&config, &registries.plugins.models, &ComputeDevice::cpu());
    let outline = match outline {
        Ok(outline) => Some(outline),
        // If the config is wrong by itself, that is why.
        Err(_) if wrong => None,
        Err(error) => {
            found.extend(super::refusal::diagnostics(&error));
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
    let question = Question {
        config: &config,
        catalog,
        accelerators: &registries.accelerators,
        plan: plan.as_ref(),
        model: outline.as_ref().map(capabilities),
        sigmas: &sigmas,
        trainer: &Trainer::of(&config, catalog),
        machine: &target.machine(config.device.kind, memory_gib),
        // An estimate from wrong numbers would be wrong.
        training: wanted == Use::Training && !wrong,
    };
    let mut of_parts = validate(&question);
    if target != Target::Here {
        // The processor was asked in the place of the device, and refuses what is not for it.
        of_parts.retain(|one| ![REFUSED, UNUSABLE].contains(&one.code));
    }
    found.extend(of_parts);
    if wanted == Use::Pretraining && matches!(checkpoint_policy(&config), Policy::Budget { .. }) {
        let message = "`checkpointing.policy = \"budget\"` plans a step of reinforcement learning, and pretraining has none";
        found.push(
            Diagnostic::error(NO_CHECKPOINTING, message)
                .path("checkpointing.policy")
                .help("add `--set 'checkpointing={ policy = \"attn-only\" }'`, or another policy, for pretraining"),
        );
    }
    if wanted == Use::Looking {
        found.retain(|one| one.severity == Severity::Error);
    }
    found
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
