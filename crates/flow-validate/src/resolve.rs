//! From a config's `[acceleration]` to diagnostics, and to what is in force.

use crate::check::path;
use crate::codes::{
    BAD_PARAMETERS, CONFLICT, DUPLICATE, NOTHING_OUTSIDE_WINDOW, ORDER, REFUSED, REMOVED, UNKNOWN, UNUSABLE,
};
use crate::{Entry, TrainerKind, check, errors, low_precision};
use flow_accel::{AccelerationError, Accelerator, AcceleratorRegistry, Arrangement, Safety, Slot, StepScope};
use flow_config::{AcceleratorEntry, Config, Diagnostic, Severity};
use flow_core::{Backends, ModelSpec};
use std::sync::Arc;

/// An accelerator with its place in the config.
struct Placed {
    slot: Slot,
    position: usize,
    accelerator: Arc<dyn Accelerator>,
}

/// What was found, with the place of the entry it is about.
type Found = Vec<((Slot, usize), Diagnostic)>;

/// Everything that is wrong with the accelerators of `config`: names that `registry` does not have, parameters that are
/// not taken, entries in the wrong place, conflicts, plans that are refused for this model, and what the rules find.
/// `base` is the plan without accelerators.
///
/// With what is in force if nothing is an error. Diagnostics come in the order of the config: `shared`, then `rollout`,
/// errors first.
pub fn resolve(
    config: &Config,
    registry: &AcceleratorRegistry,
    base: &Backends,
    model: &ModelSpec,
    trainer: &TrainerKind,
) -> (Vec<Diagnostic>, Option<Arrangement>) {
    let mut found = Found::new();
    let mut placed = Vec::new();
    let listed = &config.acceleration;
    for (slot, entries) in [(Slot::Shared, &listed.shared), (Slot::Rollout, &listed.rollout)] {
        for (position, entry) in entries.iter().enumerate() {
            match build(entry, registry, slot, position) {
                Ok(accelerator) => placed.push(Placed {
                    slot,
                    position,
                    accelerator,
                }),
                Err(problems) => found.extend(problems.into_iter().map(|one| ((slot, position), one))),
            }
        }
    }
    for each in &placed {
        let place = (each.slot, each.position);
        let entry = Entry {
            slot: each.slot.name().into(),
            position: each.position,
            name: each.accelerator.name().into(),
            stage: each.accelerator.stage(),
            safety: each.accelerator.safety(base),
        };
        let idle = nothing_outside_window(config, each.slot, &entry);
        let rule = each.accelerator.low_precision();
        let stored = rule.map(|rule| low_precision::of_entry(config, rule, &entry.name, each.position));
        found.extend(
            check(&[entry], trainer)
                .into_iter()
                .chain(idle)
                .chain(stored)
                .map(|one| (place, one)),
        );
    }
    let of_slot = |slot| -> Vec<Arc<dyn Accelerator>> {
        let here = placed.iter().filter(|each| each.slot == slot);
        here.map(|each| each.accelerator.clone()).collect()
    };
    let built = Arrangement::new(
        base.clone(),
        &of_slot(Slot::Shared),
        &of_slot(Slot::Rollout),
        model,
    );
    let acceleration = match built {
        Ok(acceleration) => Some(acceleration),
        Err(errors) => {
            for error in errors {
                // The rules speak of this one already, in the same words.
                if matches!(error, AccelerationError::WrongSlot { .. }) {
                    continue;
                }
                let (name, slot) = concerned(&error);
                // The later of two entries of one name is the one too many.
                let here = placed.iter().rfind(|each| {
                    each.accelerator.name() == name && slot.is_none_or(|slot| slot == each.slot)
                });
                let place = here.map_or((Slot::Shared, 0), |each| (each.slot, each.position));
                found.push((place, diagnostic(&error, place)));
            }
            None
        }
    };
    // Stable: what is said of one entry with one severity stays in order.
    found.sort_by_key(|(place, diagnostic)| (*place, diagnostic.severity));
    let found: Vec<Diagnostic> = found.into_iter().map(|(_, diagnostic)| diagnostic).collect();
    let in_order = !errors(&found);
    (found, acceleration.filter(|_| in_order))
}

