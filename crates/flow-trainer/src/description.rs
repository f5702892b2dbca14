//! What a run is: its whole config, and the contents of the files that the config names.
//!
//! Names and shapes of weights do not say what a model computes: the number of heads, a kind of position or an adapter's scale
//! show in no shape. So a checkpoint carries the whole description, and a run that goes on is compared with it key by key.
//! [`rules`] says of each key whether it may change.

mod contents;
pub mod rules;

use crate::error::TrainError;
use crate::setup::PipelineFolders;
use flow_config::{Catalog, Config, Finetune};
use flow_data::Dataset;
use flow_report::{ContentHash, ManifestFound, Traces, flatten};
use rules::Rule;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Keys that name a file whose contents count, not its name. A list's place is written `[]`.
const FILES: [&str; 21] = [
    "data.path",
    "data.test_path",
    "model.path",
    "model.autoencoder",
    "model.weights",
    "model.adapter",
    "algorithm.teachers[].adapter",
    "algorithm.teachers[].weights",
    "text.path",
    "rewards[].weights",
    "eval_rewards[].weights",
    "rewards[].path",
    "eval_rewards[].path",
    "rewards[].tokenizer",
    "eval_rewards[].tokenizer",
    "rewards[].head",
    "eval_rewards[].head",
    "rewards[].detector",
    "eval_rewards[].detector",
    "rewards[].dictionary",
    "eval_rewards[].dictionary",
];

/// Files of which a data set makes its prompts, and where the prompts stand among the contents, whatever file they are of.
const OF_PROMPTS: [&str; 2] = ["data.path", "data.test_path"];
const PROMPTS: &str = "data/prompts";

/// Where the records that a run learns from instead of rollouts stand among the contents.
const RECORDS: &str = "data/records";

/// A run's config and the contents of its files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// The config with every default filled in.
    pub config: Value,
    /// BLAKE3 of files (of a folder: of its `.safetensors`; of a reward's network: of its configs and vocabularies, too; of a diffusers
    /// folder: of its tokenizers, text encoders and autoencoder), by the key that names them, and of more that belongs to them, by the
    /// key and a name behind a slash: `model.path/vae/config.json`; of the data set: of its prompts. None where nobody looked.
    pub contents: Option<BTreeMap<String, ContentHash>>,
}

/// A key in which two descriptions differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Dotted key, `rewards[0].mode`.
    pub key: String,
    /// Its value when the checkpoint was saved; null if there was none.
    pub before: Value,
    /// Its value now.
    pub after: Value,
    /// Whether it may change, and what follows.
    pub rule: Rule,
}

impl Description {
    /// Of a config whose relative paths start from `base`; `folders` opens its diffusers folder, and knows the hashes of files in it
    /// that were hashed before.
    ///
    /// # Errors
    /// If a file that it names is there and cannot be read.
    pub fn of(config: &Config, base: &Path, folders: &PipelineFolders) -> Result<Self, TrainError> {
        let mut description = Self::of_config(config);
        let mut contents = BTreeMap::new();
        for (key, value) in leaves(&description.config, Some(config)) {
            // Of prompts it counts what the data set makes of them: `add_prompts`.
            let is_read = is_file(&key) && !OF_PROMPTS.contains(&key.as_str());
            let Some(path) = value.as_str().filter(|_| is_read) else {
                continue;
            };
            let path = base.join(path);
            if !path.exists() {
                continue;
            }
            let found = match key.as_str() {
                "model.path" => contents::of_folder(config, base, folders)?,
                // A text encoder with its settings and its vocabulary, an autoencoder with its settings.
                "model.autoencoder" => contents::of_network(&path)?,
                "text.path" if path.is_dir() => contents::of_network(&path)?,
                key if is_network(key) => contents::of_network(&path)?,
                _ => contents::of_weights(&path)?,
            };
            for (part, hash) in found {
                contents.insert(contents::key_of(&key, part), hash);
            }
        }
        description.contents = Some(contents);
        Ok(description)
    }

    /// Adds the prompts of the data set, with what is held out of them and what rewards read of them: a run that goes on has the
    /// same ones, wherever their file lies.
    pub fn add_prompts(&mut self, dataset: &dyn Dataset) {
        let Some(contents) = &mut self.contents else {
            return;
        };
        let prompts = dataset.prompts().iter();
        let lines = prompts.map(|prompt| json!([dataset.is_held_out(prompt), prompt.text, prompt.metadata]));
        let text: Vec<String> = lines.map(|line| line.to_string()).collect();
        contents.insert(PROMPTS.to_owned(), ContentHash::of(text.join("\n").as_bytes()));
    }

    /// Adds what the records are that the run learns from, if files hold them.
    pub(crate) fn add_records(&mut self, records: Option<ContentHash>) {
        if let Some((contents, records)) = self.contents.as_mut().zip(records) {
            contents.insert(RECORDS.to_owned(), records);
        }
    }

