//! Rules on `[exploration]`.

use super::Rules;
use crate::codes;
use crate::sections::{Branching, ExplorationDynamics, InitialNoise};

pub(super) fn check(rules: &mut Rules<'_>) {
    if !rules.config.exploration.is_on() {
        let written = rules.written_below("exploration");
        if let Some(first) = written.iter().find(|key| *key != "exploration.candidates") {
            let message = format!("`{first}` is not read: `exploration.candidates` is 0");
            rules
                .warning(codes::RULE_UNUSED, &[first, "exploration.candidates"], message)
                .help("set `exploration.candidates` to more than `sampling.group_size`, or remove it");
        }
        return;
    }
    candidates(rules);
    dynamics(rules);
    if rules.config.sampling.branching != Branching::default() {
        let message = "`sampling.branching` gives groups or their members steps of their own, and exploration chooses the members by themselves";
        rules
            .error(
                codes::RULE_EXPLORATION,
                &["exploration.candidates", "sampling.branching.kind"],
                message,
            )
            .help("remove `exploration` or `sampling.branching`");
    }
}

/// More candidates than are kept, in whole micro-batches.
fn candidates(rules: &mut Rules<'_>) {
    let config = rules.config;
    let (sampling, candidates) = (&config.sampling, config.exploration.candidates);
    let (group_size, micro_batch) = (sampling.group_size, sampling.micro_batch);
    if candidates <= group_size {
        let message = format!(
            "`exploration.candidates` is {candidates}, and `sampling.group_size`, how many of them are kept, is {group_size}"
        );
        rules
            .error(
                codes::RULE_EXPLORATION,
                &["exploration.candidates", "sampling.group_size"],
                message,
            )
            .help("explore more candidates than are kept, 2 to 4 times as many, or set it to 0 to explore nothing");
        return;
    }
    let all = sampling.prompts_per_step * candidates;
    if micro_batch > 0 && !all.is_multiple_of(micro_batch) {
        let fits = |candidates: &usize| (sampling.prompts_per_step * candidates).is_multiple_of(micro_batch);
        let lower = (group_size + 1..candidates).rev().find(fits);
        // A multiple of the micro-batch always fits.
        let higher = (candidates + 1..=candidates + micro_batch).find(fits);
        let near: Vec<String> = lower.into_iter().chain(higher).map(|n| n.to_string()).collect();
        let message = format!(
            "`sampling.prompts_per_step` ({}) * `exploration.candidates` ({candidates}) = {all} candidates cannot be cut into batches of \
             `sampling.micro_batch` ({micro_batch})",
            sampling.prompts_per_step
        );
        rules
            .error(
                codes::RULE_EXPLORATION,
                &[
                    "exploration.candidates",
                    "sampling.micro_batch",
                    "sampling.prompts_per_step",
                ],
                message,
            )
            .help(format!("the nearest that would do: {}", near.join(" or ")));
    }
}

/// That candidates differ, and that the steps which they share with the kept ones are there.
fn dynamics(rules: &mut Rules<'_>) {
    let config = rules.config;
    let (exploration, scheduler) = (&config.exploration, &config.scheduler);
    match exploration.dynamics {
        ExplorationDynamics::Deterministic if config.sampling.initial_noise == InitialNoise::PerGroup => {
            rules
                .error(
                    codes::RULE_EXPLORATION,
                    &["exploration.dynamics", "sampling.initial_noise"],
                    "`exploration.dynamics = \"deterministic\"` and `sampling.initial_noise = \"per_group\"` make every candidate of a \
                     group the same",
                )
                .help("set `exploration.dynamics = \"same\"`, or remove `sampling.initial_noise`");
        }
        ExplorationDynamics::Same => {
            let Some(steps) = exploration.steps.filter(|steps| *steps != scheduler.steps) else {
                return;
            };
            let message = format!(
                "`exploration.steps` is {steps} and `scheduler.steps` {}, but `exploration.dynamics = \"same\"` takes the steps of \
                 `[scheduler]`, whose window and noise are those of its own steps",
                scheduler.steps
            );
            rules
                .error(
                    codes::RULE_EXPLORATION,
                    &["exploration.steps", "exploration.dynamics", "scheduler.steps"],
                    message,
                )
                .help("set `exploration.dynamics = \"deterministic\"`, or remove `exploration.steps`");
        }
        ExplorationDynamics::Deterministic => {}
    }
}
