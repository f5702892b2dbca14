//! The config as a tree of values, each of which remembers where it was written; and how trees are laid over each
//! other.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::Value as Json;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::codes;
use crate::diagnostic::Diagnostic;
use crate::schema::View;

/// Index of the text that a value was written in; see `Report::sources`. `None` for a default.
pub(crate) type Origin = Option<usize>;

/// A value and where it was written.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) origin: Origin,
    pub(crate) span: Range<usize>,
    /// Where the key was written that leads here; for entries of lists, the value's place.
    pub(crate) key_span: Range<usize>,
}

/// A value. Tables are sorted by key, so that a tree does not depend on the order of the text.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Table(BTreeMap<String, Node>),
    Array(Vec<Node>),
    String(String),
    /// Any integer that TOML can write; the wide type holds what i64 and u64 hold.
    Integer(i128),
    Float(f64),
    Bool(bool),
    Datetime(String),
}

impl Value {
    /// The type, with its article, in messages.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Table(_) => "a table",
            Self::Array(_) => "a list",
            Self::String(_) => "a text",
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a number",
            Self::Bool(_) => "true or false",
            Self::Datetime(_) => "a date",
        }
    }
}

/// One segment of the path to a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Segment {
    Key(String),
    Index(usize),
}

/// A path as it is written in TOML: bare keys as they are, others quoted.
pub(crate) fn dotted(path: &[Segment]) -> String {
    let mut text = String::new();
    for segment in path {
        if !text.is_empty() {
            text.push('.');
        }
        match segment {
            Segment::Key(key) => text.push_str(&quoted_key(key)),
            Segment::Index(index) => text.push_str(&index.to_string()),
        }
    }
    text
}

/// A key as a segment of a path: as it is if it is bare, else in quotes.
pub fn quoted_key(key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !key.is_empty() && key.chars().all(bare) {
        key.to_owned()
    } else {
        format!("{key:?}")
    }
}

impl Node {
    pub(crate) fn empty_table(origin: Origin) -> Self {
        Self {
            value: Value::Table(BTreeMap::new()),
            origin,
            span: 0..0,
            key_span: 0..0,
        }
    }

    pub(crate) fn get(&self, segment: &Segment) -> Option<&Node> {
        match (&self.value, segment) {
            (Value::Table(table), Segment::Key(key)) => table.get(key),
            (Value::Array(entries), Segment::Index(index)) => entries.get(*index),
            // A single table stands for a list of one (accelerators).
            (Value::Table(_), Segment::Index(0)) => Some(self),
            _ => None,
        }
    }

    /// The value at a path, or nothing.
    pub(crate) fn lookup(&self, path: &[Segment]) -> Option<&Node> {
        path.iter().try_fold(self, |node, segment| node.get(segment))
    }

    /// Removes the value at a path, if there is one. An entry of a list is removed with its index, which moves those
    /// behind it; remove from the back.
    pub(crate) fn remove(&mut self, path: &[Segment]) {
        let Some((last, parents)) = path.split_last() else {
            return;
        };
        let mut node = self;
        for segment in parents {
            let next = match (&mut node.value, segment) {
                (Value::Table(table), Segment::Key(key)) => table.get_mut(key),
                (Value::Array(entries), Segment::Index(index)) => entries.get_mut(*index),
                _ => None,
            };
            match next {
                Some(next) => node = next,
                None => return,
            }
        }
        match (&mut node.value, last) {
            (Value::Table(table), Segment::Key(key)) => drop(table.remove(key)),
            (Value::Array(entries), Segment::Index(index)) if *index < entries.len() => {
                drop(entries.remove(*index));
            }
            _ => {}
        }
    }

    /// As JSON. Whole numbers become integers, so that `10.0` is taken where an integer is wanted, as JSON schema
    /// has it. `None` where JSON has no such value.
    pub(crate) fn to_json(&self) -> Option<Json> {
        Some(match &self.value {
            Value::Table(table) => Json::Object(
                table
                    .iter()
                    .map(|(key, node)| Some((key.clone(), node.to_json()?)))
                    .collect::<Option<serde_json::Map<_, _>>>()?,
            ),
            Value::Array(entries) => Json::Array(entries.iter().map(Node::to_json).collect::<Option<_>>()?),
            Value::String(text) => Json::String(text.clone()),
            Value::Integer(integer) => integer_to_json(*integer)?,
            Value::Float(float) => match whole(*float) {
                Some(integer) => integer_to_json(integer)?,
                None => Json::Number(serde_json::Number::from_f64(*float)?),
            },
            Value::Bool(bool) => Json::Bool(*bool),
            Value::Datetime(_) => return None,
        })
    }
}

