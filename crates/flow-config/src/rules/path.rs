//! Rules on the sampling path and on the geometry of rollouts.

use super::Rules;
use crate::codes;
use crate::sections::{
    ContiguousWindow, Dynamics, HoldDecay, InitialNoise, NoiseLevel, Shift, SlidingWindow, Window,
};

pub(super) fn check(rules: &mut Rules<'_>) {
    noise_level(rules);
    window(rules);
    after_window(rules);
    coupled(rules);
    initial_noise(rules);
    shift(rules);
    geometry(rules);
}

fn noise_level(rules: &mut Rules<'_>) {
    let scheduler = &rules.config.scheduler;
    if let NoiseLevel::PerStep(values) = &scheduler.noise_level
        && values.len() != scheduler.steps
    {
        let message = format!(
            "`scheduler.noise_level` has {} values, but `scheduler.steps` is {}",
            values.len(),
            scheduler.steps
        );
        rules
            .error(
                codes::RULE_NOISE_LEVEL,
                &["scheduler.noise_level", "scheduler.steps"],
                message,
            )
            .help("give one value per step, or one value for all");
    }
    let largest = (0..scheduler.steps)
        .filter_map(|step| scheduler.noise_level_at(step))
        .fold(0.0, f64::max);
    if scheduler.dynamics == Dynamics::Cps && largest > 1.0 {
        let message = format!("`scheduler.noise_level` reaches {largest}, but `cps` allows at most 1");
        rules
            .error(
                codes::RULE_NOISE_LEVEL,
                &["scheduler.noise_level", "scheduler.dynamics"],
                message,
            )
            .help("at 1 all of the remaining noise is fresh; lower it");
    }
}

fn window(rules: &mut Rules<'_>) {
    let scheduler = &rules.config.scheduler;
    let steps = scheduler.steps;
    let listed = match &scheduler.window {
        Window::List(list) => Some(("scheduler.window.steps", &list.steps)),
        Window::Random(random) => random.from.as_ref().map(|from| ("scheduler.window.from", from)),
        Window::All(_) | Window::Sliding(_) | Window::Contiguous(_) => None,
    };
    if let Some((key, listed)) = listed {
        for (index, step) in listed.iter().enumerate() {
            let entry = format!("{key}.{index}");
            if *step >= steps {
                let message = format!("`{key}` names step {step}, but steps are 0 to {}", steps - 1);
                rules
                    .error(codes::RULE_WINDOW, &[&entry, "scheduler.steps"], message)
                    .help("remove it, or raise `scheduler.steps`");
            } else if *step == steps - 1 && scheduler.dynamics == Dynamics::Cps {
                let message = format!("`{key}` names step {step}, the last, which has no noise under `cps`");
                rules
                    .error(codes::RULE_WINDOW, &[&entry, "scheduler.dynamics"], message)
                    .help("remove it: that step ends at sigma 0, and `cps` scales its noise by that sigma");
            }
        }
    }
    match &scheduler.window {
        Window::All(_) if steps < 2 && scheduler.dynamics != Dynamics::Ode => {
            rules
                .error(
                    codes::RULE_WINDOW,
                    &["scheduler.steps", "scheduler.window"],
                    "a path of one step has no step but the last, so no step is random",
                )
                .help("raise `scheduler.steps` to at least 2");
        }
        Window::Random(random) => {
            let (available, source) = match &random.from {
                Some(from) => (from.len(), "`scheduler.window.from` has"),
                None => (steps.saturating_sub(1), "without the last step there are"),
            };
            if random.count > available {
                let message = format!(
                    "`scheduler.window.count` is {}, but {source} {available}",
                    random.count
                );
                rules
                    .error(
                        codes::RULE_WINDOW,
                        &[
                            "scheduler.window.count",
                            "scheduler.window.from",
                            "scheduler.steps",
                        ],
                        message,
                    )
                    .help("steps are drawn without replacement; lower the count");
            }
        }
        Window::Sliding(sliding) if sliding.size + 1 > steps => {
            let message = format!(
                "`scheduler.window.size` is {}, but without the last step there are {}",
                sliding.size,
                steps - 1
            );
            rules
                .error(
                    codes::RULE_WINDOW,
                    &["scheduler.window.size", "scheduler.steps"],
                    message,
                )
                .help("lower the size, or raise `scheduler.steps`");
        }
        Window::Contiguous(contiguous) => contiguous_window(rules, contiguous),
        _ => {}
    }
    if let Window::Sliding(sliding) = &scheduler.window {
        hold(rules, sliding);
    }
}

