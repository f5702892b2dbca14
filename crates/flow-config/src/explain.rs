//! What a key means: its text, type, default and allowed values, read from the schema.

use std::fmt;

use serde_json::Value as Json;

use crate::catalog::Catalog;
use crate::phrase::{range_phrase, type_phrase};
use crate::schema::{View, allowed_texts, resolve, tag_of, tidy};
use crate::tree::{Segment, dotted};

/// The documentation of one key.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct FieldDoc {
    /// Its dotted path.
    pub path: String,
    /// What it is for.
    pub docs: String,
    /// Its type, in words.
    pub type_name: String,
    /// Its range, in words; empty if it has none.
    pub range: String,
    /// Its default, if it has one.
    pub default: Option<Json>,
    /// Whether it must be given when its section is.
    pub required: bool,
    /// The values it may have, if they are given by name, each with what it means.
    pub allowed: Vec<(String, String)>,
    /// The variants of its section that have it, such as `kind = "grpo"`; empty if all have it.
    pub variants: Vec<String>,
    /// The keys below it, if it is a table, each with what it is for.
    pub keys: Vec<(String, String)>,
}

/// Explains a key such as `optimizer.learning_rate`, `rewards.kind` or `algorithm`. Indices of lists may be left out.
pub fn explain(catalog: &Catalog, key: &str) -> Option<FieldDoc> {
    explain_in(catalog.schema(), key)
}

/// Explains the parameters that schemars made `schema` of, those of an accelerator for instance: all of them for the key
/// `name`, one for `name.parameter`.
pub fn explain_params(name: &str, schema: &Json, key: &str) -> Option<FieldDoc> {
    let mut params = schema.clone();
    tidy(&mut params);
    // Its references begin at the root.
    let definitions = params["$defs"].take();
    let root = serde_json::json!({ "type": "object", "properties": { name: params }, "$defs": definitions });
    explain_in(&root, key)
}

fn explain_in(root: &Json, key: &str) -> Option<FieldDoc> {
    let path: Vec<Segment> = key
        .split('.')
        .map(|part| part.trim_start_matches("[[").trim_end_matches("]]"))
        .filter(|part| !part.is_empty() && part.parse::<usize>().is_err())
        .map(|part| Segment::Key(part.to_owned()))
        .collect();
    let (last, parents) = path.split_last()?;
    let Segment::Key(name) = last else { return None };
    let parent = parents
        .iter()
        .fold(View::root(root), |view, segment| view.child(segment));
    let view = parent.child(last);
    let first = *view.nodes.first()?;

    let sections = sections(&parent);
    let having: Vec<&Json> = sections
        .iter()
        .copied()
        .filter(|section| section["properties"].get(name).is_some())
        .collect();
    let tag = tag(&parent);
    let condition = |section: &Json| {
        let tag = tag?;
        Some(format!(
            "{tag} = \"{}\"",
            section["properties"][tag]["const"].as_str()?
        ))
    };
    let variants: Vec<String> = if having.len() < sections.len() {
        having.iter().filter_map(|section| condition(section)).collect()
    } else {
        Vec::new()
    };
    let text = |schema: &Json| description(root, schema);
    let mut docs = text(first);
    if having
        .iter()
        .any(|section| text(&section["properties"][name]) != docs)
        && tag != Some(name)
    {
        // Tables within different variants have no condition of their own.
        let mut each: Vec<String> = Vec::new();
        for section in &having {
            let own = text(&section["properties"][name]);
            let own = match condition(section) {
                Some(condition) => format!("{condition}: {own}"),
                None => own,
            };
            if !each.contains(&own) {
                each.push(own);
            }
        }
        docs = each.join("\n");
    }
    let target = resolve(root, first);
    let mut allowed = alternatives(target);
    if tag == Some(name) {
        docs = WHICH_VARIANT.into();
        allowed = sections
            .iter()
            .filter_map(|section| {
                Some((
                    section["properties"][name]["const"].as_str()?.to_owned(),
                    description(root, section),
                ))
            })
            .collect();
    }
    Some(FieldDoc {
        path: dotted(&path),
        docs,
        type_name: if tag == Some(name) {
            "a text".into()
        } else {
            type_phrase(root, target)
        },
        range: range_phrase(target),
        default: first.get("default").cloned(),
        required: having.iter().any(|section| {
            section["required"]
                .as_array()
                .is_some_and(|keys| keys.iter().any(|key| key == name))
        }),
        allowed,
        variants,
        keys: keys(&view),
    })
}

/// The dotted paths of every key called `name`, for `explain` of a key without its section.
pub fn find_key(catalog: &Catalog, name: &str) -> Vec<String> {
    let join = |section: &String| {
        if section.is_empty() {
            name.to_owned()
        } else {
            format!("{section}.{name}")
        }
    };
    catalog
        .sections_of_key()
        .get(name)
        .into_iter()
        .flatten()
        .map(join)
        .collect()
}

