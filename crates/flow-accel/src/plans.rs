//! From slots to plans: one for rollouts, one for losses and evaluations.

use crate::{AccelerationError, Accelerator, Slot};
use flow_core::Plan;
use std::fmt;
use std::sync::Arc;

/// An accelerator that is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Its slot.
    pub slot: Slot,
    /// Its name.
    pub name: String,
    /// Whether it is bit-exact across stages, with the plan it was applied to.
    pub lossless: bool,
}

/// The plans of a run.
#[derive(Clone, Debug)]
pub struct Plans {
    /// Of rollouts: the shared accelerators, then those of the rollout.
    pub rollout: Arc<Plan>,
    /// Of losses and evaluations: the shared accelerators only.
    pub training: Arc<Plan>,
    /// Whether a velocity computed in a rollout and again in training has the same bits: every accelerator says so.
    pub lossless: bool,
    /// What is in force, in the order of application.
    pub applied: Vec<Applied>,
}

impl Plans {
    /// Applies the accelerators of both slots to `base`, each slot in the order of its list.
    ///
    /// # Errors
    /// All entries that cannot be in force: [`AccelerationError::WrongSlot`] and [`AccelerationError::Refused`].
    pub fn new(
        base: Plan,
        shared: &[Arc<dyn Accelerator>],
        rollout: &[Arc<dyn Accelerator>],
    ) -> Result<Self, Vec<AccelerationError>> {
        let (mut applied, mut errors) = (Vec::new(), Vec::new());
        let mut apply = |slot: Slot, plan: Plan, accelerator: &Arc<dyn Accelerator>| {
            let name = accelerator.name().to_owned();
            let stage = accelerator.stage();
            if stage != slot.takes() {
                errors.push(AccelerationError::WrongSlot { name, stage, slot });
                return plan;
            }
            let lossless = accelerator.lossless(&plan);
            match accelerator.apply(plan.clone()) {
                Ok(plan) => {
                    applied.push(Applied { slot, name, lossless });
                    plan
                }
                Err(refusal) => {
                    errors.push(AccelerationError::Refused { name, refusal });
                    plan
                }
            }
        };
        let training = shared
            .iter()
            .fold(base, |plan, each| apply(Slot::Shared, plan, each));
        let in_rollout = rollout
            .iter()
            .fold(training.clone(), |plan, each| apply(Slot::Rollout, plan, each));
        if !errors.is_empty() {
            return Err(errors);
        }
        let training = Arc::new(training);
        let lossless = applied.iter().all(|each| each.lossless);
        let rollout = if rollout.is_empty() {
            training.clone()
        } else {
            Arc::new(in_rollout)
        };
        Ok(Self {
            rollout,
            training,
            lossless,
            applied,
        })
    }
}

impl fmt::Display for Plans {
    /// What is in force, in words, for logs and the run manifest.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for slot in Slot::ALL {
            let of_slot = self.applied.iter().filter(|each| each.slot == slot);
            let words = of_slot.map(|each| match each.lossless {
                true => format!("{} (lossless)", each.name),
                false => format!("{} (lossy)", each.name),
            });
            let words: Vec<String> = words.collect();
            let words = if words.is_empty() {
                "none".into()
            } else {
                words.join(", ")
            };
            let end = if slot == Slot::Shared { "; " } else { "" };
            write!(f, "{slot}: {words}{end}")?;
        }
        Ok(())
    }
}
