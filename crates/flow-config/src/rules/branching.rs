//! Rules on where the members of a group part.

use super::Rules;
use crate::codes::RULE_BRANCHING;
use crate::sections::{Branching, InitialNoise, Window};

const KIND: &str = "sampling.branching.kind";

pub(super) fn check(rules: &mut Rules<'_>) {
    let config = rules.config;
    if config.sampling.branching == Branching::default() {
        return;
    }
    if config.sampling.initial_noise != InitialNoise::PerGroup {
        let message = "members of a group that part at a step need one trajectory up to it, but `sampling.initial_noise` lets each start \
                       from noise of its own";
        rules
            .error(RULE_BRANCHING, &[KIND, "sampling.initial_noise"], message)
            .help("set `sampling.initial_noise = \"per_group\"`, or remove `sampling.branching`");
    }
    if rules.algorithm_facts().is_some_and(|facts| !facts.is_coupled) {
        let message = format!(
            "`sampling.branching` credits steps, and the loss of `algorithm.kind = \"{}\"` is not taken at steps of the rollout",
            config.algorithm.kind
        );
        rules
            .error(RULE_BRANCHING, &[KIND, "algorithm.kind"], message)
            .help("set `algorithm.kind` to \"grpo\", \"grpo-guard\" or \"dppo\", or remove `sampling.branching`");
    }
    match &config.sampling.branching {
        Branching::None(_) => {}
        Branching::OneStep(_) => one_step(rules),
    }
}

/// How many steps of the window are random in an iteration.
fn window_size(window: &Window, steps: usize) -> usize {
    match window {
        Window::All(_) => steps.saturating_sub(1),
        Window::List(list) => list.steps.len(),
        Window::Random(random) => random.count,
        Window::Sliding(sliding) => sliding.size,
        Window::Contiguous(contiguous) => contiguous.size,
    }
}

fn one_step(rules: &mut Rules<'_>) {
    let (scheduler, sampling) = (&rules.config.scheduler, &rules.config.sampling);
    let size = window_size(&scheduler.window, scheduler.steps);
    let (group, micro_batch) = (sampling.group_size, sampling.micro_batch);
    if size == 0 {
        // A path without a random step is no matter of branches.
        return;
    }
    let part = group / size;
    if part < 2 || !group.is_multiple_of(size) {
        let message = format!(
            "`sampling.group_size` is {group}, which is no multiple of the window's {size} steps with at least 2 images for each"
        );
        let above = size * (group.div_ceil(size)).max(2);
        rules
            .error(
                RULE_BRANCHING,
                &["sampling.group_size", "scheduler.window", "scheduler.steps", KIND],
                message,
            )
            .help(format!(
                "the next larger group is {above}; or let fewer steps be random, as with `scheduler.window = {{ kind = \"random\", \
                 count = 2 }}`"
            ));
    } else if micro_batch > 0 && !part.is_multiple_of(micro_batch) {
        let message = format!(
            "images of one call are random at the same step, so `sampling.micro_batch` ({micro_batch}) must divide the {part} images of a \
             group that part at one step"
        );
        let lower = (1..=micro_batch.min(part))
            .rev()
            .find(|lower| part.is_multiple_of(*lower));
        rules
            .error(
                RULE_BRANCHING,
                &[
                    "sampling.micro_batch",
                    "sampling.group_size",
                    "scheduler.window",
                    KIND,
                ],
                message,
            )
            .help(format!(
                "the next lower batch that divides {part} is {}",
                lower.unwrap_or(1)
            ));
    }
}