    /// What the records were that the run learnt from, if somebody looked.
    pub(crate) fn records(&self) -> Option<ContentHash> {
        self.contents.as_ref()?.get(RECORDS).copied()
    }

    /// Of a config alone: what files hold is not looked at.
    pub fn of_config(config: &Config) -> Self {
        Self {
            config: serde_json::to_value(config).expect("a config is plain data"),
            contents: None,
        }
    }

    /// What a key names holds, in one hash; nothing if it is not there, or nobody looked.
    pub fn content(&self, key: &str) -> Option<ContentHash> {
        contents::in_one(contents::of_key(self.contents.as_ref()?, key))
    }

    /// Of the run that a checkpoint with this `meta` is of: its own, else, for older ones, that of the `run.json` among `traces`.
    pub fn of_checkpoint(meta: &Value, traces: Option<&Traces>) -> Option<Self> {
        let own = meta.get("description").filter(|own| own.is_object());
        if let Some(own) = own {
            let contents = own.get("contents").cloned().unwrap_or_default();
            return Some(Self {
                config: own.get("config").cloned().unwrap_or_default(),
                contents: serde_json::from_value(contents).unwrap_or_default(),
            });
        }
        match &traces?.manifest {
            ManifestFound::Whole(manifest) if manifest.config.is_object() => Some(Self {
                config: manifest.config.clone(),
                contents: None,
            }),
            _ => None,
        }
    }

    /// What differs in `now`, this being the description of a checkpoint. `catalog` knows what keys stood for that an older config
    /// lacks: their defaults.
    pub fn changes(&self, now: &Self, catalog: &Catalog) -> Vec<Change> {
        let leaves = |config| leaves(config, catalog.read(config).as_ref());
        let (before, after) = (leaves(&self.config), leaves(&now.config));
        let keys: Vec<&String> = {
            let added = after.keys().filter(|key| !before.contains_key(*key));
            before.keys().chain(added).collect()
        };
        let value =
            |leaves: &BTreeMap<String, Value>, key: &str| leaves.get(key).cloned().unwrap_or_default();
        let has_same_forms = forms(&before) == forms(&after);
        let changes = keys
            .into_iter()
            .map(|key| {
                let (before, after) = (value(&before, key), value(&after, key));
                let general = unwrapped(key);
                // Where the same forms are asked for from another place of the list, nothing but the list is another.
                let rule = match has_same_forms && rules::is_form(&general) {
                    true => rules::of("acceleration", &before, &after),
                    false => rules::of(&general, &before, &after),
                };
                Change {
                    key: key.clone(),
                    before,
                    after,
                    rule,
                }
            })
            .filter_map(|change| self.by_contents(change, now));
        let mut changes: Vec<Change> = changes.collect();
        // A key of the data set that differs says more than the prompts that follow from it.
        if !changes.iter().any(|change| rules::is_below(&change.key, "data")) {
            changes.extend(self.other_prompts(now));
        }
        changes
    }

    /// Hashes of the prompts, where both sides looked.
    fn prompts(&self, now: &Self) -> Option<(ContentHash, ContentHash)> {
        let of = |description: &Self| description.contents.as_ref()?.get(PROMPTS).copied();
        of(self).zip(of(now))
    }

    /// That the prompts are others, if both sides looked.
    fn other_prompts(&self, now: &Self) -> Option<Change> {
        let (before, after) = self.prompts(now).filter(|(before, after)| before != after)?;
        let in_words = |hash: ContentHash| json!(format!("prompts with BLAKE3 {}…", hash.short()));
        let (before, after) = (in_words(before), in_words(after));
        Some(Change {
            key: "data".to_owned(),
            rule: rules::of("data", &before, &after),
            before,
            after,
        })
    }

    /// A key that names a file is compared by what the file holds, where both sides looked.
    fn by_contents(&self, change: Change, now: &Self) -> Option<Change> {
        let differs = change.before != change.after;
        if !is_file(&change.key) {
            return differs.then_some(change);
        }
        if OF_PROMPTS.contains(&change.key.as_str()) && self.prompts(now).is_some() {
            return None;
        }
        let (Some(before), Some(after)) = (&self.contents, &now.contents) else {
            // A path alone does not say what it names.
            let is_set = |value: &Value| !value.is_null();
            return (is_set(&change.before) != is_set(&change.after)).then_some(change);
        };
        match (before.get(&change.key), after.get(&change.key)) {
            (Some(_), Some(_)) => {
                // Older checkpoints know fewer parts of what a key names.
                let (part, before, after) = contents::first_difference(before, after, &change.key)?;
                Some(Change {
                    before: json!(contents::in_words(&change.before, part, before)),
                    after: json!(contents::in_words(&change.after, part, after)),
                    ..change
                })
            }
            // A file that is not there any more, or was not there, cannot be compared; a name that is no file can.
            _ => differs.then_some(change),
        }
    }
}