/// The accelerator of an entry, or everything that is wrong with its name and parameters.
pub(crate) fn build(
    entry: &AcceleratorEntry,
    registry: &AcceleratorRegistry,
    slot: Slot,
    position: usize,
) -> Result<Arc<dyn Accelerator>, Vec<Diagnostic>> {
    if let Some(kind) = registry.kind(&entry.name) {
        let problems = kind.problems(&entry.params, &path(slot.name(), position, "params"));
        if !problems.is_empty() {
            return Err(problems);
        }
    }
    let built = registry.build(&entry.name, &entry.params);
    built.map_err(|error| vec![diagnostic(&error, (slot, position))])
}

/// What is lossy outside the SDE window only has nothing to do where no two steps in a row are outside it: what it keeps
/// is dropped at each stochastic step, so it can answer a deterministic one only if the step before was one, too.
fn nothing_outside_window(config: &Config, slot: Slot, entry: &Entry) -> Option<Diagnostic> {
    let scheduler = &config.scheduler;
    let outside = entry.safety == Safety::Lossy(StepScope::OutsideSdeWindow) && slot == Slot::Rollout;
    let longest = scheduler.longest_deterministic_run();
    if !outside || longest >= 2 {
        return None;
    }
    let severity = if config.acceleration.strict {
        Severity::Error
    } else {
        Severity::Warning
    };
    let message = format!(
        "the accelerator `{}` works outside the SDE window only, and of the {} steps no two in a row are outside it, \
         so it will do nothing",
        entry.name, scheduler.steps
    );
    let help = "choose a smaller `scheduler.window`, for instance `{ kind = \"list\", steps = [0] }`, or remove the entry";
    let diagnostic = Diagnostic::new(severity, NOTHING_OUTSIDE_WINDOW, message)
        .path(path(slot.name(), entry.position, "name"))
        .related(["scheduler.window", "scheduler.steps"])
        .help(help);
    Some(diagnostic)
}

/// The accelerator that an error is about, and its slot if the error knows it.
pub(crate) fn concerned(error: &AccelerationError) -> (&str, Option<Slot>) {
    match error {
        AccelerationError::Duplicate { name, slot }
        | AccelerationError::WrongSlot { name, slot, .. }
        | AccelerationError::Order { name, slot, .. } => (name, Some(*slot)),
        AccelerationError::Conflict { name, .. }
        | AccelerationError::Refused { name, .. }
        | AccelerationError::Params { name, .. } => (name, None),
        AccelerationError::Unknown(unknown) => (&unknown.asked, None),
        AccelerationError::Removed(removed) => (&removed.asked, None),
        _ => ("", None),
    }
}

pub(crate) fn diagnostic(error: &AccelerationError, (slot, position): (Slot, usize)) -> Diagnostic {
    let code = match error {
        AccelerationError::Unknown(_) => UNKNOWN,
        AccelerationError::Removed(_) => REMOVED,
        AccelerationError::Params { .. } => BAD_PARAMETERS,
        AccelerationError::Refused { .. } => REFUSED,
        AccelerationError::Duplicate { .. } => DUPLICATE,
        AccelerationError::Conflict { .. } => CONFLICT,
        AccelerationError::Order { .. } => ORDER,
        _ => UNUSABLE,
    };
    let key = match error {
        AccelerationError::Params { .. } => "params",
        _ => "name",
    };
    let diagnostic = Diagnostic::error(code, error.message())
        .path(path(slot.name(), position, key))
        .help(error.help());
    match error {
        AccelerationError::Unknown(unknown) => diagnostic
            .allowed(unknown.available.clone())
            .nearest(unknown.nearest.clone()),
        _ => diagnostic,
    }
}
