//! Applies the rules to entries.

use crate::{RULES, Rule};
use flow_accel::{AcceleratorStage, Paradigm, Safety, Slot};
use flow_config::{Catalog, Config, Diagnostic};

/// An accelerator in a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name of the slot.
    pub slot: String,
    /// Position in the slot's list, from 0.
    pub position: usize,
    /// Name of the accelerator.
    pub name: String,
    /// The stages it is made for.
    pub stage: AcceleratorStage,
    /// What it promises about the bits of rollout and training.
    pub safety: Safety,
}

/// Whom the accelerators work for: an algorithm, or pretraining.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainerKind {
    /// Its name in configs.
    pub name: String,
    /// What its loss reads of a rollout, if it says so.
    pub paradigm: Option<Paradigm>,
}

impl TrainerKind {
    /// The trainer that a config names.
    pub fn of(config: &Config, catalog: &Catalog) -> Self {
        let distils = catalog.distillation_facts(config).is_some();
        let paradigm = catalog
            .algorithm_facts(config)
            .map(|facts| match facts.is_coupled {
                true => Paradigm::Coupled,
                false if distils => Paradigm::Distillation,
                false => Paradigm::Decoupled,
            });
        Self {
            name: config.algorithm.kind.clone(),
            paradigm,
        }
    }
}

/// Everything the rules find, in the order of the entries. Paths are those of the entries' names.
pub fn check(entries: &[Entry], trainer: &TrainerKind) -> Vec<Diagnostic> {
    let of_entry = |entry| {
        let rules = RULES.iter().filter(move |rule| concerns(rule, entry, trainer));
        rules.map(move |rule| diagnostic(rule, entry, trainer))
    };
    entries.iter().flat_map(of_entry).collect()
}

fn concerns(rule: &Rule, entry: &Entry, trainer: &TrainerKind) -> bool {
    rule.applies(
        Slot::named(&entry.slot),
        entry.stage,
        entry.safety,
        trainer.paradigm,
    )
}

fn diagnostic(rule: &Rule, entry: &Entry, trainer: &TrainerKind) -> Diagnostic {
    let paradigm = trainer.paradigm.map_or("undeclared", Paradigm::name);
    let fill = |text: &str| {
        // One pass, so that a name with braces in it is not filled in again.
        let mut filled = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (key, after) = after
                .split_once('}')
                .expect("the texts of the rules close their braces");
            filled.push_str(before);
            filled.push_str(match key {
                "name" => &entry.name,
                "slot" => &entry.slot,
                "stage" => entry.stage.name(),
                "trainer" => &trainer.name,
                "paradigm" => paradigm,
                _ => unreachable!("the texts of the rules use known names"),
            });
            rest = after;
        }
        filled + rest
    };
    Diagnostic::new(rule.severity, rule.code, fill(rule.message))
        .path(path(&entry.slot, entry.position, "name"))
        .help(fill(rule.help))
}

/// Path of a key of an entry, as `--set` takes it.
pub(crate) fn path(slot: &str, position: usize, key: &str) -> String {
    format!("acceleration.{slot}.{position}.{key}")
}