fn integer_to_json(integer: i128) -> Option<Json> {
    u64::try_from(integer)
        .map(Json::from)
        .or_else(|_| i64::try_from(integer).map(Json::from))
        .ok()
}

/// The integer that a float is, if it is one that TOML could have written as an integer.
pub(crate) fn whole(float: f64) -> Option<i128> {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0; // 2^63
    (float.fract() == 0.0 && float.abs() < LIMIT).then_some(float as i128)
}

/// Parses TOML. What cannot be parsed is reported, and the rest is kept.
pub(crate) fn parse(text: &str, source: usize, problems: &mut Vec<Diagnostic>) -> Node {
    let (table, errors) = DeTable::parse_recoverable(text);
    problems.extend(errors.iter().map(|error| syntax_error(error, source, text)));
    let span = table.span();
    from_table(table.get_ref(), source, span.clone(), span, problems)
}

/// A syntax error of the TOML parser as a diagnostic.
fn syntax_error(error: &toml::de::Error, source: usize, text: &str) -> Diagnostic {
    let span = error.span().unwrap_or(text.len()..text.len());
    if let Some((value, at, help)) = bare_value(text, span.start) {
        return Diagnostic::error(codes::SYNTAX, format!("this is not TOML: `{value}` is no value"))
            .at(source, at)
            .help(help);
    }
    let message = format!(
        "this is not TOML: {}",
        error.message().lines().collect::<Vec<_>>().join("; ")
    );
    Diagnostic::error(codes::SYNTAX, message)
        .at(source, span)
        .help(syntax_help(error.message()))
}

/// The value of the line of an error, if it is a word or a number as other languages have them, with its place and what
/// TOML writes.
fn bare_value(text: &str, at: usize) -> Option<(&str, Range<usize>, String)> {
    let before = text.get(..at)?;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = text[start..].lines().next()?;
    let (key, value) = line.split_once('=')?;
    // An error in the key is another matter.
    if at < start + key.len() || key.trim().is_empty() || key.contains(['"', '\'', '#', '{', '[']) {
        return None;
    }
    let value = value.split('#').next()?.trim();
    let word = |c: char| c.is_alphanumeric() || "_-+./~\\:@".contains(c);
    if value.is_empty() || !value.chars().all(word) || value.len() > 200 {
        return None;
    }
    let offset = start + key.len() + 1 + line[key.len() + 1..].find(value)?;
    let help = match value.to_ascii_lowercase().as_str() {
        "yes" | "on" | "true" => "TOML writes true".to_owned(),
        "no" | "off" | "false" => "TOML writes false".to_owned(),
        "none" | "null" | "nil" | "~" => {
            "TOML has no such value: leave the key out, and its default is in force".to_owned()
        }
        _ => match crate::number::toml_number(value) {
            Some(number) if number != value => format!("TOML writes this number {number}"),
            Some(_) => return None,
            None if value.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-'))
                && value.parse::<f64>().is_ok() =>
            {
                return None;
            }
            None => format!("a text stands in quotes: \"{}\"", value.replace('\\', "\\\\")),
        },
    };
    Some((value, offset..offset + value.len(), help))
}

/// What TOML wants where its parser gave up.
fn syntax_help(message: &str) -> &'static str {
    let has = |part: &str| message.contains(part);
    if has("quoted") {
        "write texts in quotes, for example `name = \"digits\"`"
    } else if has("duplicate key") {
        "keep one of the two; a section, too, stands in a file once"
    } else if has("unclosed table") {
        "the name of a section stands in brackets, `[run]`, and that of a list of tables in two, `[[rewards]]`"
    } else {
        "a line is `key = value`, a value a text in quotes, a number, true or false, a list in [ ] or a table in { }; \
         sections begin with `[name]`"
    }
}

