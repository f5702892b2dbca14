//! Rules on the run, the device, the model, the data and the rewards.

use std::collections::BTreeMap;

use super::Rules;
use crate::catalog::{ImageFacts, PromptFacts};
use crate::codes;
use crate::sections::{
    Architecture, Conditioning, DeviceKind, Finetune, PositionEncoding, RateSchedule, TextConfig,
};

pub(super) fn check(rules: &mut Rules<'_>) {
    run_and_device(rules);
    home(rules);
    match rules.config.model.architecture {
        Architecture::Dit => dit(rules),
        Architecture::Mmdit => mmdit(rules),
        Architecture::Wan => wan(rules),
    }
    unused_tables(rules);
    adapter(rules);
    data(rules);
    rewards(rules);
    schedule(rules);
    pretrain(rules);
}

/// A shell expands `~` in words of its own, not in a config and not behind `=`.
fn home(rules: &mut Rules<'_>) {
    for (key, path) in rules.paths() {
        let text = path.to_string_lossy();
        if !text.starts_with('~') {
            continue;
        }
        let message = format!("`{key}` is `{text}`, and `~` is not expanded");
        let help = match text.strip_prefix("~/") {
            Some(below) => format!(
                "write the path out, such as \"/home/me/{below}\"; on a command line --set {key}=\"$HOME/{below}\""
            ),
            None => format!("write the path out; a file that is called so is \"./{text}\""),
        };
        rules.error(codes::RULE_HOME, &[&key], message).help(help);
    }
}

