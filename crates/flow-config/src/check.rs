//! Checks a document against the schema: every key, type, range and allowed value, all at once.
//!
//! Understands the part of JSON schema that [`crate::schema`] makes use of; a test sees to it that this stays all of
//! it.

use serde_json::Value as Json;

use crate::catalog::Catalog;
use crate::codes;
use crate::diagnostic::{Diagnostic, Layer, SourceText};
use crate::number::toml_number;
use crate::phrase::{brief, elsewhere_help, join, range_phrase, section_phrase, shortened, type_phrase};
use crate::removed;
use crate::schema::{allowed_texts, resolve, tag_of};
use crate::suggest::nearest;
use crate::tree::{Node, Segment, Value, dotted, quoted_key, whole};
use flow_registry::is_misspelt;

/// What a check found.
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) problems: Vec<Diagnostic>,
    /// What must be taken out of the document before the rest of it can be read.
    pub(crate) bad: Vec<Vec<Segment>>,
}

/// Checks a whole document, whose values stand in these texts.
pub(crate) fn check(catalog: &Catalog, document: &Node, texts: &[SourceText]) -> Findings {
    let mut checker = Checker {
        root: catalog.schema(),
        catalog: Some(catalog),
        texts,
        path: Vec::new(),
        findings: Findings::default(),
    };
    checker.value(document, catalog.schema());
    checker.findings
}

/// Checks a value that stands at `path` of a config against a schema of its own.
pub(crate) fn check_below(value: &Node, schema: &Json, path: Vec<Segment>) -> Vec<Diagnostic> {
    let mut checker = Checker {
        root: schema,
        catalog: None,
        texts: &[],
        path,
        findings: Findings::default(),
    };
    checker.value(value, schema);
    checker.findings.problems
}

struct Checker<'s> {
    /// The schema that references are resolved in.
    root: &'s Json,
    /// Of a whole config, which knows what other sections have.
    catalog: Option<&'s Catalog>,
    /// The texts that values were written in.
    texts: &'s [SourceText],
    path: Vec<Segment>,
    findings: Findings,
}

impl<'s> Checker<'s> {
    /// Where to read more about the key at the current path; parameters of others are explained elsewhere.
    fn see(&self) -> String {
        let keys: Vec<Segment> = self
            .path
            .iter()
            .filter(|one| matches!(one, Segment::Key(_)))
            .cloned()
            .collect();
        if self.catalog.is_some() && !keys.is_empty() {
            format!("; `flow-train explain {}` says what it means", dotted(&keys))
        } else {
            String::new()
        }
    }

    /// Reports a problem with the value at the current path.
    fn bad_value(&mut self, node: &Node, code: &'static str, message: String) -> &mut Diagnostic {
        self.findings.bad.push(self.path.clone());
        self.problem(node, node.span.clone(), code, message)
    }

    fn problem(
        &mut self,
        node: &Node,
        span: std::ops::Range<usize>,
        code: &'static str,
        message: String,
    ) -> &mut Diagnostic {
        let mut diagnostic = Diagnostic::error(code, message).path(dotted(&self.path));
        if let Some(source) = node.origin {
            diagnostic = diagnostic.at(source, span);
        }
        let problems = &mut self.findings.problems;
        problems.push(diagnostic);
        let last = problems.len() - 1;
        &mut problems[last]
    }

    /// A value as it was written, shortened: `1e5` and not 100000.
    fn written(&self, node: &Node) -> String {
        let text = node.origin.and_then(|origin| self.texts.get(origin));
        let as_written = text.and_then(|source| source.text.get(node.span.clone()));
        match (&node.value, as_written) {
            (Value::Integer(_) | Value::Float(_) | Value::Bool(_) | Value::Datetime(_), Some(text))
                if !text.is_empty() =>
            {
                shortened(text)
            }
            _ => brief(node),
        }
    }

    /// How a value is written where this one was given: in a file as it is, on a command line with the key.
    fn in_place(&self, node: &Node, value: &str) -> String {
        let text = node.origin.and_then(|origin| self.texts.get(origin));
        match text {
            Some(source) if source.layer == Layer::Override => {
                format!("--set '{}={value}'", dotted(&self.path))
            }
            _ => value.to_owned(),
        }
    }