/// How long a sliding window stays in one place.
fn hold(rules: &mut Rules<'_>, sliding: &SlidingWindow) {
    let least = sliding.hold_least.unwrap_or(1);
    if least > sliding.hold {
        let message = format!(
            "`scheduler.window.hold_least` is {least}, and `scheduler.window.hold`, from which it falls to that, is {}",
            sliding.hold
        );
        let keys = ["scheduler.window.hold_least", "scheduler.window.hold"];
        rules
            .error(codes::RULE_WINDOW, &keys, message)
            .help("lower the one, or raise the other");
    }
    for (key, of, decay) in [
        ("hold_least", HoldDecay::Linear, "linear"),
        ("decay_from", HoldDecay::Exponential, "exponential"),
        ("decay_rate", HoldDecay::Exponential, "exponential"),
    ] {
        let key = format!("scheduler.window.{key}");
        if let (false, Some(first)) = (sliding.hold_decay == of, rules.written_below(&key).first()) {
            let message = format!("`{first}` is read only with `scheduler.window.hold_decay = \"{decay}\"`");
            rules
                .warning(
                    codes::RULE_UNUSED,
                    &[first, "scheduler.window.hold_decay"],
                    message,
                )
                .help(format!(
                    "set `scheduler.window.hold_decay = \"{decay}\"`, or remove it"
                ));
        }
    }
}

fn contiguous_window(rules: &mut Rules<'_>, contiguous: &ContiguousWindow) {
    let scheduler = &rules.config.scheduler;
    let (steps, size, within) = (
        scheduler.steps,
        contiguous.size,
        contiguous.within(scheduler.steps),
    );
    let (lo, hi) = (within.start, within.end);
    let keys = [
        "scheduler.window.range",
        "scheduler.window.size",
        "scheduler.steps",
    ];
    if hi > steps || lo >= hi {
        let message = format!(
            "`scheduler.window.range` is [{lo}, {hi}], but must have lo < hi <= {steps}, the number of steps"
        );
        let help = match contiguous.range {
            Some(_) => "steps count from 0, and the window ends before step hi",
            None => "raise `scheduler.steps` to at least 2",
        };
        rules.error(codes::RULE_WINDOW, &keys, message).help(help);
    } else if hi - lo < size {
        let source = match contiguous.range {
            Some(_) => format!("`scheduler.window.range` [{lo}, {hi}] has"),
            None => "the first half of the path, which is the range if none is given, has".to_owned(),
        };
        let message = format!(
            "`scheduler.window.size` is {size}, but {source} {} steps",
            hi - lo
        );
        rules
            .error(codes::RULE_WINDOW, &[keys[1], keys[0], keys[2]], message)
            .help("lower the size, or widen the range");
    } else if hi == steps && scheduler.dynamics == Dynamics::Cps {
        let message = format!(
            "`scheduler.window.range` has step {}, the last, which has no noise under `cps`",
            hi - 1
        );
        rules
            .error(codes::RULE_WINDOW, &[keys[0], "scheduler.dynamics"], message)
            .help("end the range before it: that step ends at sigma 0, and `cps` scales its noise by that sigma");
    }
}

/// The steps that a window can ever choose.
fn candidates(window: &Window, steps: usize) -> Vec<usize> {
    match window {
        Window::List(list) => list.steps.clone(),
        Window::Random(random) => random
            .from
            .clone()
            .unwrap_or_else(|| (0..steps.saturating_sub(1)).collect()),
        Window::All(_) | Window::Sliding(_) => (0..steps.saturating_sub(1)).collect(),
        Window::Contiguous(contiguous) => contiguous.within(steps).collect(),
    }
}

/// Warns where at most one step is behind the window, so that a solver has none to save.
fn after_window(rules: &mut Rules<'_>) {
    let scheduler = &rules.config.scheduler;
    let last = candidates(&scheduler.window, scheduler.steps).into_iter().max();
    let ends_late = match &scheduler.window {
        Window::All(_) => true,
        Window::List(_) => last.is_some_and(|last| last + 2 >= scheduler.steps),
        Window::Random(_) | Window::Sliding(_) | Window::Contiguous(_) => false,
    };
    if scheduler.dynamics == Dynamics::Ode || !ends_late {
        return;
    }
    if let Some(first) = rules.written_below("scheduler.after_window").first() {
        rules
            .warning(
                codes::RULE_UNUSED,
                &[first, "scheduler.window"],
                format!(
                    "`{first}` saves nothing: behind the steps of `scheduler.window` there is at most one"
                ),
            )
            .help("end the window earlier, for instance `{ kind = \"sliding\", size = 4 }`, or remove it");
    }
}

