//! What `peft` says about an adapter in `adapter_config.json`, or diffusers in the metadata of a file.
//!
//! A key is accepted if its value is known to leave `y = W x + scale · B (A x)` on the unchanged `W`, and refused
//! otherwise, known or not: an adapter that is read without it would be another one. Sources: `peft` 0.21.2
//! (`tuners/lora/config.py`, `utils/other.py`), diffusers 0.42.1 (`loaders/lora_base.py`).

use serde_json::{Map, Value};

/// File names of `peft` (`utils/constants.py`).
pub(super) const WEIGHTS_FILE: &str = "adapter_model.safetensors";
pub(super) const CONFIG_FILE: &str = "adapter_config.json";
/// What `peft` puts before every name.
pub(super) const PREFIX: &str = "base_model.model.";
/// Where diffusers keeps the config within a file.
pub(super) const METADATA_KEY: &str = "lora_adapter_metadata";

/// Keys that say where the adapter is from, what it is for, or how it is trained on.
const INDIFFERENT: [&str; 17] = [
    "peft_version",
    "auto_mapping",
    "base_model_name_or_path",
    "revision",
    "task_type",
    "inference_mode",
    "lora_dropout",
    // Which layers are adapted is what the tensors show.
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "megatron_core",
    "runtime_config",
    "ensure_weight_tying",
    // How `A` and `B` began, on the unchanged base.
    "eva_config",
    // Read only together with keys that are refused.
    "qalora_group_size",
    "peft_type",
];

/// Initial values that leave the base as it is.
const PLAIN_BEGINNINGS: [&str; 2] = ["gaussian", "eva"];

/// Scale and rank of adapters, by layer.
#[derive(Clone, Debug)]
pub(super) struct PeftConfig {
    rank: usize,
    alpha: f64,
    by_root: bool,
    ranks: Vec<(LayerPattern, f64)>,
    alphas: Vec<(LayerPattern, f64)>,
}

impl PeftConfig {
    /// What `text` says; `None` if it says nothing of an adapter under `prefix` or under none.
    ///
    /// # Errors
    /// What is wrong with it, or what it asks for beyond an adapter, and what to do.
    pub fn parse(text: &str) -> Result<Option<Self>, String> {
        let Ok(Value::Object(all)) = serde_json::from_str::<Value>(text) else {
            return Err("is no JSON object".into());
        };
        let config = of_transformer(all);
        if config.is_empty() {
            return Ok(None);
        }
        refuse_beyond(&config)?;
        let rank = config.get("r").and_then(Value::as_u64);
        let rank = rank.filter(|rank| *rank > 0).ok_or_else(|| {
            format!(
                "has `r = {}`; a rank is a whole number above 0",
                show(config.get("r"))
            )
        })?;
        let alpha = config.get("lora_alpha").map_or(Some(8.0), Value::as_f64);
        let alpha = alpha
            .ok_or_else(|| format!("has `lora_alpha = {}`, no number", show(config.get("lora_alpha"))))?;
        Ok(Some(Self {
            rank: rank as usize,
            alpha,
            by_root: config.get("use_rslora") == Some(&Value::Bool(true)),
            ranks: patterns(&config, "rank_pattern")?,
            alphas: patterns(&config, "alpha_pattern")?,
        }))
    }

    /// The rank of `layer`'s adapter.
    pub fn rank(&self, layer: &str) -> usize {
        let own = self.ranks.iter().find(|(pattern, _)| pattern.fits(layer));
        own.map_or(self.rank, |(_, rank)| *rank as usize)
    }

    /// `alpha / rank` of `layer`'s adapter, or `alpha / √rank` (rank-stabilised, Kalajdzievski 2023, arXiv:2312.03732).
    pub fn scale(&self, layer: &str) -> f64 {
        let own = self.alphas.iter().find(|(pattern, _)| pattern.fits(layer));
        let alpha = own.map_or(self.alpha, |(_, alpha)| *alpha);
        let rank = self.rank(layer) as f64;
        alpha / if self.by_root { rank.sqrt() } else { rank }
    }
}