/// Of the changes, those that a run does not survive.
pub fn forbidden(changes: &[Change]) -> Vec<&Change> {
    let fixed = changes
        .iter()
        .filter(|change| matches!(change.rule, Rule::Fixed(_)));
    fixed.collect()
}

impl Change {
    /// What to write to have the old value again: `model.dit.layers = 2`.
    pub fn set_back(&self) -> String {
        match &self.before {
            _ if self.key == "data" => "`[data]` to the prompts of then".to_owned(),
            Value::Null => format!("no `{}`", self.key),
            _ if is_file(&self.key) => format!("`{}` to the file of then", self.key),
            value => format!("`{} = {value}`", self.key),
        }
    }
}

/// For people: `model.dit.layers = 4, was 2: the run has another model`.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |value: &Value| match value {
            Value::Null => "not set".to_owned(),
            Value::String(text) => text.escape_debug().to_string(),
            value => value.to_string(),
        };
        let (Rule::Fixed(why) | Rule::MayChange(why) | Rule::Measures(why)) = &self.rule;
        write!(
            f,
            "{} = {}, was {}: {why}",
            self.key,
            value(&self.after),
            value(&self.before)
        )
    }
}

/// `rewards[0].mode` as the rules know it: `rewards[].mode`.
fn general(key: &str) -> String {
    let mut text = String::with_capacity(key.len());
    let mut inside = false;
    for letter in key.chars() {
        inside = match letter {
            '[' => true,
            ']' => false,
            _ => inside,
        };
        if !inside || letter == '[' {
            text.push(letter);
        }
    }
    text
}

/// The same for a reward within another one as for one that stands by itself: `rewards[].path` of `rewards[0].params.path`.
fn unwrapped(key: &str) -> String {
    let mut key = general(key);
    if key.starts_with("rewards[].") || key.starts_with("eval_rewards[].") {
        while key.contains("[].params.") {
            key = key.replacen("[].params.", "[].", 1);
        }
    }
    key
}

/// Whether a key names a file whose contents count.
fn is_file(key: &str) -> bool {
    FILES.contains(&&*unwrapped(key))
}

/// Whether a key names the folder or file of a reward's network.
fn is_network(key: &str) -> bool {
    let key = unwrapped(key);
    let is_reward = ["rewards[].", "eval_rewards[]."]
        .iter()
        .any(|list| key.starts_with(list));
    is_reward && !key.ends_with(".weights")
}

/// The values of a config that are in use, by key, with what they stand for where they are left out.
fn leaves(config: &Value, read: Option<&Config>) -> BTreeMap<String, Value> {
    let (full, unused) = match read {
        Some(read) => (effective(read), unused(read)),
        None => (config.clone(), Vec::new()),
    };
    let is_used = |key: &str| !unused.iter().any(|section| rules::is_below(key, section));
    let leaves = flatten(&full).into_iter();
    let is_said = |key: &str, value: &Value| !is_empty(value) && !rules::is_left_out(&unwrapped(key), value);
    leaves
        .filter(|(key, value)| is_used(key) && is_said(key, value))
        .collect()
}

/// What is asked of the form in which frozen weights are stored, wherever in its list the accelerator stands that asks for it.
fn forms(leaves: &BTreeMap<String, Value>) -> Vec<(String, &Value)> {
    let asked = leaves.iter().map(|(key, value)| (unwrapped(key), value));
    asked.filter(|(key, _)| rules::is_form(key)).collect()
}

/// Whether a value says no more than a key that is left out.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
        _ => false,
    }
}

/// The config with the values that keys which are left out stand for.
fn effective(config: &Config) -> Value {
    let mut config = config.clone();
    config.lora.alpha = Some(config.lora.effective_alpha());
    config.lora.seed = Some(config.lora.seed.unwrap_or(config.run.seed));
    config.evaluation.steps = Some(config.eval_steps());
    config.evaluation.guidance_scale = Some(config.eval_guidance_scale());
    config.eval_rewards = Some(config.effective_eval_rewards().to_vec());
    serde_json::to_value(config).expect("a config is plain data")
}

/// Sections that the config's model does not read.
fn unused(config: &Config) -> Vec<String> {
    let architecture = &config.model.architecture;
    let tables = config.model.tables.keys();
    let mut unused: Vec<String> = tables
        .filter(|name| *name != architecture)
        .map(|name| format!("model.{name}"))
        .collect();
    if config.model.finetune != Finetune::Lora {
        unused.push("lora".into());
    }
    // The one architecture of ours that reads tokens.
    if architecture == "dit" {
        unused.push("text".into());
    }
    unused
}