    /// The current path in messages.
    fn name(&self) -> String {
        if self.path.is_empty() {
            "the config".into()
        } else {
            format!("`{}`", dotted(&self.path))
        }
    }

    fn within(&mut self, segment: Segment, check: impl FnOnce(&mut Self)) {
        self.path.push(segment);
        check(self);
        self.path.pop();
    }

    fn value(&mut self, node: &Node, schema: &Json) {
        let schema = resolve(self.root, schema);
        if let Some(tag) = tag_of(schema) {
            return self.tagged(node, schema, tag);
        }
        if let Some(texts) = allowed_texts(schema) {
            return self.text_of(node, &texts);
        }
        if let Some(alternatives) = schema["anyOf"].as_array() {
            let alternatives: Vec<&Json> = alternatives.iter().map(|one| resolve(self.root, one)).collect();
            return match alternatives
                .iter()
                .find(|one| type_matches(node, one["type"].as_str().unwrap_or("")))
            {
                Some(alternative) => self.value(node, alternative),
                None => {
                    let types: Vec<_> = alternatives
                        .iter()
                        .map(|one| type_phrase(self.root, one))
                        .collect();
                    self.wrong_type(node, &types.join(" or "));
                }
            };
        }
        match schema["type"].as_str() {
            None => self.anything(node),
            Some(name) if !type_matches(node, name) => self.wrong_type(node, &type_phrase(self.root, schema)),
            Some("object") => self.table(node, schema),
            Some("array") => self.list(node, schema),
            Some("string") => self.text(node, schema),
            Some("integer" | "number") => self.number(node, schema),
            Some(_) => {}
        }
    }

    fn wrong_type(&mut self, node: &Node, wanted: &str) {
        let written = match &node.value {
            Value::Table(_) | Value::Array(_) => node.value.type_name().to_owned(),
            _ => format!("`{}`, {}", self.written(node), node.value.type_name()),
        };
        let message = format!("{} must be {wanted}, but is {written}", self.name());
        let of_numbers = wanted.contains("number") || wanted.contains("integer");
        let help = match &node.value {
            Value::String(text) if of_numbers => toml_number(text).map(|number| {
                if number == text.trim() {
                    format!("write it without quotes: {}", self.in_place(node, &number))
                } else {
                    format!("TOML writes this number {}", self.in_place(node, &number))
                }
            }),
            Value::String(text) if wanted == "true or false" => {
                let switch = match text.trim().to_ascii_lowercase().as_str() {
                    "true" | "yes" | "on" | "y" => Some("true"),
                    "false" | "no" | "off" | "n" => Some("false"),
                    _ => None,
                };
                switch.map(|switch| match switch == text {
                    true => format!("write it without quotes: {}", self.in_place(node, switch)),
                    false => format!("write {}", self.in_place(node, switch)),
                })
            }
            Value::Integer(_) | Value::Float(_) | Value::Bool(_) | Value::Datetime(_)
                if wanted.starts_with("a text") =>
            {
                let text = format!("\"{}\"", self.written(node));
                Some(format!("write it in quotes: {}", self.in_place(node, &text)))
            }
            _ => None,
        };
        let help = help.unwrap_or_else(|| format!("write {wanted} in its place{}", self.see()));
        self.bad_value(node, codes::WRONG_TYPE, message).help = Some(help);
    }

    fn tagged(&mut self, node: &Node, schema: &Json, tag: &str) {
        let Value::Table(table) = &node.value else {
            return self.wrong_type(node, &format!("a table with `{tag}`"));
        };
        let variants: Vec<(&str, &Json)> = schema["oneOf"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|variant| Some((variant["properties"][tag]["const"].as_str()?, variant)))
            .collect();
        let names: Vec<&str> = variants.iter().map(|(name, _)| *name).collect();
        let Some(choice) = table.get(tag) else {
            let message = format!("{} must say which `{tag}` it is", self.name());
            let help = format!("add `{tag} = \"{}\"` or another of the allowed ones", names[0]);
            let span = if self.path.is_empty() {
                0..0
            } else {
                place_of_table(node)
            };
            self.findings.bad.push(self.path.clone());
            let diagnostic = self.problem(node, span, codes::MISSING_KEY, message);
            diagnostic.help = Some(help);
            diagnostic.allowed = names.iter().map(|name| (*name).to_owned()).collect();
            return;
        };
        let chosen = match &choice.value {
            Value::String(text) => variants.iter().find(|(name, _)| name == text),
            _ => None,
        };
        match chosen {
            Some((_, variant)) => self.table_of(node, variant, Some((schema, tag))),
            None => {
                // Without a known variant nothing can be said of the other keys, so all of the table is left out.
                self.findings.bad.push(self.path.clone());
                self.within(Segment::Key(tag.to_owned()), |checker| {
                    checker.text_of(choice, &names)
                });
            }
        }
    }

