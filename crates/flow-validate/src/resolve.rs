//! From a config's `[acceleration]` to findings.

use crate::check::path;
use crate::rules::{BAD_PARAMETERS, REFUSED, UNKNOWN, UNUSABLE};
use crate::{Entry, Finding, Severity, Trainer, check};
use flow_accel::{AccelerationError, AcceleratorRegistry, Slot};
use flow_config::AccelerationConfig;
use flow_core::Plan;

/// Everything that is wrong with `config`: names that `registry` does not have, parameters that are not taken, plans
/// that are refused, and what the rules find. Nothing is put in force. `base` is the plan without accelerators.
///
/// Findings come in the order of the config: `shared`, then `rollout`.
pub fn check_config(
    config: &AccelerationConfig,
    registry: &AcceleratorRegistry,
    base: &Plan,
    trainer: &Trainer,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut plan = base.clone();
    for (slot, listed) in [(Slot::Shared, &config.shared), (Slot::Rollout, &config.rollout)] {
        for (position, listed) in listed.iter().enumerate() {
            let accelerator = match registry.build(&listed.name, &listed.params) {
                Ok(accelerator) => accelerator,
                Err(error) => {
                    findings.push(unusable(error, slot, position));
                    continue;
                }
            };
            let entry = Entry {
                slot: slot.name().into(),
                position,
                name: accelerator.name().into(),
                stage: accelerator.stage(),
                lossless: accelerator.lossless(&plan),
            };
            let of_entry = check(&[entry], trainer);
            if !crate::errors(&of_entry) {
                match accelerator.apply(plan.clone()) {
                    Ok(transformed) => plan = transformed,
                    Err(refusal) => {
                        let name = accelerator.name().into();
                        findings.push(unusable(
                            AccelerationError::Refused { name, refusal },
                            slot,
                            position,
                        ));
                    }
                }
            }
            findings.extend(of_entry);
        }
    }
    findings
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