fn run_and_device(rules: &mut Rules<'_>) {
    let name = &rules.config.run.name;
    // As `flow-report`, which makes the directory, has it: names that every file system takes, and no command for an option.
    let refused = |letter: char| letter.is_control() || "/\\:*?\"<>|".contains(letter);
    if name.starts_with(['.', '-']) || name.contains(refused) || name.len() > 200 {
        let message = format!("`run.name` is `{name}`, which cannot be the name of a run's directory");
        rules
            .error(codes::RULE_RUN_NAME, &["run.name"], message)
            .help(
                "use a name that begins with neither `.` nor `-` and has no control character and none of / \\ : * ? \" < > | in its at most 200 bytes; \
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

fn dit(rules: &mut Rules<'_>) {
    let dit = &rules.config.model.dit;
    rules.divides(("model.dit.patch", dit.patch), ("model.dit.height", dit.height));
    rules.divides(("model.dit.patch", dit.patch), ("model.dit.width", dit.width));
    rules.divides(("model.dit.heads", dit.heads), ("model.dit.hidden", dit.hidden));
    let head_channels = dit.hidden / dit.heads.max(1);
    let (what, channels) = match dit.position {
        PositionEncoding::Sincos => ("`model.dit.hidden`", dit.hidden),
        PositionEncoding::Rope => ("`model.dit.hidden / model.dit.heads`", head_channels),
    };
    if channels % 4 != 0 {
        let message = format!("{what} ({channels}) must be a multiple of 4 for this position encoding");
        rules
            .error(
                codes::RULE_MODEL_SHAPE,
                &["model.dit.hidden", "model.dit.position", "model.dit.heads"],
                message,
            )
            .help("two axes take a sine and a cosine each; change `model.dit.hidden`");
    }
    moe(rules);
}

fn moe(rules: &mut Rules<'_>) {
    let moe = &rules.config.model.dit.moe;
    if moe.experts == 0 {
        let written = rules.written_below("model.dit.moe");
        let unread = written.iter().find(|key| !key.ends_with(".experts"));
        for first in unread
            .cloned()
            .into_iter()
            .chain(rules.written_below("pretrain.balance_weight"))
        {
            rules
                .warning(
                    codes::RULE_UNUSED,
                    &[&first, "model.dit.moe.experts"],
                    format!("`{first}` is not read: the model has no experts"),
                )
                .help("remove it, or set `model.dit.moe.experts`");
        }
    } else if moe.top_k > moe.experts {
        let (top_k, experts) = (moe.top_k, moe.experts);
        rules
            .error(
                codes::RULE_MODEL_SHAPE,
                &["model.dit.moe.top_k", "model.dit.moe.experts"],
                format!("a token gets {top_k} experts, but there are {experts}"),
            )
            .help(format!("set `model.dit.moe.top_k` to at most {experts}"));
    }
}

fn mmdit(rules: &mut Rules<'_>) {
    let mmdit = &rules.config.model.mmdit;
    rules.divides(
        ("model.mmdit.patch_size", mmdit.patch_size),
        ("model.mmdit.sample_size", mmdit.sample_size),
    );
    let width = mmdit.attention_head_dim * mmdit.num_attention_heads;
    if mmdit.caption_projection_dim != width {
        let message = format!(
            "`model.mmdit.caption_projection_dim` is {}, but the residual stream is {} * {} = {width} wide",
            mmdit.caption_projection_dim, mmdit.attention_head_dim, mmdit.num_attention_heads
        );
        rules
            .error(
                codes::RULE_MODEL_SHAPE,
                &[
                    "model.mmdit.caption_projection_dim",
                    "model.mmdit.num_attention_heads",
                    "model.mmdit.attention_head_dim",
                ],
                message,
            )
            .help(format!(
                "set it to {width}, or change the number or width of heads"
            ));
    }
    if mmdit.out_channels != mmdit.in_channels {
        let message = format!(
            "`model.mmdit.out_channels` is {}, but a velocity has the {} channels of the latent",
            mmdit.out_channels, mmdit.in_channels
        );
        rules
            .error(
                codes::RULE_MODEL_SHAPE,
                &["model.mmdit.out_channels", "model.mmdit.in_channels"],
                message,
            )
            .help(format!("set it to {}", mmdit.in_channels));
    }
    let patches = mmdit.sample_size / mmdit.patch_size.max(1);
    if patches > mmdit.pos_embed_max_size {
        let message = format!(
            "a side has {patches} patches, but the position table only {}",
            mmdit.pos_embed_max_size
        );
        rules
            .error(
                codes::RULE_MODEL_SHAPE,
                &[
                    "model.mmdit.sample_size",
                    "model.mmdit.pos_embed_max_size",
                    "model.mmdit.patch_size",
                ],
                message,
            )
            .help("lower `model.mmdit.sample_size`; the size of the table is the checkpoint's");
    }
    for (index, layer) in mmdit.dual_attention_layers.iter().enumerate() {
        if *layer >= mmdit.num_layers {
            let message = format!(
                "`model.mmdit.dual_attention_layers` names block {layer}, but blocks are 0 to {}",
                mmdit.num_layers - 1
            );
            let entry = format!("model.mmdit.dual_attention_layers.{index}");
            rules
                .error(
                    codes::RULE_MODEL_SHAPE,
                    &[&entry, "model.mmdit.num_layers"],
                    message,
                )
                .help("remove it, or raise `model.mmdit.num_layers`");
        }
    }
}

fn wan(rules: &mut Rules<'_>) {
    let wan = &rules.config.model.wan;
    let patch = ("model.wan.patch_size", wan.patch_size);
    for side in [
        ("model.wan.latent_height", wan.latent_height),
        ("model.wan.latent_width", wan.latent_width),
    ] {
        rules.divides(patch, side);
        let patches = side.1 / wan.patch_size.max(1);
        let positions = wan.rope_max_seq_len;
        if patches > positions {
            let message = format!(
                "`{}` has {patches} patches, but there are {positions} positions",
                side.0
            );
            let help = format!("set it to at most {}", positions * wan.patch_size);
            rules
                .error(
                    codes::RULE_MODEL_SHAPE,
                    &[side.0, patch.0, "model.wan.rope_max_seq_len"],
                    message,
                )
                .help(help);
        }
    }
}

/// The tables of architectures that are not in use, and of adapters where there are none.
fn unused_tables(rules: &mut Rules<'_>) {
    let used = match rules.config.model.architecture {
        Architecture::Dit => "dit",
        Architecture::Mmdit => "mmdit",
        Architecture::Wan => "wan",
    };
    for unused in ["dit", "mmdit", "wan"].into_iter().filter(|name| *name != used) {
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
    if used == "dit"
        && let Some(first) = rules.written_below("text").first()
    {
        rules
            .warning(
                codes::RULE_UNUSED,
                &[first, "model.architecture"],
                format!("`{first}` is not read: a `dit` reads tokens, not encoded text"),
            )
            .help("remove `[text]`, or set `model.architecture` to \"mmdit\" or \"wan\"");
    }
    if rules.config.model.finetune == Finetune::Full
        && let Some(first) = rules.written_below("lora").first()
    {
        rules
            .warning(
                codes::RULE_UNUSED,
                &[first, "model.finetune"],
                format!("`{first}` is not read: `model.finetune` is \"full\""),
            )
            .help("remove `[lora]`, or set `model.finetune = \"lora\"`");
    }
}

fn data(rules: &mut Rules<'_>) {
    let config = rules.config;
    rules.check_data();
    let facts = rules.data_facts().unwrap_or_default();
    if let Some(prompts) = facts.prompts {
        match config.model.architecture {
            Architecture::Dit => {}
            Architecture::Mmdit | Architecture::Wan => text(rules, prompts),
        }
    }
    if let Some(images) = facts.images {
        latent(rules, images);
    }
    if let (Architecture::Dit, Some(prompts)) = (config.model.architecture, facts.prompts) {
        conditioning(rules, prompts);
    }
}

/// Whether the model makes images of the data's size.
fn latent(rules: &mut Rules<'_>, images: ImageFacts) {
    let config = rules.config;
    let ImageFacts { size, channels } = images;
    match config.model.architecture {
        Architecture::Dit => {
            let dit = &config.model.dit;
            for (key, value, wanted, what) in [
                ("model.dit.height", dit.height, size, "pixels high"),
                ("model.dit.width", dit.width, size, "pixels wide"),
                (
                    "model.dit.latent_channels",
                    dit.latent_channels,
                    channels,
                    if channels == 1 {
                        "channel deep"
                    } else {
                        "channels deep"
                    },
                ),
            ] {
                if value != wanted {
                    let message =
                        format!("`{key}` is {value}, but the images of `[data]` are {wanted} {what}");
                    rules
                        .error(
                            codes::RULE_IMAGE_SHAPE,
                            &[key, "data.image_size", "data"],
                            message,
                        )
                        .help(format!("set `{key} = {wanted}`, or change `[data]`"));
                }
            }
        }
        Architecture::Mmdit => {
            let mmdit = &config.model.mmdit;
            if mmdit.in_channels != channels || mmdit.sample_size != size {
                let message = format!(
                    "the model's latents are {0} by {0} with {1} channels, the images of `[data]` {size} by {size} \
                     with {channels}",
                    mmdit.sample_size, mmdit.in_channels
                );
                let keys = ["model.mmdit.sample_size", "model.mmdit.in_channels", "data"];
                no_autoencoder(rules, &keys, message);
            }
        }
        Architecture::Wan => {
            let wan = &config.model.wan;
            let sides = (wan.latent_frames, wan.latent_height, wan.latent_width);
            if wan.in_channels != channels || sides != (1, size, size) {
                let message = format!(
                    "the model's latents are {} frames of {} by {} with {} channels, the images of `[data]` {size} by \
                     {size} with {channels}",
                    sides.0, sides.1, sides.2, wan.in_channels
                );
                let keys = [
                    "model.wan.latent_frames",
                    "model.wan.latent_height",
                    "model.wan.latent_width",
                    "model.wan.in_channels",
                    "data",
                ];
                no_autoencoder(rules, &keys, message);
            }
        }
    }
}

fn no_autoencoder(rules: &mut Rules<'_>, keys: &[&str], message: String) {
    rules
        .warning(codes::RULE_IMAGE_SHAPE, keys, message)
        .help(
            "there is no autoencoder, so neither `train` nor `pretrain` takes such latents; the shape is good for `check`, `plan` \
             and benchmarks",
        );
}

fn conditioning(rules: &mut Rules<'_>, prompts: PromptFacts) {
    let (words, length) = (prompts.vocabulary, prompts.length);
    let place = "model.dit.conditioning";
    match &rules.config.model.dit.conditioning {
        Conditioning::Class(_) => {
            let message = format!(
                "the prompts of `[data]` are {length} tokens long, but the model is conditioned on a class"
            );
            rules
                .error(
                    codes::RULE_CONDITIONING,
                    &[&format!("{place}.kind"), place, "data.kind"],
                    message,
                )
                .help(format!(
                    "write `kind = \"tokens\", vocabulary = {words}, max_tokens = {length}`"
                ));
        }
        Conditioning::Tokens(tokens) => {
            if tokens.vocabulary < words {
                let message = format!(
                    "the model knows {} tokens, but the prompts of `[data]` use {words}",
                    tokens.vocabulary
                );
                rules
                    .error(
                        codes::RULE_CONDITIONING,
                        &[&format!("{place}.vocabulary"), place, "data.kind"],
                        message,
                    )
                    .help(format!("set `{place}.vocabulary = {words}`"));
            }
            if tokens.max_tokens != length {
                let message = format!(
                    "the model takes {} tokens, but the prompts of `[data]` are {length} long",
                    tokens.max_tokens
                );
                rules
                    .error(
                        codes::RULE_CONDITIONING,
                        &[&format!("{place}.max_tokens"), place, "data.kind"],
                        message,
                    )
                    .help(format!("set `{place}.max_tokens = {length}`"));
            }
        }
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