    fn table(&mut self, node: &Node, schema: &Json) {
        self.table_of(node, schema, None);
    }

    fn table_of(&mut self, node: &Node, schema: &Json, union: Option<(&Json, &str)>) {
        let Value::Table(table) = &node.value else { return };
        let empty = serde_json::Map::new();
        let properties = schema["properties"].as_object().unwrap_or(&empty);
        let closed = schema["additionalProperties"] == Json::Bool(false);
        for (key, value) in table {
            self.within(Segment::Key(key.clone()), |checker| match properties.get(key) {
                Some(property) => checker.value(value, property),
                None if closed => checker.unknown_key(key, value, properties, union),
                None => checker.anything(value),
            });
        }
        for key in schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Json::as_str)
        {
            if table.contains_key(key) {
                continue;
            }
            let property = resolve(self.root, &properties[key]);
            let place = match self.path.as_slice() {
                [] => "the file".to_owned(),
                _ => self.name(),
            };
            let message = format!("{place} lacks `{key}`, which must be given");
            let help = match (key, properties[key]["description"].as_str()) {
                ("config_version", _) => {
                    format!(
                        "add `config_version = {}` as the first line",
                        crate::CONFIG_VERSION
                    )
                }
                (_, Some(text)) => format!("add `{key} = …`, {}: {text}", type_phrase(self.root, property)),
                (_, None) => format!("add `{key} = …`, {}", type_phrase(self.root, property)),
            };
            self.findings.bad.push(self.path.clone());
            let span = if self.path.is_empty() {
                0..0
            } else {
                place_of_table(node)
            };
            let diagnostic = self.problem(node, span, codes::MISSING_KEY, message);
            diagnostic.help = Some(help);
            let section = std::mem::take(&mut diagnostic.path);
            diagnostic.path = if section.is_empty() {
                key.to_owned()
            } else {
                format!("{section}.{key}")
            };
        }
    }

    fn unknown_key(
        &mut self,
        key: &str,
        value: &Node,
        properties: &serde_json::Map<String, Json>,
        union: Option<(&Json, &str)>,
    ) {
        if let Some(instead) = removed::instead(&self.path, value) {
            self.findings.bad.push(self.path.clone());
            // A key that was never here is no key that was removed.
            let message = format!("{} is no key here: {}", self.name(), instead.why);
            let diagnostic = self.problem(value, value.key_span.clone(), codes::REMOVED_KEY, message);
            diagnostic.at_key = true;
            diagnostic.help = Some(instead.help);
            return;
        }
        // What other sections have is known of the config alone.
        let sections_of_key = self.catalog.map(Catalog::sections_of_key);
        let section = &self.path[..self.path.len() - 1];
        let section_name = section_phrase(section);
        let bare_section: Vec<_> = section
            .iter()
            .filter(|segment| matches!(segment, Segment::Key(_)))
            .cloned()
            .collect();
        let bare_section = dotted(&bare_section);
        let near = nearest(key, properties.keys().map(String::as_str));
        let mut message = format!("{section_name} has no key `{}`", quoted_key(key));
        let other_variants: Vec<&str> = union
            .into_iter()
            .flat_map(|(schema, tag)| {
                let variants = schema["oneOf"].as_array().into_iter().flatten();
                variants
                    .filter(|variant| variant["properties"].get(key).is_some())
                    .filter_map(move |variant| variant["properties"][tag]["const"].as_str())
            })
            .collect();
        let elsewhere: Vec<&str> = sections_of_key
            .and_then(|sections| sections.get(key))
            .into_iter()
            .flatten()
            .map(String::as_str)
            .filter(|known| *known != bare_section)
            .collect();
        let help = if let (false, Some((_, tag))) = (other_variants.is_empty(), union) {
            let kinds = other_variants.iter().map(|kind| format!("`{tag} = \"{kind}\"`"));
            Some(format!(
                "it belongs to {}; remove it, or choose that {tag}",
                join(kinds)
            ))
        } else if let Some(near) = near.filter(|near| is_misspelt(key, near) || elsewhere.is_empty()) {
            Some(format!("did you mean `{near}`?"))
        } else if !elsewhere.is_empty() {
            Some(elsewhere_help(key, &elsewhere))
        } else {
            sections_of_key.and_then(|all| {
                let known = nearest(key, all.keys().map(String::as_str))?;
                let sections: Vec<&str> = all.get(known)?.iter().map(String::as_str).collect();
                Some(format!(
                    "perhaps `{known}` is meant: {}",
                    elsewhere_help(known, &sections)
                ))
            })
        };
        if matches!(value.value, Value::Table(_)) && section.is_empty() {
            message = format!("there is no section `[{}]`", quoted_key(key));
        }
        let near = near.map(str::to_owned);
        let allowed = properties.keys().cloned().collect();
        self.findings.bad.push(self.path.clone());
        let diagnostic = self.problem(value, value.key_span.clone(), codes::UNKNOWN_KEY, message);
        diagnostic.at_key = true;
        diagnostic.help = help;
        diagnostic.nearest = near;
        diagnostic.allowed = allowed;
    }

    /// Entries of free-form tables: whatever JSON can hold.
    fn anything(&mut self, node: &Node) {
        match &node.value {
            Value::Table(table) => {
                for (key, value) in table {
                    self.within(Segment::Key(key.clone()), |checker| checker.anything(value));
                }
            }
            Value::Array(entries) => {
                for (index, entry) in entries.iter().enumerate() {
                    self.within(Segment::Index(index), |checker| checker.anything(entry));
                }
            }
            Value::Datetime(_) => self.wrong_type(node, "a number, a text, true or false, a list or a table"),
            Value::Float(float) if !float.is_finite() => self.not_finite(node),
            _ => {}
        }
    }

    fn not_finite(&mut self, node: &Node) {
        let message = format!(
            "{} is `{}`, but must be a finite number",
            self.name(),
            self.written(node)
        );
        self.bad_value(node, codes::OUT_OF_RANGE, message);
    }

    fn text_of(&mut self, node: &Node, allowed: &[&str]) {
        let quoted: Vec<String> = allowed.iter().map(|text| format!("\"{text}\"")).collect();
        let Value::String(text) = &node.value else {
            let message = format!(
                "{} must be one of {}, but is {}",
                self.name(),
                join(quoted.iter().cloned()),
                node.value.type_name()
            );
            self.bad_value(node, codes::WRONG_TYPE, message).allowed = quoted;
            return;
        };
        if allowed.contains(&text.as_str()) {
            return;
        }
        let near = nearest(text, allowed.iter().copied()).map(str::to_owned);
        let message = format!("{} cannot be `{}`", self.name(), brief(node));
        let diagnostic = self.bad_value(node, codes::NOT_ALLOWED, message);
        diagnostic.help = near.as_ref().map(|near| format!("did you mean \"{near}\"?"));
        diagnostic.nearest = near;
        diagnostic.allowed = quoted;
    }

    fn text(&mut self, node: &Node, schema: &Json) {
        let Value::String(text) = &node.value else { return };
        let count = text.chars().count() as u64;
        self.length(
            node,
            count,
            "character",
            schema["minLength"].as_u64(),
            schema["maxLength"].as_u64(),
        );
    }

    fn length(&mut self, node: &Node, count: u64, noun: &str, least: Option<u64>, most: Option<u64>) {
        if least.is_none_or(|least| count >= least) && most.is_none_or(|most| count <= most) {
            return;
        }
        let wanted = match (least, most) {
            (Some(least), Some(most)) if least == most => format!("exactly {least}"),
            (Some(least), Some(most)) => format!("{least} to {most}"),
            (Some(least), None) => format!("at least {least}"),
            (None, most) => format!("at most {}", most.unwrap_or_default()),
        };
        let plural = |noun: &str| match noun {
            "entry" => "entries".to_owned(),
            noun => format!("{noun}s"),
        };
        let has = if count == 1 {
            format!("1 {noun}")
        } else {
            format!("{count} {}", plural(noun))
        };
        let message = format!("{} has {has}, but must have {wanted}", self.name());
        let help = format!("write {wanted} {}{}", plural(noun), self.see());
        self.bad_value(node, codes::WRONG_LENGTH, message).help = Some(help);
    }

    fn list(&mut self, node: &Node, schema: &Json) {
        let Value::Array(entries) = &node.value else {
            return;
        };
        let bounds = (schema["minItems"].as_u64(), schema["maxItems"].as_u64());
        self.length(node, entries.len() as u64, "entry", bounds.0, bounds.1);
        for (index, entry) in entries.iter().enumerate() {
            self.within(Segment::Index(index), |checker| {
                checker.value(entry, &schema["items"])
            });
        }
        if schema["uniqueItems"] == Json::Bool(true) {
            let mut seen = std::collections::BTreeSet::new();
            for (index, entry) in entries.iter().enumerate() {
                let Some(json) = entry.to_json() else { continue };
                if !seen.insert(json.to_string()) {
                    let message = format!("{} has `{}` twice", self.name(), brief(entry));
                    self.within(Segment::Index(index), |checker| {
                        checker.bad_value(entry, codes::REPEATED_ENTRY, message).help =
                            Some("remove one".into());
                    });
                }
            }
        }
    }

    fn number(&mut self, node: &Node, schema: &Json) {
        let value = match &node.value {
            Value::Integer(integer) => *integer as f64,
            Value::Float(float) if float.is_finite() => *float,
            _ => return self.not_finite(node),
        };
        let exact = match &node.value {
            Value::Integer(integer) => Some(*integer),
            Value::Float(float) => whole(*float),
            _ => None,
        };
        // Integers are compared as such: a seed of 2^63 - 1 is not 2^63.
        let compare = |bound: &Json| match (exact, bound.as_i64(), bound.as_u64(), bound.as_f64()) {
            (Some(exact), Some(bound), _, _) => Some(exact.cmp(&bound.into())),
            (Some(exact), None, Some(bound), _) => Some(exact.cmp(&bound.into())),
            (_, _, _, Some(bound)) => value.partial_cmp(&bound),
            _ => None,
        };
        use std::cmp::Ordering::{Equal, Greater, Less};
        let outside = compare(&schema["minimum"]) == Some(Less)
            || compare(&schema["maximum"]) == Some(Greater)
            || matches!(compare(&schema["exclusiveMinimum"]), Some(Less | Equal));
        if outside {
            let message = format!(
                "{} is {}, but must be {}",
                self.name(),
                self.written(node),
                range_phrase(schema)
            );
            self.bad_value(node, codes::OUT_OF_RANGE, message).allowed = vec![range_phrase(schema)];
        }
        if let (Some(factor), Some(exact)) = (schema["multipleOf"].as_i64(), exact)
            && exact % i128::from(factor) != 0
        {
            let message = format!(
                "{} is {}, but must be a multiple of {factor}",
                self.name(),
                self.written(node)
            );
            let factor = i128::from(factor);
            let below = exact - exact.rem_euclid(factor);
            let near: Vec<String> = [below, below + factor]
                .into_iter()
                .filter(|near| in_range(*near, schema))
                .map(|near| near.to_string())
                .collect();
            self.bad_value(node, codes::OUT_OF_RANGE, message).help =
                Some(format!("nearest that would do: {}", near.join(" or ")));
        }
    }
}

/// Whether a whole number lies within the range of a schema.
fn in_range(value: i128, schema: &Json) -> bool {
    let bound = |key: &str| schema[key].as_i64().map(i128::from);
    bound("minimum").is_none_or(|least| value >= least) && bound("maximum").is_none_or(|most| value <= most)
}

/// Where to point for a table that lacks something: the key or header that opens it.
fn place_of_table(node: &Node) -> std::ops::Range<usize> {
    if node.key_span.is_empty() {
        node.span.clone()
    } else {
        node.key_span.clone()
    }
}

fn type_matches(node: &Node, name: &str) -> bool {
    match &node.value {
        Value::Table(_) => name == "object",
        Value::Array(_) => name == "array",
        Value::String(_) => name == "string",
        Value::Integer(_) => name == "integer" || name == "number",
        // As in JSON schema, 10.0 is an integer. What is not finite is reported as such.
        Value::Float(float) => name == "number" || name == "integer" && whole(*float).is_some(),
        Value::Bool(_) => name == "boolean",
        Value::Datetime(_) => false,
    }
}