/// The keys that may have the value `value`, such as `algorithm.kind` of "grpo", each with what the value means there.
pub fn find_value(catalog: &Catalog, value: &str) -> Vec<(String, String)> {
    let of_key = |path: String| {
        let allowed = explain(catalog, &path)?.allowed;
        let (_, docs) = allowed.into_iter().find(|(name, _)| name == value)?;
        Some((path, docs))
    };
    all_keys(catalog).into_iter().filter_map(of_key).collect()
}

/// Every name that [`explain`], [`find_key`] and [`find_value`] know: keys without their sections, and values given by
/// name.
pub fn names(catalog: &Catalog) -> Vec<String> {
    let mut names: std::collections::BTreeSet<String> = catalog.sections_of_key().keys().cloned().collect();
    for docs in all_keys(catalog).iter().filter_map(|path| explain(catalog, path)) {
        names.extend(docs.allowed.into_iter().map(|(name, _)| name));
    }
    names.into_iter().collect()
}

/// The dotted paths of every key there is.
pub fn all_keys(catalog: &Catalog) -> Vec<String> {
    let names = catalog.sections_of_key().keys();
    let mut keys: Vec<String> = names.flat_map(|name| find_key(catalog, name)).collect();
    keys.sort();
    keys
}

/// What a key that chooses the variant is for; the schema has the text of one variant in each place.
const WHICH_VARIANT: &str = "Which of the variants this table is.";

fn description(root: &Json, schema: &Json) -> String {
    let own = schema["description"].as_str();
    own.or_else(|| resolve(root, schema)["description"].as_str())
        .unwrap_or_default()
        .to_owned()
}

/// The tables behind a view, through lists.
fn sections<'s>(view: &View<'s>) -> Vec<&'s Json> {
    let through_list = |schema: &'s Json| match schema.get("items") {
        Some(items) => View {
            nodes: vec![items],
            ..View::root(view.root)
        }
        .expanded(),
        None => vec![schema],
    };
    view.expanded()
        .into_iter()
        .flat_map(through_list)
        .filter(|schema| schema["type"] == "object")
        .collect()
}

fn tag<'s>(view: &View<'s>) -> Option<&'s str> {
    let items = view
        .expanded()
        .into_iter()
        .filter_map(|schema| schema.get("items"));
    view.tag().or_else(|| {
        items
            .into_iter()
            .find_map(|items| tag_of(resolve(view.root, items)))
    })
}

/// The values of a schema of texts, with their meanings where the schema gives them.
fn alternatives(schema: &Json) -> Vec<(String, String)> {
    let Some(texts) = allowed_texts(schema) else {
        return Vec::new();
    };
    let meaning = |text: &str| {
        let alternatives = schema["oneOf"].as_array()?;
        let one = alternatives.iter().find(|one| one["const"] == text)?;
        Some(one["description"].as_str()?.to_owned())
    };
    texts
        .iter()
        .map(|text| ((*text).to_owned(), meaning(text).unwrap_or_default()))
        .collect()
}

fn keys(view: &View<'_>) -> Vec<(String, String)> {
    let mut out: Vec<(String, String)> = Vec::new();
    let tag = tag(view);
    for section in sections(view) {
        for (key, schema) in section["properties"].as_object().into_iter().flatten() {
            if !out.iter().any(|(known, _)| known == key) {
                let docs = if tag == Some(key) {
                    WHICH_VARIANT.to_owned()
                } else {
                    description(view.root, schema)
                };
                out.push((key.clone(), docs));
            }
        }
    }
    out
}

impl fmt::Display for FieldDoc {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{}", self.path)?;
        for line in self.docs.lines() {
            writeln!(formatter, "    {line}")?;
        }
        let range = if self.range.is_empty() {
            String::new()
        } else {
            format!(", {}", self.range)
        };
        writeln!(formatter, "  type:    {}{range}", self.type_name)?;
        match &self.default {
            Some(default) if !default.is_object() => writeln!(formatter, "  default: {default}")?,
            None if self.required => writeln!(formatter, "  default: none, it must be given")?,
            _ => {}
        }
        if !self.variants.is_empty() {
            writeln!(formatter, "  only if: {}", self.variants.join(" or "))?;
        }
        for (title, entries) in [("values", &self.allowed), ("keys", &self.keys)] {
            if entries.is_empty() {
                continue;
            }
            writeln!(formatter, "  {title}:")?;
            let width = entries
                .iter()
                .map(|(name, _)| name.chars().count())
                .max()
                .unwrap_or(0);
            for (name, docs) in entries {
                writeln!(formatter, "{}", format!("    {name:width$}  {docs}").trim_end())?;
            }
        }
        Ok(())
    }
}
