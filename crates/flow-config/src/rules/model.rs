//! Rules on the run, the device, the model, the data and the rewards.

use std::collections::BTreeMap;

use super::Rules;
use crate::catalog::PromptFacts;
use crate::codes;
use crate::sections::{DeviceKind, Finetune, RateSchedule, TextConfig};
use crate::shell::unexpanded;

pub(super) fn check(rules: &mut Rules<'_>) {
    run_and_device(rules);
    home(rules);
    rules.check_model();
    unused_tables(rules);
    adapter(rules);
    folder(rules);
    data(rules);
    rewards(rules);
    schedule(rules);
    pretrain(rules);
}

/// A shell expands `~` in words of its own, and `$HOME` outside single quotes; in a config nobody does.
fn home(rules: &mut Rules<'_>) {
    for (key, path) in rules.paths() {
        let text = path.to_string_lossy();
        let Some(part) = unexpanded(&text) else {
            continue;
        };
        let message = format!("`{key}` is `{text}`, and `{part}` is not expanded");
        let help = match text.strip_prefix("~/") {
            Some(below) => format!(
                "write the path out, such as \"/home/me/{below}\"; on a command line --set {key}=\"$HOME/{below}\""
            ),
            None if part == "~" => format!("write the path out; a file that is called so is \"./{text}\""),
            None => format!(
                "write the path out; a shell expands `{part}` on a command line, outside single quotes: --set {key}=\"{text}\""
            ),
        };
        rules.error(codes::RULE_HOME, &[&key], message).help(help);
    }
}

fn run_and_device(rules: &mut Rules<'_>) {
    let name = &rules.config.run.name;
    // As `flow-report`, which makes the directory, has it: names that every file system takes, and no command for an option.
    let refused = |letter: char| letter.is_control() || "/\\:*?\"<>|".contains(letter);
    if name.starts_with(['.', '-', '~']) || name.contains(refused) || name.len() > 200 {
        let message = format!("`run.name` is `{name}`, which cannot be the name of a run's directory");
        rules
            .error(codes::RULE_RUN_NAME, &["run.name"], message)
            .help(
                "use a name that begins with none of `.` `-` `~` and has no control character and none of / \\ : * ? \" < > | in its at most 200 bytes; \
                 `run.dir` says where the run goes",
            );
    }
    let device = &rules.config.device;
    if device.kind == DeviceKind::Cpu && device.index != 0 {
        let message = format!("`device.index` is {}, but there is one CPU device", device.index);
        rules
            .error(
                codes::RULE_DEVICE_INDEX,
                &["device.index", "device.kind"],
                message,
            )
            .help("remove `device.index`, or set `device.kind = \"cuda\"`");
    }
}

fn adapter(rules: &mut Rules<'_>) {
    let model = &rules.config.model;
    // Where nobody says what is trained, the adapter does.
    if model.adapter.is_some() && model.finetune != Finetune::Lora && rules.is_written("model.finetune") {
        rules
            .error(
                codes::RULE_ADAPTER,
                &["model.adapter", "model.finetune"],
                "`model.adapter` names adapters to begin from, but `model.finetune` is \"full\"",
            )
            .help("set `model.finetune = \"lora\"`, or merge the adapter into the weights and name those in `model.weights`");
    }
}

/// What is of use with a diffusers folder alone.
fn folder(rules: &mut Rules<'_>) {
    if rules.config.model.path.is_some() {
        if rules.config.model.autoencoder.is_some() {
            rules
                .warning(
                    codes::RULE_UNUSED,
                    &["model.autoencoder", "model.path"],
                    "`model.autoencoder` is not read: the diffusers folder has its own",
                )
                .help("remove it; for another autoencoder put it into the folder, as `vae`");
        }
        return;
    }
    for key in ["model.variant", "model.width", "model.height", "model.frames"] {
        if rules.is_written(key) {
            rules
                .warning(
                    codes::RULE_UNUSED,
                    &[key, "model.path"],
                    format!("`{key}` is not read: no diffusers folder is named"),
                )
                .help("set `model.path`, or remove it; other models have their sizes in the table of their architecture");
        }
    }
    if let TextConfig::Encoders(_) = rules.config.text {
        rules
            .error(
                codes::RULE_CONDITIONING,
                &["text.kind", "model.path"],
                "the text encoders of a diffusers folder are to read the prompts, and no folder is named",
            )
            .help("set `model.path` to the folder, or `text.kind` to \"bert\", \"words\" or \"file\"");
    }
}

