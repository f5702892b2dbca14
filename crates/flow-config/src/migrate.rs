//! Migrations: older config files brought up to date, comments and order kept.
//!
//! Version 0 is what files look like that were written with the names of flow_grpo's `config/base.py` (flat keys and
//! the tables `sample`, `train` and `pretrained`). It has no `config_version`, or `config_version = 0`.

use toml_edit::{Array, DocumentMut, Item, Key, RawString, Table, TableLike, value};

use crate::codes;
use crate::diagnostic::{Diagnostic, Layer, Report, SourceText};
use crate::sections::CONFIG_VERSION;
use crate::tree::{Node, Segment};

/// One change that a migration made, or could not make.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Change {
    /// The dotted key before; empty for what is added.
    pub from: String,
    /// The dotted key after; empty for what is left as it was.
    pub to: String,
    /// What was done, in words.
    pub note: String,
    /// Whether somebody has to look at it: the key has no counterpart, or its value could not be translated.
    pub needs_attention: bool,
}

/// What becomes of a value on its way to its new key.
#[derive(Clone, Copy)]
enum Rewrite {
    Keep,
    /// `c` to `[-c, c]`.
    Symmetric,
    /// true to "lora", false to "full".
    Finetune,
    /// "no", "fp32" to "f32"; "bf16" stays.
    Precision,
    /// "Flow-SDE" to "flow-sde", and the other names of Flow-Factory and flow_grpo.
    Dynamics,
    /// A factor above 0 chooses the KL term that flow_grpo has.
    KlBeta,
}

/// Version 0's keys and their place in version 1.
const RENAMES: &[(&str, &str, Rewrite)] = &[
    ("run_name", "run.name", Rewrite::Keep),
    ("seed", "run.seed", Rewrite::Keep),
    ("save_dir", "run.dir", Rewrite::Keep),
    ("num_epochs", "run.steps", Rewrite::Keep),
    ("eval_freq", "evaluation.every", Rewrite::Keep),
    ("save_freq", "checkpoints.every", Rewrite::Keep),
    ("num_checkpoint_limit", "checkpoints.keep", Rewrite::Keep),
    ("use_lora", "model.finetune", Rewrite::Finetune),
    ("mixed_precision", "device.dtype", Rewrite::Precision),
    ("pretrained.model", "model.weights", Rewrite::Keep),
    ("sample.num_steps", "scheduler.steps", Rewrite::Keep),
    ("sample.eval_num_steps", "evaluation.steps", Rewrite::Keep),
    ("sample.noise_level", "scheduler.noise_level", Rewrite::Keep),
    ("sample.sde_type", "scheduler.dynamics", Rewrite::Dynamics),
    ("sample.guidance_scale", "sampling.guidance_scale", Rewrite::Keep),
    (
        "sample.num_image_per_prompt",
        "sampling.group_size",
        Rewrite::Keep,
    ),
    ("sample.train_batch_size", "sampling.micro_batch", Rewrite::Keep),
    ("sample.global_std", "advantage.global_std", Rewrite::Keep),
    ("train.learning_rate", "optimizer.learning_rate", Rewrite::Keep),
    ("train.adam_weight_decay", "optimizer.weight_decay", Rewrite::Keep),
    ("train.adam_epsilon", "optimizer.epsilon", Rewrite::Keep),
    ("train.max_grad_norm", "optimizer.max_grad_norm", Rewrite::Keep),
    (
        "train.gradient_accumulation_steps",
        "optimizer.gradient_accumulation",
        Rewrite::Keep,
    ),
    ("train.num_inner_epochs", "algorithm.inner_epochs", Rewrite::Keep),
    ("train.adv_clip_max", "algorithm.advantage_clip", Rewrite::Keep),
    ("train.clip_range", "algorithm.clip_range", Rewrite::Symmetric),
    ("train.beta", "algorithm.kl.beta", Rewrite::KlBeta),
    ("train.ema", "ema.enabled", Rewrite::Keep),
];