fn coupled(rules: &mut Rules<'_>) {
    let config = rules.config;
    let scheduler = &config.scheduler;
    let is_coupled = rules.algorithm_facts().is_some_and(|facts| facts.is_coupled);
    if scheduler.dynamics == Dynamics::Ode {
        if is_coupled {
            let message = format!(
                "`algorithm.kind = \"{}\"` trains on log-probabilities, which `scheduler.dynamics = \"ode\"` does not \
                 have",
                config.algorithm.kind
            );
            rules
                .error(
                    codes::RULE_NO_LOG_PROBABILITY,
                    &["scheduler.dynamics", "algorithm.kind", "algorithm"],
                    message,
                )
                .help("set `scheduler.dynamics` to \"flow-sde\", \"dance-sde\" or \"cps\", or `algorithm.kind` to \"nft\"");
        }
        for key in [
            "scheduler.noise_level",
            "scheduler.window",
            "scheduler.after_window",
        ] {
            if let Some(first) = rules.written_below(key).first() {
                rules
                    .warning(
                        codes::RULE_UNUSED,
                        &[first, "scheduler.dynamics"],
                        format!("`{first}` is not read: `scheduler.dynamics` is \"ode\""),
                    )
                    .help("remove it, or choose dynamics with noise");
            }
        }
        return;
    }
    let silent = candidates(&scheduler.window, scheduler.steps)
        .into_iter()
        .find(|step| scheduler.noise_level_at(*step) == Some(0.0));
    let Some(step) = silent else { return };
    let paths = [
        "scheduler.noise_level",
        "scheduler.window",
        "algorithm.kind",
        "algorithm",
    ];
    if is_coupled {
        let message = format!(
            "the window may choose step {step}, whose noise level is 0, and `algorithm.kind = \"{}\"` trains on \
             log-probabilities, which need noise",
            config.algorithm.kind
        );
        rules
            .error(codes::RULE_NO_LOG_PROBABILITY, &paths, message)
            .help("raise `scheduler.noise_level`, or leave the step out of `scheduler.window`");
    } else {
        let message = format!("the window may choose step {step} to be random, but its noise level is 0");
        rules
            .error(codes::RULE_NOISE_LEVEL, &paths[..2], message)
            .help(
                "raise `scheduler.noise_level`, leave the step out of `scheduler.window`, or set `scheduler.dynamics = \
                 \"ode\"`",
            );
    }
}

fn initial_noise(rules: &mut Rules<'_>) {
    let config = rules.config;
    if config.sampling.initial_noise == InitialNoise::PerGroup && config.scheduler.dynamics == Dynamics::Ode {
        rules
            .error(
                codes::RULE_INITIAL_NOISE,
                &["sampling.initial_noise", "scheduler.dynamics"],
                "`sampling.initial_noise = \"per_group\"` and `scheduler.dynamics = \"ode\"` make every image of a group \
                 the same",
            )
            .help("set `scheduler.dynamics` to \"flow-sde\", \"dance-sde\" or \"cps\", or remove `sampling.initial_noise`");
    }
}

fn shift(rules: &mut Rules<'_>) {
    if let Shift::Dynamic(shift) = &rules.config.scheduler.shift
        && shift.base_tokens >= shift.max_tokens
    {
        let message = format!(
            "`scheduler.shift.base_tokens` ({}) must be below `scheduler.shift.max_tokens` ({})",
            shift.base_tokens, shift.max_tokens
        );
        rules
            .error(
                codes::RULE_SHIFT,
                &["scheduler.shift.base_tokens", "scheduler.shift.max_tokens"],
                message,
            )
            .help("diffusers' values are 256 and 4096");
    }
}

fn geometry(rules: &mut Rules<'_>) {
    let sampling = &rules.config.sampling;
    let images = sampling.images_per_step();
    if sampling.group_size < 2 && rules.learns_from_rollouts() {
        rules
            .error(
                codes::RULE_GROUP_SIZE,
                &["sampling.group_size"],
                "`sampling.group_size` is 1: the advantage within a group of one is always 0",
            )
            .help("set it to at least 2; 8 to 24 is usual");
    }
    if !images.is_multiple_of(sampling.micro_batch) {
        let message = format!(
            "`sampling.prompts_per_step` ({}) * `sampling.group_size` ({}) = {images} images cannot be cut into \
             batches of `sampling.micro_batch` ({})",
            sampling.prompts_per_step, sampling.group_size, sampling.micro_batch
        );
        let lower = (1..=sampling.micro_batch.min(images))
            .rev()
            .find(|n| images.is_multiple_of(*n))
            .unwrap_or(1);
        rules
            .error(
                codes::RULE_BATCH_GEOMETRY,
                &[
                    "sampling.micro_batch",
                    "sampling.group_size",
                    "sampling.prompts_per_step",
                ],
                message,
            )
            .help(format!("the next lower batch that divides {images} is {lower}"));
        return;
    }
    let batches = sampling.micro_batches();
    let accumulation = rules.config.optimizer.gradient_accumulation;
    if accumulation != 0 && !batches.is_multiple_of(accumulation) {
        let message = format!(
            "a rollout is {batches} micro-batches, which is no multiple of `optimizer.gradient_accumulation` \
             ({accumulation})"
        );
        let fitting: Vec<String> = (1..=batches)
            .filter(|n| batches.is_multiple_of(*n))
            .map(|n| n.to_string())
            .take(12)
            .collect();
        rules
            .error(
                codes::RULE_ACCUMULATION,
                &[
                    "optimizer.gradient_accumulation",
                    "sampling.micro_batch",
                    "sampling.group_size",
                    "sampling.prompts_per_step",
                ],
                message,
            )
            .help(format!(
                "choose one of {}, or 0 for one optimizer step per rollout",
                fitting.join(", ")
            ));
    }
}
