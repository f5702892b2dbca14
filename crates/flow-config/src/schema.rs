//! The JSON schema of the config: how it is made from the sections' types, and views into it.
//!
//! The schema is the one place that knows types, ranges and allowed values. The parser checks documents by it (so
//! that an editor and the parser say the same), and `explain` reads its texts from it.

mod editors;
mod examples;

pub use editors::for_editors;
pub use examples::{add_example, examples};

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use crate::catalog::Catalog;
use crate::tree::Segment;

/// The JSON schema (draft 2020-12) of a config file as the parser reads it, as far as the catalog knows it: parameters of
/// accelerators and options of runtimes are free. `flow_train::schema` has them, too, and is [`for_editors`]; it is
/// committed as `configs/schema.json`.
pub fn schema(catalog: &Catalog) -> Json {
    catalog.schema().clone()
}

/// Makes a generated schema fit for TOML: no `null`, which TOML cannot write; no Rust-only number formats; texts
/// with their lines joined.
pub fn tidy(schema: &mut Json) {
    match schema {
        Json::Object(object) => {
            if let Some(Json::Array(types)) = object.get_mut("type") {
                types.retain(|name| name != "null");
                if let [single] = types.as_slice() {
                    let single = single.clone();
                    object.insert("type".into(), single);
                }
            }
            for keyword in ["anyOf", "oneOf"] {
                if let Some(Json::Array(alternatives)) = object.get_mut(keyword) {
                    alternatives.retain(|alternative| alternative["type"] != "null");
                    if let [single] = alternatives.as_slice() {
                        let single = single.clone();
                        object.shift_remove(keyword);
                        if let Json::Object(single) = single {
                            for (key, value) in single {
                                object.entry(key).or_insert(value);
                            }
                        }
                    }
                }
            }
            if object.get("default").is_some_and(Json::is_null) {
                object.shift_remove("default");
            }
            if object.get("format").is_some_and(Json::is_string) {
                object.shift_remove("format");
            }
            if let Some(Json::String(text)) = object.get_mut("description") {
                *text = text.split('\n').map(str::trim_end).collect::<Vec<_>>().join(" ");
            }
            describe_tag(object);
            for (key, value) in object.iter_mut() {
                if key != "default" {
                    tidy(value);
                } else {
                    strip_nulls(value);
                }
            }
        }
        Json::Array(entries) => entries.iter_mut().for_each(tidy),
        _ => {}
    }
}

/// Gives the key that chooses a variant the variant's own text, so that editors show it.
fn describe_tag(variant: &mut serde_json::Map<String, Json>) {
    let Some(text) = variant.get("description").cloned() else {
        return;
    };
    let Some(Json::Object(properties)) = variant.get_mut("properties") else {
        return;
    };
    for property in properties.values_mut().filter_map(Json::as_object_mut) {
        if property.contains_key("const") {
            property.entry("description").or_insert(text.clone());
        }
    }
}

/// Removes absent options from default values.
pub(crate) fn strip_nulls(value: &mut Json) {
    if let Json::Object(object) = value {
        object.retain(|_, value| !value.is_null());
        object.values_mut().for_each(strip_nulls);
    }
}

/// Follows `$ref` to the definition it names.
pub(crate) fn resolve<'s>(root: &'s Json, mut schema: &'s Json) -> &'s Json {
    // References point from a property to a definition, never in a circle; the bound is for safety.
    for _ in 0..8 {
        let Some(reference) = schema["$ref"].as_str() else {
            break;
        };
        let Some(target) = reference
            .strip_prefix('#')
            .and_then(|pointer| root.pointer(pointer))
        else {
            break;
        };
        schema = target;
    }
    schema
}

/// The key by which a table chooses its variant (`kind`, `policy`), if the schema is such a table's.
pub(crate) fn tag_of(schema: &Json) -> Option<&str> {
    let variants = schema["oneOf"].as_array()?;
    let (tag, _) = variants.first()?["properties"]
        .as_object()?
        .iter()
        .find(|(_, p)| p["const"].is_string())?;
    Some(tag)
}