/// Version 0's two keys that become one list.
const BETAS: [&str; 2] = ["train.adam_beta1", "train.adam_beta2"];
const DEFAULT_BETAS: [f64; 2] = [0.9, 0.999];

/// The tables that only version 0 has.
const OLD_TABLES: [&str; 3] = ["sample", "train", "pretrained"];

/// Whether a file without `config_version` was written for version 0.
pub(crate) fn looks_like_version_0(file: &Node) -> bool {
    let old = RENAMES.iter().map(|(from, ..)| *from).chain(BETAS);
    old.into_iter().any(|from| {
        let path: Vec<Segment> = from
            .split('.')
            .map(|part| Segment::Key(part.to_owned()))
            .collect();
        file.lookup(&path).is_some()
    })
}

/// Brings a config file of any older version up to date. Comments, order and formatting are kept as far as keys stay
/// where they are; a key that moves takes its comments along. A file that is up to date comes back as it was, with no
/// changes.
///
/// # Errors
/// The text is not TOML, or is of a version that this build does not know.
pub fn migrate(text: &str) -> Result<(String, Vec<Change>), Report> {
    let sources = || {
        vec![SourceText {
            name: "<config>".into(),
            layer: Layer::File,
            text: text.to_owned(),
        }]
    };
    let mut document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
        let span = error.span().unwrap_or(text.len()..text.len());
        let message = format!("this is not TOML: {}", error.message());
        Report::new(
            vec![Diagnostic::error(codes::SYNTAX, message).at(0, span)],
            sources(),
        )
    })?;
    let version = match document.get("config_version") {
        None => 0,
        Some(item) => match item.as_integer() {
            Some(version) if (0..=i64::from(CONFIG_VERSION)).contains(&version) => version,
            _ => {
                let written = item.to_string().trim().to_owned();
                let message = format!("there is no config version {written}; the newest is {CONFIG_VERSION}");
                let diagnostic = Diagnostic::error(codes::CONFIG_VERSION, message)
                    .path("config_version")
                    .help("a file of a newer version needs a newer flow-train");
                return Err(Report::new(vec![diagnostic], sources()));
            }
        },
    };
    let mut changes = Vec::new();
    if version < 1 {
        zero_to_one(&mut document, &mut changes);
    }
    Ok(if changes.is_empty() {
        (text.to_owned(), changes)
    } else {
        (document.to_string(), changes)
    })
}