/// The tables of architectures that are not in use, and of adapters where there are none.
fn unused_tables(rules: &mut Rules<'_>) {
    let used = rules.config.model.architecture.clone();
    let Some(catalog) = rules.catalog else { return };
    for unused in catalog.models().names().filter(|name| *name != used) {
        let written = rules.written_below(&format!("model.{unused}"));
        let Some(first) = written.first() else {
            continue;
        };
        let message = format!("`{first}` is not read: the architecture is `{used}`");
        rules
            .error(
                codes::RULE_OTHER_ARCHITECTURE,
                &[first, "model.architecture"],
                message,
            )
            .help(format!(
                "remove `[model.{unused}]`, or set `model.architecture = \"{unused}\"`"
            ));
    }
    let reads_text = catalog.model(rules.config).is_none_or(|kind| kind.reads_text);
    if !reads_text && let Some(first) = rules.written_below("text").first() {
        let readers = catalog.models().iter().filter(|(_, kind)| kind.reads_text);
        let readers = readers.map(|(name, _)| format!("\"{name}\""));
        rules
            .warning(
                codes::RULE_UNUSED,
                &[first, "model.architecture"],
                format!("`{first}` is not read: a `{used}` reads tokens, not encoded text"),
            )
            .help(format!(
                "remove `[text]`, or set `model.architecture` to {}",
                crate::phrase::join(readers)
            ));
    }
    if rules.config.model.finetune == Finetune::Full
        && let Some(first) = lora(rules)
    {
        rules
            .warning(
                codes::RULE_UNUSED,
                &[&first, "model.finetune"],
                format!("`{first}` is not read: `model.finetune` is \"full\""),
            )
            .help("remove `[lora]`, or set `model.finetune = \"lora\"`");
    }
}

/// The first key of `[lora]` that somebody wrote: one that differs from its default, or, where nobody wrote what is trained, any
/// one, for who writes it takes the run for one of adapters.
fn lora(rules: &Rules<'_>) -> Option<String> {
    let differs = rules.written_below("lora").into_iter().next();
    let model = &rules.config.model;
    if differs.is_some() || model.adapter.is_some() || rules.is_written("model.finetune") {
        return differs;
    }
    let keys = [
        "lora.rank",
        "lora.alpha",
        "lora.targets",
        "lora.seed",
        "lora.export",
    ];
    let written = keys.into_iter().find(|key| rules.is_written(key));
    written.map(str::to_owned)
}

fn data(rules: &mut Rules<'_>) {
    rules.check_data();
    let reads_text = rules
        .catalog
        .and_then(|catalog| catalog.model(rules.config))
        .is_some_and(|kind| kind.reads_text);
    let prompts = rules.data_facts().and_then(|facts| facts.prompts);
    if let (true, Some(prompts)) = (reads_text, prompts) {
        text(rules, prompts);
    }
}

/// Whether the prompts fit into the encoded text.
fn text(rules: &mut Rules<'_>, prompts: PromptFacts) {
    let length = prompts.length;
    let TextConfig::Words(words) = &rules.config.text else {
        return;
    };
    if words.tokens < length {
        let message = format!(
            "the text has {} tokens, but the prompts of `[data]` are {length} long",
            words.tokens
        );
        rules
            .error(codes::RULE_CONDITIONING, &["text.tokens", "data.kind"], message)
            .help(format!("set `text.tokens = {length}` or more"));
    }
}

/// What stands beside the names of rewards in the keys of metrics.
const RESERVED_NAMES: [&str; 3] = ["std", "group_std", "zero_std_groups"];
/// What follows a reward's name in the keys of its own metrics.
const PARTS: [&str; 3] = ["/std", "/low", "/high"];