/// The texts that a schema of texts allows: `enum`, `const`, or `oneOf` of these. `None` if it is of another kind.
pub(crate) fn allowed_texts(schema: &Json) -> Option<Vec<&str>> {
    if let Some(text) = schema["const"].as_str() {
        return Some(vec![text]);
    }
    if let Some(texts) = schema["enum"].as_array() {
        return texts.iter().map(Json::as_str).collect();
    }
    let alternatives = schema["oneOf"].as_array()?;
    let nested: Option<Vec<_>> = alternatives.iter().map(allowed_texts).collect();
    Some(nested?.into_iter().flatten().collect())
}

/// What the schema says of one path: the schemas that may apply there, one per variant.
pub(crate) struct View<'s> {
    pub(crate) root: &'s Json,
    /// As they stand in their parents: references are not yet followed, so that the text beside one is not lost.
    pub(crate) nodes: Vec<&'s Json>,
}

impl<'s> View<'s> {
    pub(crate) fn root(root: &'s Json) -> Self {
        Self {
            root,
            nodes: vec![root],
        }
    }

    /// The schemas behind references and alternatives.
    pub(crate) fn expanded(&self) -> Vec<&'s Json> {
        fn expand<'s>(root: &'s Json, schema: &'s Json, out: &mut Vec<&'s Json>) {
            let schema = resolve(root, schema);
            match schema["oneOf"].as_array().or(schema["anyOf"].as_array()) {
                Some(alternatives) => alternatives.iter().for_each(|one| expand(root, one, out)),
                None => out.push(schema),
            }
        }
        let mut out = Vec::new();
        self.nodes
            .iter()
            .for_each(|node| expand(self.root, node, &mut out));
        out
    }

    /// What the schema says one step further down. A key goes into lists by itself: `rewards.weight` is the weight of
    /// any reward.
    pub(crate) fn child(&self, segment: &Segment) -> View<'s> {
        let mut nodes = Vec::new();
        for schema in self.expanded() {
            match segment {
                Segment::Key(key) => match schema["properties"].get(key) {
                    Some(child) => nodes.push(child),
                    None => {
                        if let Some(items) = schema.get("items") {
                            nodes.extend(
                                View {
                                    root: self.root,
                                    nodes: vec![items],
                                }
                                .child(segment)
                                .nodes,
                            );
                        }
                    }
                },
                Segment::Index(_) => match schema.get("items") {
                    Some(items) => nodes.push(items),
                    // A single table stands for a list of one.
                    None if schema["type"] == "object" => nodes.push(schema),
                    None => {}
                },
            }
        }
        View {
            root: self.root,
            nodes,
        }
    }

    pub(crate) fn tag(&self) -> Option<&'s str> {
        self.nodes
            .iter()
            .find_map(|node| tag_of(resolve(self.root, node)))
    }
}

/// For every key of a schema, the sections that have it: dotted paths without the key, lists without an index.
pub(crate) fn sections_of_key(schema: &Json) -> BTreeMap<String, BTreeSet<String>> {
    fn walk(view: &View<'_>, section: &str, out: &mut BTreeMap<String, BTreeSet<String>>) {
        let mut keys = BTreeSet::new();
        for schema in view.expanded() {
            if let Some(items) = schema.get("items") {
                walk(
                    &View {
                        root: view.root,
                        nodes: vec![items],
                    },
                    section,
                    out,
                );
            }
            keys.extend(
                schema["properties"]
                    .as_object()
                    .into_iter()
                    .flat_map(|object| object.keys()),
            );
        }
        for key in keys {
            out.entry(key.clone()).or_default().insert(section.to_owned());
            let below = if section.is_empty() {
                key.clone()
            } else {
                format!("{section}.{key}")
            };
            walk(&view.child(&Segment::Key(key.clone())), &below, out);
        }
    }
    let mut out = BTreeMap::new();
    walk(&View::root(schema), "", &mut out);
    out
}