fn zero_to_one(document: &mut DocumentMut, changes: &mut Vec<Change>) {
    // The comment above the first key is the file's, and stays at its head.
    let head = take_head_comment(document);
    document.remove("config_version");
    let mut algorithm = false;
    for (from, to, rewrite) in RENAMES {
        let Some(item) = get(document, from) else { continue };
        let translated = match translate(item, *rewrite) {
            Ok(translated) => translated,
            Err(why) => {
                changes.push(Change {
                    from: (*from).into(),
                    to: String::new(),
                    note: why,
                    needs_attention: true,
                });
                continue;
            }
        };
        if get(document, to).is_some() {
            let note = format!("left as it is, since `{to}` is there already");
            changes.push(Change {
                from: (*from).into(),
                to: String::new(),
                note,
                needs_attention: true,
            });
            continue;
        }
        let note = match &translated {
            Some(new) => format!("renamed, and written as {}", new.to_string().trim()),
            None => "renamed".into(),
        };
        if move_item(document, from, to, translated) {
            algorithm |= to.starts_with("algorithm.");
            changes.push(Change {
                from: (*from).into(),
                to: (*to).into(),
                note,
                needs_attention: false,
            });
        }
    }
    merge_betas(document, changes);
    if algorithm && get(document, "algorithm.kind").is_none() {
        set_first(document, "algorithm", "kind", "grpo");
        changes.push(added("algorithm.kind", "flow_grpo's algorithm is GRPO"));
    }
    if get(document, "algorithm.kl.beta").is_some_and(is_positive)
        && get(document, "algorithm.kl.kind").is_none()
    {
        set_first(document, "algorithm.kl", "kind", "mean");
        changes.push(Change {
            needs_attention: true,
            ..added(
                "algorithm.kl.kind",
                "flow_grpo compares the means of a step, divided by twice the variance of its noise; here they are not divided, so \
                 `algorithm.kl.beta` means another strength",
            )
        });
    }
    if algorithm && get(document, "advantage.aggregation").is_none() {
        set_first(document, "advantage", "aggregation", "sum");
        changes.push(added(
            "advantage.aggregation",
            "flow_grpo adds up the rewards before it normalises them",
        ));
    }
    for table in OLD_TABLES {
        drop_if_empty(document, table);
        for key in document
            .get(table)
            .and_then(Item::as_table_like)
            .into_iter()
            .flat_map(|t| t.iter())
        {
            let from = format!("{table}.{}", key.0);
            if !changes.iter().any(|change| change.from == from) {
                let note = "left as it is: version 1 has no such key".into();
                changes.push(Change {
                    from,
                    to: String::new(),
                    note,
                    needs_attention: true,
                });
            }
        }
    }
    let mut version = value(i64::from(CONFIG_VERSION));
    if let Some(value) = version.as_value_mut() {
        value.decor_mut().set_prefix(" ");
    }
    let mut key = Key::new("config_version");
    key.leaf_decor_mut().set_prefix(head);
    insert_at_top(document.as_table_mut(), key, version);
    changes.insert(0, added("config_version", "files say which version they are"));
}

fn added(to: &str, note: &str) -> Change {
    Change {
        from: String::new(),
        to: to.into(),
        note: format!("added: {note}"),
        needs_attention: false,
    }
}

fn is_positive(item: &Item) -> bool {
    item.as_float()
        .or(item.as_integer().map(|integer| integer as f64))
        .is_some_and(|value| value > 0.0)
}

/// The new value, `None` to keep the old one.
fn translate(item: &Item, rewrite: Rewrite) -> Result<Option<Item>, String> {
    let written = || item.to_string().trim().to_owned();
    let number = || {
        item.as_float()
            .or(item.as_integer().map(|integer| integer as f64))
    };
    Ok(match rewrite {
        Rewrite::Keep | Rewrite::KlBeta => None,
        Rewrite::Symmetric => {
            let bound = number()
                .ok_or_else(|| format!("`{}` is not a number", written()))?
                .abs();
            Some(value(Array::from_iter([-bound, bound])))
        }
        Rewrite::Finetune => match item.as_bool() {
            Some(true) => Some(value("lora")),
            Some(false) => Some(value("full")),
            None => return Err(format!("`{}` is neither true nor false", written())),
        },
        Rewrite::Precision => match item.as_str() {
            Some("no" | "fp32" | "float32") => Some(value("f32")),
            Some("bf16" | "bfloat16") => Some(value("bf16")),
            _ => {
                return Err(format!(
                    "`{}` has no counterpart: there is \"f32\" and \"bf16\"",
                    written()
                ));
            }
        },
        Rewrite::Dynamics => match item.as_str().map(str::to_ascii_lowercase).as_deref() {
            Some("sde" | "flow-sde") => Some(value("flow-sde")),
            Some("dance-sde" | "dance") => Some(value("dance-sde")),
            Some("cps") => Some(value("cps")),
            Some("ode") => Some(value("ode")),
            _ => return Err(format!("`{}` is none of the dynamics there are", written())),
        },
    })
}

