//! From a config's `[acceleration]` to findings.

use crate::check::path;
use crate::rules::{BAD_PARAMETERS, CONFLICT, DUPLICATE, ORDER, REFUSED, REMOVED, UNKNOWN, UNUSABLE};
use crate::{Entry, Finding, Severity, Trainer, check};
use flow_accel::{Acceleration, AccelerationError, Accelerator, AcceleratorRegistry, Slot};
use flow_config::AccelerationConfig;
use flow_core::{ModelSpec, Plan};
use std::sync::Arc;

/// An accelerator with its place in the config.
struct Placed {
    slot: Slot,
    position: usize,
    accelerator: Arc<dyn Accelerator>,
}

/// Everything that is wrong with `config`: names that `registry` does not have, parameters that are not taken, entries in
/// the wrong place, conflicts, plans that are refused for this model, and what the rules find. `base` is the plan
/// without accelerators.
///
/// With what is in force if no finding is an error. Findings come in the order of the config: `shared`, then `rollout`.
pub fn resolve(
    config: &AccelerationConfig,
    registry: &AcceleratorRegistry,
    base: &Plan,
    model: &ModelSpec,
    trainer: &Trainer,
) -> (Vec<Finding>, Option<Acceleration>) {
    let mut findings = Vec::new();
    let mut placed = Vec::new();
    for (slot, listed) in [(Slot::Shared, &config.shared), (Slot::Rollout, &config.rollout)] {
        for (position, listed) in listed.iter().enumerate() {
            match registry.build(&listed.name, &listed.params) {
                Ok(accelerator) => placed.push(Placed {
                    slot,
                    position,
                    accelerator,
                }),
                Err(error) => findings.push(unusable(error, slot, position)),
            }
        }
    }
    for each in &placed {
        let entry = Entry {
            slot: each.slot.name().into(),
            position: each.position,
            name: each.accelerator.name().into(),
            stage: each.accelerator.stage(),
            safety: each.accelerator.safety(base),
        };
        findings.extend(check(&[entry], trainer));
    }
    let of_slot = |slot| -> Vec<Arc<dyn Accelerator>> {
        let here = placed.iter().filter(|each| each.slot == slot);
        here.map(|each| each.accelerator.clone()).collect()
    };
    let built = Acceleration::new(
        base.clone(),
        &of_slot(Slot::Shared),
        &of_slot(Slot::Rollout),
        model,
    );
    let acceleration = match built {
        Ok(acceleration) => Some(acceleration),
        Err(errors) => {
            for error in errors {
                let (name, slot) = place(&error);
                // The later of two entries of one name is the one too many.
                let here = placed.iter().rfind(|each| {
                    each.accelerator.name() == name && slot.is_none_or(|slot| slot == each.slot)
                });
                let found = here.map_or((Slot::Shared, 0), |each| (each.slot, each.position));
                // The rules have words of their own for this one.
                if !matches!(error, AccelerationError::WrongSlot { .. }) {
                    findings.push(unusable(error, found.0, found.1));
                }
            }
            None
        }
    };
    let slot_first = |finding: &Finding| finding.path.starts_with("acceleration.rollout");
    findings.sort_by(|a, b| {
        (slot_first(a), &a.path, a.severity != Severity::Error).cmp(&(
            slot_first(b),
            &b.path,
            b.severity != Severity::Error,
        ))
    });
    let in_order = !crate::errors(&findings);
    (findings, acceleration.filter(|_| in_order))
}

/// The findings of [`resolve`].
pub fn check_config(
    config: &AccelerationConfig,
    registry: &AcceleratorRegistry,
    base: &Plan,
    model: &ModelSpec,
    trainer: &Trainer,
) -> Vec<Finding> {
    resolve(config, registry, base, model, trainer).0
}

/// The accelerator that an error is about, and its slot if the error knows it.
fn place(error: &AccelerationError) -> (&str, Option<Slot>) {
    match error {
        AccelerationError::Duplicate { name, slot }
        | AccelerationError::WrongSlot { name, slot, .. }
        | AccelerationError::Order { name, slot, .. } => (name, Some(*slot)),
        AccelerationError::Conflict { name, .. }
        | AccelerationError::Refused { name, .. }
        | AccelerationError::Params { name, .. } => (name, None),
        AccelerationError::Unknown { asked, .. } | AccelerationError::Removed { asked, .. } => (asked, None),
        _ => ("", None),
    }
}

fn unusable(error: AccelerationError, slot: Slot, position: usize) -> Finding {
    let (code, message, help) = match error {
        AccelerationError::Unknown {
            asked,
            available,
            nearest,
        } => (
            UNKNOWN,
            format!("there is no accelerator `{asked}`."),
            match nearest {
                Some(nearest) => format!("The nearest name is `{nearest}`; available: {available}."),
                None => "No accelerator is registered in this program; remove the entry.".into(),
            },
        ),
        AccelerationError::Removed { asked, why, instead } => (
            REMOVED,
            format!("there is no accelerator `{asked}` any more: {why}."),
            format!("{}.", instead.trim_end_matches('.')),
        ),
        AccelerationError::Params { name, message } => (
            BAD_PARAMETERS,
            format!("parameters of the accelerator `{name}`: {message}."),
            "Correct `params` of the entry.".into(),
        ),
        AccelerationError::Refused { name, refusal } => (
            REFUSED,
            format!("the accelerator `{name}` cannot be used: {}.", refusal.why),
            format!("{}.", refusal.help.trim_end_matches('.')),
        ),
        AccelerationError::Duplicate { name, slot } => (
            DUPLICATE,
            format!("the accelerator `{name}` stands in `acceleration.{slot}` twice."),
            "Keep one of the entries.".into(),
        ),
        AccelerationError::Conflict { name, other, why } => (
            CONFLICT,
            format!("the accelerators `{name}` and `{other}` exclude each other: {why}."),
            "Remove one of them.".into(),
        ),
        AccelerationError::Order {
            name,
            other,
            slot,
            why,
        } => (
            ORDER,
            format!("the accelerator `{name}` must stand after `{other}` in `acceleration.{slot}`: {why}."),
            format!("Move the entry of `{name}` below that of `{other}`."),
        ),
        other => (
            UNUSABLE,
            format!("{other}."),
            "Change or remove the entry.".into(),
        ),
    };
    Finding {
        severity: Severity::Error,
        code,
        path: path(slot.name(), position),
        message,
        help,
    }
}