/// The part of a config that is about the transformer: of the keys with a prefix those of diffusers' `transformer.` or of
/// `peft`'s names, else those without any.
fn of_transformer(all: Map<String, Value>) -> Map<String, Value> {
    for prefix in ["transformer.", PREFIX] {
        let part: Map<String, Value> = all
            .iter()
            .filter_map(|(key, value)| Some((key.strip_prefix(prefix)?.to_owned(), value.clone())))
            .collect();
        if !part.is_empty() {
            return part;
        }
    }
    all.into_iter().filter(|(key, _)| !key.contains('.')).collect()
}

fn refuse_beyond(config: &Map<String, Value>) -> Result<(), String> {
    for (key, value) in config {
        let is_off = match value {
            Value::Null | Value::Bool(false) => true,
            Value::Array(entries) => entries.is_empty(),
            Value::Object(entries) => entries.is_empty(),
            _ => false,
        };
        let is_plain = match key.as_str() {
            "r" | "lora_alpha" | "rank_pattern" | "alpha_pattern" | "use_rslora" => true,
            "peft_type" => value == "LORA" || value.is_null(),
            "bias" => is_off || value == "none",
            "init_lora_weights" => {
                matches!(value, Value::Bool(_) | Value::Null)
                    || value.as_str().is_some_and(|it| PLAIN_BEGINNINGS.contains(&it))
            }
            key => is_off || INDIFFERENT.contains(&key),
        };
        if !is_plain {
            return Err(format!(
                "has `{key} = {}`, which is no plain low-rank adapter on the unchanged weights: {}",
                shown(value),
                way_out(key, value)
            ));
        }
    }
    Ok(())
}

/// How to make an adapter, or a model, that can be read.
fn way_out(key: &str, value: &Value) -> &'static str {
    const MERGE: &str = "merge it in Python (`PeftModel.from_pretrained(...).merge_and_unload()`), save the model, and name that in \
                         `model.weights`";
    match (key, value) {
        ("init_lora_weights", _) => {
            "it belongs to a changed base. Save it in Python with `save_pretrained(FOLDER, \
             path_initial_model_for_weight_conversion=INITIAL)`, which makes it an adapter of the unchanged base, or merge it \
             (`merge_and_unload`) and name the merged model in `model.weights`"
        }
        ("peft_type", _) => {
            "it is of another method; merge it in Python (`merge_and_unload`), and name the merged model in `model.weights`"
        }
        _ => MERGE,
    }
}

/// A layer that a config names for itself: the end of a dotted name, or with `^` the whole of it.
#[derive(Clone, Debug)]
struct LayerPattern {
    name: String,
    is_whole: bool,
}

impl LayerPattern {
    /// `peft` reads these as regular expressions, and writes names.
    fn parse(text: &str) -> Option<Self> {
        let (text, is_whole) = match text.strip_prefix('^') {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let name = text.strip_suffix('$').unwrap_or(text).replace("\\.", ".");
        let is_plain = |c: char| c.is_alphanumeric() || "._-".contains(c);
        let name = super::original::DOTTED_PREFIXES
            .iter()
            .find_map(|prefix| name.strip_prefix(prefix))
            .unwrap_or(&name);
        (!name.is_empty() && name.chars().all(is_plain)).then(|| Self {
            name: name.to_owned(),
            is_whole,
        })
    }

    fn fits(&self, layer: &str) -> bool {
        match layer.strip_suffix(&self.name) {
            Some(before) if self.is_whole => before.is_empty(),
            Some(before) => before.is_empty() || before.ends_with('.'),
            None => false,
        }
    }
}

fn patterns(config: &Map<String, Value>, key: &str) -> Result<Vec<(LayerPattern, f64)>, String> {
    let entries = match config.get(key) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(entries)) => entries,
        Some(other) => return Err(format!("has `{key} = {}`, no table", shown(other))),
    };
    let pair = |(name, value): (&String, &Value)| {
        let value = value.as_f64().filter(|value| *value > 0.0 && value.is_finite());
        LayerPattern::parse(name).zip(value).ok_or_else(|| {
            format!("has `{key}` for `{name}`, which is no layer's name with a number above 0; merge it in Python (`merge_and_unload`)")
        })
    };
    entries.iter().map(pair).collect()
}

fn show(value: Option<&Value>) -> String {
    value.map_or_else(|| "nothing".into(), shown)
}

/// A value in a message, cut where it is long.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}