fn merge_betas(document: &mut DocumentMut, changes: &mut Vec<Change>) {
    let number = |document: &DocumentMut, key: &str| {
        let item = get(document, key)?;
        item.as_float()
            .or(item.as_integer().map(|integer| integer as f64))
    };
    let given = BETAS.map(|key| number(document, key));
    if given == [None, None] || get(document, "optimizer.betas").is_some() {
        return;
    }
    let betas = [
        given[0].unwrap_or(DEFAULT_BETAS[0]),
        given[1].unwrap_or(DEFAULT_BETAS[1]),
    ];
    let mut moved = false;
    for (key, given) in BETAS.into_iter().zip(given) {
        if given.is_none() {
            continue;
        }
        if moved {
            // The second key's comments go above the list that the first one became.
            if let Some((key, item)) = remove(document, key) {
                let comments = comments_of(&key, &item);
                prepend_comments(document, "optimizer.betas", &comments);
            }
        } else {
            moved = move_item(
                document,
                key,
                "optimizer.betas",
                Some(value(Array::from_iter(betas))),
            );
        }
        changes.push(Change {
            from: key.into(),
            to: "optimizer.betas".into(),
            note: format!("joined to the list [{}, {}]", betas[0], betas[1]),
            needs_attention: false,
        });
    }
}

fn get<'d>(document: &'d DocumentMut, path: &str) -> Option<&'d Item> {
    path.split('.')
        .try_fold(document.as_item(), |item, key| item.as_table_like()?.get(key))
}

fn table_mut<'d>(document: &'d mut DocumentMut, path: &str) -> Option<&'d mut dyn TableLike> {
    let parts = path.split('.').filter(|part| !part.is_empty());
    parts
        .into_iter()
        .try_fold(document.as_item_mut(), |item, key| {
            item.as_table_like_mut()?.get_mut(key)
        })?
        .as_table_like_mut()
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('.').unwrap_or(("", path))
}

fn remove(document: &mut DocumentMut, path: &str) -> Option<(Key, Item)> {
    let (section, name) = split(path);
    let table = table_mut(document, section)?;
    let key = table.key(name)?.clone();
    let item = table.remove(name)?;
    Some((key, item))
}

/// The comment lines of a key and its value: those above it, and the one behind it.
fn comments_of(key: &Key, item: &Item) -> String {
    let decor = [
        key.leaf_decor().prefix(),
        key.leaf_decor().suffix(),
        item.as_value().and_then(|value| value.decor().suffix()),
    ];
    comment_lines(decor.into_iter().flatten().filter_map(RawString::as_str))
}

fn comment_lines<'t>(texts: impl IntoIterator<Item = &'t str>) -> String {
    let lines = texts
        .into_iter()
        .flat_map(str::lines)
        .map(str::trim)
        .filter(|line| line.starts_with('#'));
    lines.map(|line| format!("{line}\n")).collect()
}

/// Moves a value to another key, with its comments. `false` if it cannot be put there.
fn move_item(document: &mut DocumentMut, from: &str, to: &str, new_value: Option<Item>) -> bool {
    let (section, name) = split(to);
    if !make_tables(document, section) {
        return false;
    }
    let Some((old_key, old_item)) = remove(document, from) else {
        return false;
    };
    let above = comment_lines(old_key.leaf_decor().prefix().and_then(RawString::as_str));
    let behind = old_item
        .as_value()
        .and_then(|v| v.decor().suffix())
        .and_then(RawString::as_str)
        .unwrap_or("");
    let behind = if behind.contains('#') {
        format!(" {}", behind.trim())
    } else {
        String::new()
    };
    let mut item = new_value.unwrap_or(old_item);
    if let Some(value) = item.as_value_mut() {
        value.decor_mut().set_prefix(" ");
        value.decor_mut().set_suffix(behind);
    }
    let Some(table) = table_mut(document, section) else {
        return false;
    };
    table.insert(name, item);
    if let Some(mut key) = table.key_mut(name) {
        key.leaf_decor_mut().set_prefix(above);
        key.leaf_decor_mut().set_suffix(" ");
    }
    // A table that only holds what was moved out of is removed; its own comments stay with the value.
    let (old_section, _) = split(from);
    if !old_section.is_empty()
        && let Some(comments) = drop_if_empty(document, old_section)
    {
        prepend_comments(document, to, &comments);
    }
    true
}

