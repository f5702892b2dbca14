//! Rules on where the members of a group part.

use super::Rules;
use crate::codes::RULE_BRANCHING;
use crate::sections::{Branching, InitialNoise, TreeBranching, TreeLeaves, Window};

const KIND: &str = "sampling.branching.kind";
const SPLITS: &str = "sampling.branching.splits";
const UNTRAINED: &str = "sampling.branching.untrained_steps";

pub(super) fn check(rules: &mut Rules<'_>) {
    let config = rules.config;
    if config.sampling.branching == Branching::default() {
        return;
    }
    let branching = &config.sampling.branching;
    let starts_together = !matches!(branching, Branching::OneStepPerGroup(_));
    if starts_together && config.sampling.initial_noise != InitialNoise::PerGroup {
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
            .help("set `algorithm.kind` to \"grpo\", \"grpo-guard\", \"dppo\" or \"gardo\", or remove `sampling.branching`");
    }
    match branching {
        Branching::None(_) => {}
        Branching::OneStep(_) => one_step(rules),
        Branching::OneStepPerGroup(_) => one_step_per_group(rules),
        Branching::Tree(tree) => self::tree(rules, tree),
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
    let group = sampling.group_size;
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
    } else {
        let images = format!("the {part} images of a group that part at one step");
        images_of_a_call(
            rules,
            (part, images.as_str()),
            &["sampling.group_size", "scheduler.window", KIND],
        );
    }
}

fn one_step_per_group(rules: &mut Rules<'_>) {
    let group = rules.config.sampling.group_size;
    let images = format!("the {group} images of a group, which has a step of its own");
    images_of_a_call(rules, (group, images.as_str()), &["sampling.group_size", KIND]);
}

/// That the images of one call, whose steps are the same, are some of these many `images`, which `keys` decide beside the micro-batch.
fn images_of_a_call(rules: &mut Rules<'_>, (count, images): (usize, &str), keys: &[&str]) {
    let micro_batch = rules.config.sampling.micro_batch;
    if micro_batch == 0 || count.is_multiple_of(micro_batch) {
        return;
    }
    let message = format!(
        "images of one call are random at the same step, so `sampling.micro_batch` ({micro_batch}) must divide {images}"
    );
    let lower = (1..=micro_batch.min(count))
        .rev()
        .find(|lower| count.is_multiple_of(*lower));
    let keys: Vec<&str> = std::iter::once("sampling.micro_batch")
        .chain(keys.iter().copied())
        .collect();
    rules.error(RULE_BRANCHING, &keys, message).help(format!(
        "the next lower batch that divides {count} is {}",
        lower.unwrap_or(1)
    ));
}

fn tree(rules: &mut Rules<'_>, tree: &TreeBranching) {
    let (scheduler, group) = (&rules.config.scheduler, rules.config.sampling.group_size);
    let mut window: Vec<usize> = match &scheduler.window {
        Window::All(_) => (0..scheduler.steps.saturating_sub(1)).collect(),
        Window::List(list) => list.steps.clone(),
        Window::Random(_) | Window::Sliding(_) | Window::Contiguous(_) => {
            rules
                .error(
                    RULE_BRANCHING,
                    &["scheduler.window.kind", KIND],
                    "the steps at which a tree splits are fixed, and those of this window change from one iteration to the next",
                )
                .help("set `scheduler.window.kind` to \"all\" or \"list\"");
            return;
        }
    };
    window.sort_unstable();
    if !tree.splits.is_sorted() {
        rules
            .error(
                RULE_BRANCHING,
                &[SPLITS, KIND],
                "the splits of a tree are not in the order of its steps",
            )
            .help("write `sampling.branching.splits` from the noisiest step, 0, on");
        return;
    }
    if tree.leaf_count() != Some(group) {
        let (children, splits) = (tree.children, tree.splits.len());
        let (leaves, help) = match tree.leaf_count().filter(|leaves| *leaves <= 65_536) {
            Some(leaves) => (
                leaves.to_string(),
                format!("set `sampling.group_size = {leaves}`, or change `sampling.branching.splits`"),
            ),
            None => (
                "too many".to_owned(),
                "take fewer `sampling.branching.splits`".to_owned(),
            ),
        };
        let message = format!(
            "the members of a group are the leaves of its tree, but `sampling.group_size` is {group}, and a tree that splits {splits} \
             times into {children} has {leaves} leaves"
        );
        rules
            .error(
                RULE_BRANCHING,
                &[SPLITS, "sampling.group_size", "sampling.branching.children", KIND],
                message,
            )
            .help(help);
    }
    steps_of_tree(rules, tree, &window);
    if tree.leaves == TreeLeaves::Extremes && tree.extremes.saturating_mul(2) > group {
        let message = format!(
            "`sampling.branching.extremes` is {}, and a tree of {group} leaves has no {0} best and as many others",
            tree.extremes
        );
        rules
            .error(
                RULE_BRANCHING,
                &["sampling.branching.extremes", "sampling.group_size", KIND],
                message,
            )
            .help(format!("lower it to at most {}", group / 2));
    }
}

/// That the steps which a tree names are of its window, which is given in order.
fn steps_of_tree(rules: &mut Rules<'_>, tree: &TreeBranching, window: &[usize]) {
    let outside = |steps: &[usize]| steps.iter().copied().find(|step| !window.contains(step));
    for (key, steps) in [(SPLITS, &tree.splits), (UNTRAINED, &tree.untrained_steps)] {
        if let Some(step) = outside(steps) {
            rules
                .error(
                    RULE_BRANCHING,
                    &[key, "scheduler.window", "scheduler.steps", KIND],
                    format!("`{key}` has step {step}, which `scheduler.window` does not let be random"),
                )
                .help("name steps of the window, or add the step to it");
            return;
        }
    }
    if let (Some(step), Some(split)) = (window.first(), tree.splits.first())
        && step < split
    {
        let message = format!(
            "step {step} is random for a tree as a whole, since it splits at step {split} for the first time: nothing is compared there"
        );
        rules
            .error(RULE_BRANCHING, &[SPLITS, "scheduler.window", KIND], message)
            .help(format!("let the tree split at step {step}, or leave the steps before {split} out of `scheduler.window`"));
    }
    let Some(first) = tree.untrained_steps.iter().min() else {
        return;
    };
    if tree.untrained_steps.len() >= window.len() {
        rules
            .error(
                RULE_BRANCHING,
                &[UNTRAINED, "scheduler.window", KIND],
                "no step of the window is trained",
            )
            .help(
                "leave at least one step of `scheduler.window` out of `sampling.branching.untrained_steps`",
            );
    } else if tree.untrained_hold > 0 && tree.untrained_least > *first {
        let message = format!(
            "`sampling.branching.untrained_least` is {}, but the steps begin at {first} and move towards the noise",
            tree.untrained_least
        );
        rules
            .error(
                RULE_BRANCHING,
                &["sampling.branching.untrained_least", UNTRAINED, KIND],
                message,
            )
            .help(format!("set it to at most {first}"));
    }
}