fn rewards(rules: &mut Rules<'_>) {
    let config = rules.config;
    for (list, rewards) in config.reward_lists() {
        let mut seen = BTreeMap::new();
        for (index, reward) in rewards.iter().enumerate() {
            let entry = format!("{list}.{index}");
            rules.check_reward(reward, &entry);
            let refuse_name = |rules: &mut Rules<'_>, message: String, help: &str| {
                let keys = [&*format!("{entry}.name"), &*format!("{entry}.kind"), list];
                rules.error(codes::RULE_REWARD_NAME, &keys, message).help(help);
            };
            let of_another = PARTS.iter().any(|part| {
                let other = reward.name().strip_suffix(part);
                other.is_some_and(|other| rewards.iter().any(|reward| reward.name() == other))
            });
            if of_another || RESERVED_NAMES.contains(&reward.name()) {
                let message = format!(
                    "`{list}` has a reward called `{0}`, and `reward/{0}` is the key of another metric",
                    reward.name()
                );
                refuse_name(rules, message, "give it another `name`");
            }
            if let Some(first) = seen.insert(reward.name(), index) {
                let message = format!(
                    "`{list}` has two rewards called `{}`: entries {first} and {index}",
                    reward.name()
                );
                refuse_name(rules, message, "give one of them another `name`");
            }
        }
    }
}

/// Whether the learning rate falls after it has risen.
fn schedule(rules: &mut Rules<'_>) {
    let optimizer = &rules.config.optimizer;
    let (RateSchedule::Linear(falling) | RateSchedule::Cosine(falling)) = &optimizer.schedule else {
        return;
    };
    if falling.steps <= optimizer.warmup_steps {
        let message = format!(
            "the learning rate is to be at its end after {} steps, and rises for {}",
            falling.steps, optimizer.warmup_steps
        );
        rules
            .error(
                codes::RULE_WARMUP,
                &["optimizer.schedule.steps", "optimizer.warmup_steps"],
                message,
            )
            .help("raise `optimizer.schedule.steps`, or lower `optimizer.warmup_steps`");
        return;
    }
    let Some(an_iteration) = optimizer_steps(rules) else {
        return;
    };
    let (iterations, all) = (
        rules.config.run.steps,
        rules.config.run.steps.saturating_mul(an_iteration),
    );
    if falling.to == 0.0 && falling.steps < all {
        let message = format!(
            "the learning rate is 0 from optimizer step {} on, in iteration {} of {iterations}: an iteration has {an_iteration}",
            falling.steps + 1,
            falling.steps / an_iteration + 1
        );
        rules
            .warning(
                codes::RULE_SCHEDULE_END,
                &[
                    "optimizer.schedule.steps",
                    "run.steps",
                    "optimizer.gradient_accumulation",
                    "sampling.micro_batch",
                ],
                message,
            )
            .help(format!(
                "set `optimizer.schedule.steps` to {all}, or `optimizer.schedule.to` above 0"
            ));
    }
}

/// Optimizer steps of an iteration; `None` if the numbers they follow from do not fit, which other rules report.
fn optimizer_steps(rules: &Rules<'_>) -> Option<usize> {
    let config = rules.config;
    let batches = (config.sampling.micro_batch > 0).then(|| config.sampling.micro_batches())?;
    let a_pass = match config.optimizer.gradient_accumulation {
        0 => 1,
        accumulated => batches / accumulated,
    };
    a_pass
        .checked_mul(rules.algorithm_facts()?.inner_epochs)
        .filter(|steps| *steps > 0)
}

fn pretrain(rules: &mut Rules<'_>) {
    let pretrain = &rules.config.pretrain;
    if pretrain.warmup > pretrain.steps {
        let message = format!(
            "`pretrain.warmup` is {}, but there are only {} steps",
            pretrain.warmup, pretrain.steps
        );
        rules
            .error(
                codes::RULE_WARMUP,
                &["pretrain.warmup", "pretrain.steps"],
                message,
            )
            .help(format!("set it to at most {}", pretrain.steps));
    }
}
