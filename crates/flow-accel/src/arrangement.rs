//! Which accelerators stand where, and beside which others.

use crate::{AccelerationError, Accelerator, Slot};
use std::sync::Arc;

/// Everything that is wrong with how the entries of both slots are arranged.
pub(crate) fn check(
    shared: &[Arc<dyn Accelerator>],
    rollout: &[Arc<dyn Accelerator>],
) -> Vec<AccelerationError> {
    let mut errors = Vec::new();
    for (slot, entries) in [(Slot::Shared, shared), (Slot::Rollout, rollout)] {
        for (index, entry) in entries.iter().enumerate() {
            let name = entry.name().to_owned();
            let stage = entry.stage();
            if stage != slot.takes() {
                errors.push(AccelerationError::WrongSlot { name, stage, slot });
                continue;
            }
            if entries[..index].iter().any(|earlier| earlier.name() == name) {
                errors.push(AccelerationError::Duplicate {
                    name: name.clone(),
                    slot,
                });
            }
            for (first, why) in entry.after() {
                if entries[index + 1..].iter().any(|later| later.name() == *first) {
                    errors.push(AccelerationError::Order {
                        name: name.clone(),
                        other: (*first).to_owned(),
                        slot,
                        why: (*why).to_owned(),
                    });
                }
            }
            for (other, why) in entry.conflicts() {
                if shared.iter().chain(rollout).any(|each| each.name() == *other) {
                    errors.push(AccelerationError::Conflict {
                        name: name.clone(),
                        other: (*other).to_owned(),
                        why: (*why).to_owned(),
                    });
                }
            }
        }
    }
    errors
}
