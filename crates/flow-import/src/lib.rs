//! From a Flow-Factory YAML config to a flow-train TOML config: [`import`].
//!
//! One table of rules ([`rules()`]) says of every key of Flow-Factory what becomes of it. A key is converted, or says what
//! flow-train does anyway, or is kept as a comment in the TOML with its value and the reason; and there is a [`Note`] on
//! each. Where a key is left out and the two programs have different defaults, Flow-Factory's is written.
//!
//! The [`Verdict`] says in a line whether the config can be trained here. A model or a trainer that flow-train does not
//! have stands in the TOML as it was asked for, and nothing in its place. What is no config of Flow-Factory is refused by
//! name of what it looks like.
//!
//! The TOML is checked by `flow_config` before it is returned. What that refuses or would not read becomes a comment
//! with its message, so `flow_config` accepts the result whatever the YAML said, but for the model or the trainer that
//! the verdict names. What depends on accelerators, the model or the machine is for `flow-train check` to refuse.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

mod check;
mod convert;
mod draft;
mod emit;
mod error;
mod foreign;
mod join;
mod note;
mod rule;
mod scalar;
mod summary;
mod table;
mod verdict;
mod yaml;

pub use error::ImportError;
pub use note::{Note, Outcome, Rank};
pub use rule::{Conversion, Join, Rule};
pub use table::{mapping, rules};
pub use verdict::Verdict;

use draft::{Draft, Item};
use flow_config::Catalog;

/// A converted config.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Imported {
    /// Whether it can be trained here.
    pub verdict: Verdict,
    /// The TOML, formatted; valid unless the verdict is [`Verdict::Cannot`].
    pub toml: String,
    /// What became of each key, in the order of the YAML; then what was added.
    pub notes: Vec<Note>,
}

/// Converts the text of a Flow-Factory config to one of a program whose plug-ins are those of `catalog`.
///
/// # Errors
/// [`ImportError`] if the text is not YAML, if it is no config of Flow-Factory, if a map has a key twice, or if it holds
/// what no config needs (several documents, Python objects, more than 64 levels, more than 20,000 values). A key that
/// cannot be converted is no error.
pub fn import(text: &str, catalog: &Catalog) -> Result<Imported, ImportError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let root = yaml::parse(text).map_err(|error| foreign::instead_of(text, error))?;
    if root.map().is_none() {
        let found = match &root.value {
            yaml::Value::List(_) => "a list".to_owned(),
            _ if root.is_null() => "empty".to_owned(),
            _ => format!("the value {}", shortened(&root.flow(), 40)),
        };
        let error = ImportError::NotAMap {
            line: root.place.line,
            column: root.place.column,
            found,
        };
        return Err(foreign::instead_of(text, error));
    }
    foreign::refuse(text, &root)?;
    let mut draft = Draft::new(&root, catalog);
    join::choose_algorithm(&mut draft);
    let mut joined = Vec::new();
    for rule in rules() {
        match rule.conversion {
            Conversion::Joint(join) if !joined.contains(&join) => {
                joined.push(join);
                join::apply(join, &mut draft);
            }
            Conversion::Joint(_) => {}
            _ => apply(rule, &mut draft),
        }
    }
    for item in draft.left_over() {
        left_over(&mut draft, &item);
    }
    let toml = check::finish(&mut draft);
    Ok(Imported {
        verdict: Verdict::of(&draft.because, &draft.needs),
        toml,
        notes: draft.all_notes(),
    })
}

/// As [`import`], of the bytes of a file.
///
/// # Errors
/// As [`import`]; and if the bytes are no UTF-8.
pub fn import_bytes(bytes: &[u8], catalog: &Catalog) -> Result<Imported, ImportError> {
    match std::str::from_utf8(bytes) {
        Ok(text) => import(text, catalog),
        Err(_) => Err(ImportError::NotFlowFactory {
            looks: "it is no text (UTF-8) at all".into(),
        }),
    }
}

fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most).chain(['…']).collect()
}

