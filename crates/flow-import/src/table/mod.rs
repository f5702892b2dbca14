//! The table: every key of Flow-Factory's config and what becomes of it. From Flow-Factory's argument classes
//! (`hparams/*.py` at commit a0b2bc5), its acceleration layer (pull request 196), and for `optimizers` its examples
//! (`examples/**/*.yaml` at commit 5f6cda1).

mod adapter;
mod run;
mod tdm_r1;
mod train;
mod trainers;

use crate::rule::{Conversion, Rule};

/// Every rule, in the order in which they are applied.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    [run::TOP, run::MODEL, run::DATA, run::SCHEDULER]
        .into_iter()
        .chain([trainers::COMMON, train::ALGORITHMS, tdm_r1::WITH_SURROGATE])
        .chain([adapter::READ_BY_ADAPTERS])
        .chain([run::EVAL, run::REWARDS, run::LOG, run::ACCELERATION])
        .flatten()
}

/// The rule of a YAML path.
pub(crate) fn rule(from: &str) -> Option<&'static Rule> {
    rules().find(|rule| rule.from == from)
}

/// Sections whose keys the table has one by one; the other keys of the top level are values.
pub(crate) const SECTIONS: [&str; 7] = [
    "model",
    "data",
    "scheduler",
    "train",
    "eval",
    "log",
    "acceleration",
];

/// What Flow-Factory does with a key that its argument classes do not have: it keeps it, with a warning, and hands it on
/// (`hparams/abc.py`, and the uses of `**self.training_args` and `**self.eval_args` at commit a0b2bc5).
pub(crate) fn unknown(from: &str) -> &'static str {
    match from.split_once('.').map(|(section, _)| section) {
        Some("train") => {
            "not a key of Flow-Factory's trainer; Flow-Factory hands it to the model's adapter and to the moving average, and \
             flow-train has no counterpart"
        }
        Some("eval") => {
            "not a key of Flow-Factory's evaluation; Flow-Factory hands it to the model's adapter, and flow-train has no \
             counterpart"
        }
        Some("scheduler") => {
            "not a key of Flow-Factory's scheduler; Flow-Factory hands it to the scheduler of diffusers, and flow-train has no \
             counterpart"
        }
        Some("acceleration") => "acceleration has the lists `shared` and `rollout`",
        Some("model" | "data" | "log") => {
            "not among the keys that this section of Flow-Factory declares; Flow-Factory keeps it for whoever asks for it by \
             name, and flow-train has no counterpart"
        }
        _ => {
            "not among the keys that Flow-Factory declares at the top; it keeps it with a warning, and flow-train has no counterpart"
        }
    }
}

/// The table as Markdown: what becomes of every key.
pub fn mapping() -> String {
    let mut text = String::from("| Flow-Factory | flow-train | what happens |\n|---|---|---|\n");
    for rule in rules() {
        let to = match rule.conversion {
            Conversion::Nothing => "none".to_owned(),
            Conversion::Same(words) => format!("the same at {}", code(words.iter().copied())),
            _ => code(rule.to.split(", ")),
        };
        let kinds = match rule.kinds {
            [] => String::new(),
            kinds => format!(" (for {})", code(kinds.iter().copied())),
        };
        text.push_str(&format!("| `{}` | {to} | {}{kinds} |\n", rule.from, rule.doc));
    }
    text
}

fn code<'t>(words: impl Iterator<Item = &'t str>) -> String {
    words
        .map(|word| format!("`{word}`"))
        .collect::<Vec<_>>()
        .join(", ")
}