/// Makes the tables of a dotted path as far as they are missing.
fn make_tables(document: &mut DocumentMut, path: &str) -> bool {
    let mut table: &mut dyn TableLike = document.as_table_mut();
    for part in path.split('.').filter(|part| !part.is_empty()) {
        if !table.contains_key(part) {
            let mut new = Table::new();
            new.set_implicit(true);
            new.decor_mut().set_prefix("\n");
            table.insert(part, Item::Table(new));
        }
        match table.get_mut(part).and_then(Item::as_table_like_mut) {
            Some(next) => table = next,
            None => return false,
        }
    }
    true
}

/// Removes a table that has nothing in it, and returns the comments of its header.
fn drop_if_empty(document: &mut DocumentMut, path: &str) -> Option<String> {
    if !get(document, path)?.as_table_like()?.is_empty() {
        return None;
    }
    let (_, item) = remove(document, path)?;
    let decor = item
        .as_table()
        .map(|table| [table.decor().prefix(), table.decor().suffix()]);
    Some(comment_lines(
        decor
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(RawString::as_str),
    ))
}

fn prepend_comments(document: &mut DocumentMut, path: &str, comments: &str) {
    let (section, name) = split(path);
    if comments.is_empty() {
        return;
    }
    if let Some(mut key) = table_mut(document, section).and_then(|table| table.key_mut(name)) {
        let below = key
            .leaf_decor()
            .prefix()
            .and_then(RawString::as_str)
            .unwrap_or("")
            .to_owned();
        key.leaf_decor_mut().set_prefix(format!("{comments}{below}"));
    }
}

/// Adds a key before the others of its table.
fn set_first(document: &mut DocumentMut, section: &str, name: &str, text: &str) {
    let item = get(document, section).map(Item::is_table);
    if item != Some(true) {
        if let Some(table) = table_mut(document, section) {
            table.insert(name, value(text));
        }
        return;
    }
    let Some(table) = section
        .split('.')
        .try_fold(document.as_item_mut(), |item, key| {
            item.as_table_like_mut()?.get_mut(key)
        })
        .and_then(Item::as_table_mut)
    else {
        return;
    };
    insert_at_top(table, Key::new(name), value(text));
}

fn insert_at_top(table: &mut Table, key: Key, item: Item) {
    let names: Vec<String> = table.iter().map(|(name, _)| name.to_owned()).collect();
    let rest: Vec<(Key, Item)> = names.iter().filter_map(|name| table.remove_entry(name)).collect();
    table.insert_formatted(&key, item);
    for (key, item) in rest {
        table.insert_formatted(&key, item);
    }
}

/// Takes the comment block at the head of the file off its first key or table.
fn take_head_comment(document: &mut DocumentMut) -> String {
    let Some(name) = document.iter().next().map(|(name, _)| name.to_owned()) else {
        return String::new();
    };
    // Only a block that a blank line separates from what follows speaks of the file and not of its first key.
    let cut = |prefix: &str| {
        prefix
            .rfind("\n\n")
            .map(|end| prefix.split_at(end + 2))
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
    };
    let first = document.get_mut(&name);
    if let Some(table) = first.and_then(Item::as_table_mut) {
        let prefix = table
            .decor()
            .prefix()
            .and_then(RawString::as_str)
            .unwrap_or("")
            .to_owned();
        if let Some((head, rest)) = cut(&prefix) {
            table.decor_mut().set_prefix(format!("\n{rest}"));
            return head;
        }
    } else if let Some(mut key) = document.key_mut(&name) {
        let prefix = key
            .leaf_decor()
            .prefix()
            .and_then(RawString::as_str)
            .unwrap_or("")
            .to_owned();
        if let Some((head, rest)) = cut(&prefix) {
            key.leaf_decor_mut().set_prefix(rest);
            return head;
        }
    }
    String::new()
}