/// Applies the rule of a key that stands for itself.
fn apply(rule: &Rule, draft: &mut Draft<'_>) {
    let item = draft.take(rule.from);
    let section = draft::section_of(rule.to);
    let of_trainer = section == "algorithm" && !draft.trainer_exists;
    let exists = !of_trainer && (rule.kinds.is_empty() || rule.kinds.contains(&draft.kind));
    match item {
        Some(Item { origin, node }) if node.is_null() && !is_kept(rule, node) => {
            draft.same(&origin, rule.to, "null is as if it were left out");
            add_default(rule, draft, exists);
        }
        Some(item) if of_trainer => {
            draft.keep_as(Rank::Detail, section, &item.origin, join::NO_TRAINER);
        }
        Some(item) if !exists => {
            let reason = format!(
                "`algorithm.kind = \"{}\"` has no such key, nor has Flow-Factory's trainer ({})",
                draft.kind, rule.doc
            );
            draft.keep_as(Rank::Detail, section, &item.origin, reason);
        }
        Some(item) => convert_item(rule, draft, &item),
        None => add_default(rule, draft, exists),
    }
}

/// Whether null is a value of its own.
fn is_kept(rule: &Rule, node: &yaml::Node) -> bool {
    match rule.conversion {
        Conversion::Limit => true,
        Conversion::Same(words) => convert::is_one_of(node, words),
        _ => false,
    }
}

fn convert_item(rule: &Rule, draft: &mut Draft<'_>, item: &Item<'_>) {
    let section = draft::section_of(rule.to);
    match rule.conversion {
        Conversion::Nothing => draft.keep_as(rule.rank(), section, &item.origin, rule.doc),
        Conversion::Same(words) if convert::is_one_of(item.node, words) => {
            draft.same(&item.origin, rule.to, rule.doc)
        }
        Conversion::Same(_) => draft.keep_as(rule.rank(), section, &item.origin, rule.doc),
        Conversion::Limit if item.node.is_null() => draft.keep(section, &item.origin, rule.doc),
        conversion => match convert::convert(conversion, item.node) {
            Ok(value) => draft.set(rule.to, value, &[&item.origin], rule.doc),
            Err(why) => draft.keep(
                section,
                &item.origin,
                format!("{why} ({}: {})", rule.to, rule.doc),
            ),
        },
    }
}

/// Writes Flow-Factory's default where flow-train's is another.
fn add_default(rule: &Rule, draft: &mut Draft<'_>, exists: bool) {
    if matches!(rule.conversion, Conversion::Limit) {
        let text = format!(
            "`{}` is left out, so Flow-Factory would go on for ever; flow-train takes the default of {}",
            rule.from, rule.to
        );
        draft.remark(rule.to, text);
    }
    // The other trainers' own defaults are not known here.
    let known = exists && (draft.trainer_exists || rule.kinds.is_empty());
    let Some(default) = rule.default.filter(|_| known) else {
        return;
    };
    if let Ok(node) = yaml::parse(default)
        && let Ok(value) = convert::convert(rule.conversion, &node)
    {
        draft.set(rule.to, value, &[], rule.from);
    }
}

/// A key that no rule converted: one of a group whose other keys make it pointless, or one that the table does not have.
fn left_over(draft: &mut Draft<'_>, Item { origin, node }: &Item<'_>) {
    if table::SECTIONS.contains(&origin.from.as_str()) {
        if node.is_null() {
            draft.same(origin, "", "an empty section says nothing");
        } else {
            draft.keep("", origin, "a section is a map of keys");
        }
        return;
    }
    if node.is_null() {
        draft.same(origin, "", "null is as if it were left out");
        return;
    }
    if let Some(rule) = table::rule(&origin.from) {
        draft.keep_as(rule.rank(), draft::section_of(rule.to), origin, rule.doc);
        return;
    }
    let mut reason = table::unknown(&origin.from).to_owned();
    // Keys have their section in common.
    let nearest = flow_registry::nearest_within(0.85, &origin.from, rules().map(|rule| rule.from));
    if let Some(nearest) = nearest {
        reason.push_str(&format!(". The nearest key that it has is `{nearest}`"));
    }
    draft.keep("", origin, reason);
}