fn from_table(
    table: &DeTable<'_>,
    source: usize,
    span: Range<usize>,
    key_span: Range<usize>,
    problems: &mut Vec<Diagnostic>,
) -> Node {
    let entries = table
        .iter()
        .map(|(key, value)| {
            (
                key.get_ref().clone().into_owned(),
                from_value(value, source, key.span(), problems),
            )
        })
        .collect();
    Node {
        value: Value::Table(entries),
        origin: Some(source),
        span,
        key_span,
    }
}

/// A parsed TOML value as a node.
pub(crate) fn from_value(
    value: &Spanned<DeValue<'_>>,
    source: usize,
    key_span: Range<usize>,
    problems: &mut Vec<Diagnostic>,
) -> Node {
    let span = value.span();
    let converted = match value.get_ref() {
        DeValue::Table(table) => return from_table(table, source, span, key_span, problems),
        DeValue::Array(entries) => Value::Array(
            entries
                .iter()
                .map(|entry| from_value(entry, source, entry.span(), problems))
                .collect(),
        ),
        DeValue::String(text) => Value::String(text.clone().into_owned()),
        DeValue::Integer(integer) => match i128::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(value) if i64::try_from(value).is_ok() => Value::Integer(value),
            // What is left of what the parser could not read, and has said so.
            _ if integer.as_str().is_empty() => Value::Integer(0),
            _ => {
                let message = format!("`{integer}` is too large: TOML integers have 64 bits");
                problems.push(Diagnostic::error(codes::OUT_OF_RANGE, message).at(source, span.clone()));
                Value::Integer(0)
            }
        },
        DeValue::Float(float) => match float.as_str().parse() {
            Ok(value) => Value::Float(value),
            Err(_) => {
                // An empty one is what is left of what the parser could not read, and has said so.
                if !float.as_str().is_empty() {
                    let message = format!("`{float}` is not a number");
                    problems.push(Diagnostic::error(codes::SYNTAX, message).at(source, span.clone()));
                }
                Value::Float(0.0)
            }
        },
        DeValue::Boolean(bool) => Value::Bool(*bool),
        DeValue::Datetime(datetime) => Value::Datetime(datetime.to_string()),
    };
    Node {
        value: converted,
        origin: Some(source),
        span,
        key_span,
    }
}

/// Defaults as a tree. `null` is left out: TOML has none.
pub(crate) fn from_json(json: &Json) -> Option<Node> {
    let value = match json {
        Json::Null => return None,
        Json::Object(object) => Value::Table(
            object
                .iter()
                .filter_map(|(key, value)| Some((key.clone(), from_json(value)?)))
                .collect(),
        ),
        Json::Array(entries) => Value::Array(entries.iter().filter_map(from_json).collect()),
        Json::String(text) => Value::String(text.clone()),
        Json::Bool(bool) => Value::Bool(*bool),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => Value::Integer(integer.into()),
            (None, Some(integer)) => Value::Integer(integer.into()),
            (None, None) => Value::Float(number.as_f64()?),
        },
    };
    Some(Node {
        value,
        origin: None,
        span: 0..0,
        key_span: 0..0,
    })
}

/// The variant that a table chooses, by the key that chooses it.
fn variant<'a>(table: &'a BTreeMap<String, Node>, tag: &str) -> Option<&'a str> {
    match &table.get(tag)?.value {
        Value::String(kind) => Some(kind),
        _ => None,
    }
}

/// Lays `over` on `base`: tables key by key, everything else as a whole. A table that chooses another variant than
/// the one below replaces it, since keys of the one mean nothing in the other.
pub(crate) fn merge(base: &mut Node, over: Node, schema: &View<'_>) {
    match (&mut base.value, over.value) {
        (Value::Table(below), Value::Table(above)) => {
            if let Some(tag) = schema.tag() {
                let (old, new) = (variant(below, tag), variant(&above, tag));
                if new.is_some() && old.is_some() && old != new {
                    below.clear();
                }
            }
            for (key, node) in above {
                match below.get_mut(&key) {
                    Some(existing) => merge(existing, node, &schema.child(&Segment::Key(key))),
                    None => drop(below.insert(key, node)),
                }
            }
            if over.origin.is_some() {
                base.origin = over.origin;
                base.span = over.span;
                base.key_span = over.key_span;
            }
        }
        (_, value) => {
            *base = Node {
                value,
                origin: over.origin,
                span: over.span,
                key_span: over.key_span,
            };
        }
    }
}
