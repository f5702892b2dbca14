//! From `exploration.accelerators` to diagnostics, and to what is in force while candidates are explored.

use crate::errors;
use crate::resolve::{build, concerned, diagnostic};
use flow_accel::{AccelerationError, Accelerator, AcceleratorRegistry, Arrangement, Slot};
use flow_config::{Config, Diagnostic};
use std::sync::Arc;

/// Where entries of a rollout stand, as findings on them say.
const ROLLOUT: &str = "acceleration.rollout";
/// Where those of exploration do.
const EXPLORATION: &str = "exploration.accelerators";

/// Everything that is wrong with `exploration.accelerators`: names that `registry` does not have, parameters that are not taken, entries
/// in the wrong place, conflicts, plans that are refused for this model. Lossy ones are in order with every trainer: no loss reads what
/// they sampled. `run` is what is in force in the run itself; its shared accelerators are in force here, too.
///
/// With what is in force while candidates are explored, if nothing is an error and something is explored.
pub fn resolve_exploration(
    config: &Config,
    registry: &AcceleratorRegistry,
    run: &Arrangement,
) -> (Vec<Diagnostic>, Option<Arrangement>) {
    if !config.exploration.is_on() {
        return (Vec::new(), None);
    }
    let mut found = Vec::new();
    let mut placed: Vec<(usize, Arc<dyn Accelerator>)> = Vec::new();
    for (position, entry) in config.exploration.accelerators.iter().enumerate() {
        match build(entry, registry, Slot::Rollout, position) {
            Ok(accelerator) => placed.push((position, accelerator)),
            Err(problems) => found.extend(problems),
        }
    }
    let accelerators: Vec<Arc<dyn Accelerator>> = placed
        .iter()
        .map(|(_, accelerator)| accelerator.clone())
        .collect();
    let arrangement = match run.beside(&accelerators) {
        Ok(arrangement) => Some(arrangement),
        Err(problems) => {
            found.extend(problems.iter().map(|problem| of_entry(problem, &placed)));
            None
        }
    };
    let found: Vec<Diagnostic> = found.into_iter().map(in_its_place).collect();
    let in_order = !errors(&found);
    (found, arrangement.filter(|_| in_order))
}

/// What is wrong with the entry that a problem is about.
fn of_entry(problem: &AccelerationError, placed: &[(usize, Arc<dyn Accelerator>)]) -> Diagnostic {
    let (name, _) = concerned(problem);
    // The later of two entries of one name is the one too many.
    let here = placed.iter().rfind(|(_, accelerator)| accelerator.name() == name);
    let position = here.map_or(0, |(position, _)| *position);
    diagnostic(problem, (Slot::Rollout, position))
}

/// What was said of an entry of a rollout, of one of exploration.
fn in_its_place(mut found: Diagnostic) -> Diagnostic {
    let moved = |text: &str| text.replace(ROLLOUT, EXPLORATION);
    found.path = moved(&found.path);
    found.message = moved(&found.message);
    found.help = found.help.as_deref().map(moved);
    found
}
