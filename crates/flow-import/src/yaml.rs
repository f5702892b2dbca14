//! From YAML text to a tree with places. The parser is saphyr's; the tree is built from its events here, so that every
//! key knows its line, and so that depth and size are bounded whatever the text.

use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Tag};

use crate::error::ImportError;
use crate::scalar::{Scalar, resolve};

/// Nesting beyond this is refused. A config has four levels.
const MAX_DEPTH: usize = 64;
/// Nodes beyond this, copies by alias included, are refused: aliases of aliases grow exponentially.
const MAX_NODES: usize = 20_000;

/// A place in the text; line and column count from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub line: usize,
    pub column: usize,
}

impl From<Marker> for Place {
    fn from(marker: Marker) -> Self {
        Self {
            line: marker.line(),
            column: marker.col() + 1,
        }
    }
}

/// A value with its place.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub place: Place,
    pub value: Value,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// The text as written, without quotes, and what it means.
    Scalar {
        raw: String,
        scalar: Scalar,
    },
    List(Vec<Node>),
    Map(Vec<Pair>),
}

/// One entry of a map.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub key: String,
    pub place: Place,
    pub node: Node,
}

impl Node {
    pub fn map(&self) -> Option<&[Pair]> {
        match &self.value {
            Value::Map(pairs) => Some(pairs),
            _ => None,
        }
    }

    pub fn list(&self) -> Option<&[Node]> {
        match &self.value {
            Value::List(nodes) => Some(nodes),
            _ => None,
        }
    }

    pub fn scalar(&self) -> Option<&Scalar> {
        match &self.value {
            Value::Scalar { scalar, .. } => Some(scalar),
            _ => None,
        }
    }

    pub fn text(&self) -> Option<&str> {
        match self.scalar() {
            Some(Scalar::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub fn is_null(&self) -> bool {
        self.scalar() == Some(&Scalar::Null)
    }

    pub fn get(&self, key: &str) -> Option<&Node> {
        self.map()?
            .iter()
            .find(|pair| pair.key == key)
            .map(|pair| &pair.node)
    }

    /// The value on one line, as YAML's flow style. Free of control characters.
    pub fn flow(&self) -> String {
        match &self.value {
            Value::Scalar { raw, scalar } => match scalar {
                Scalar::Null => "null".into(),
                Scalar::Text(text) => quote_if_needed(text),
                _ => raw.clone(),
            },
            Value::List(nodes) => {
                let nodes: Vec<String> = nodes.iter().map(Node::flow).collect();
                format!("[{}]", nodes.join(", "))
            }
            Value::Map(pairs) => {
                let pairs: Vec<String> = pairs
                    .iter()
                    .map(|pair| format!("{}: {}", quote_if_needed(&pair.key), pair.node.flow()))
                    .collect();
                format!("{{{}}}", pairs.join(", "))
            }
        }
    }

    fn size(&self) -> usize {
        1 + match &self.value {
            Value::Scalar { .. } => 0,
            Value::List(nodes) => nodes.iter().map(Node::size).sum(),
            Value::Map(pairs) => pairs.iter().map(|pair| pair.node.size()).sum(),
        }
    }
}

/// A text as it stands if a reader takes it for that text, otherwise in quotes.
pub(crate) fn quote_if_needed(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_-./~@+ ".contains(c);
    let bare = text.chars().all(plain) && text.trim() == text && matches!(resolve(text), Scalar::Text(_));
    if bare { text.to_owned() } else { quote(text) }
}

/// A text in quotes, its control characters escaped.
pub(crate) fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            // What moves the cursor, hides or reorders what stands around it.
            c if c.is_control()
                || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}') =>
            {
                quoted.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// Reads a text of one document.
pub(crate) fn parse(text: &str) -> Result<Node, ImportError> {
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| syntax(&error, text))?;
        builder.event(event, span.start.into())?;
    }
    Ok(builder.root.unwrap_or(Node {
        place: Place { line: 1, column: 1 },
        value: Value::Scalar {
            raw: String::new(),
            scalar: Scalar::Null,
        },
    }))
}

fn syntax(error: &ScanError, text: &str) -> ImportError {
    let Place { mut line, mut column } = (*error.marker()).into();
    // The parser reports what is missing at the end in the line after the last; people have no such line.
    let lines = text.lines().count().max(1);
    if line > lines {
        line = lines;
        column = text.lines().last().map_or(0, |last| last.chars().count()) + 1;
    }
    ImportError::Syntax {
        line,
        column,
        message: error.info().to_owned(),
    }
}

fn unsupported(place: Place, what: impl Into<String>) -> ImportError {
    ImportError::Unsupported {
        line: place.line,
        column: place.column,
        what: what.into(),
    }
}

/// A list or map that is not yet complete.
struct Open {
    place: Place,
    anchor: usize,
    body: Body,
}

enum Body {
    List(Vec<Node>),
    Map {
        pairs: Vec<Pair>,
        key: Option<(String, Place)>,
        merged: Vec<Node>,
    },
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    root: Option<Node>,
    documents: usize,
}

impl Builder {
    fn event(&mut self, event: Event<'_>, place: Place) -> Result<(), ImportError> {
        match event {
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(unsupported(
                        place,
                        "a second document begins here; convert them one by one",
                    ));
                }
            }
            Event::Scalar(raw, style, anchor, tag) => {
                let scalar = scalar(&raw, style, tag.as_deref(), place)?;
                let value = Value::Scalar {
                    raw: raw.into_owned(),
                    scalar,
                };
                self.complete(Node { place, value }, anchor, 1)?;
            }
            Event::Alias(id) => {
                let node = self
                    .anchors
                    .get(&id)
                    .cloned()
                    .ok_or_else(|| unsupported(place, "this alias stands inside of what it refers to"))?;
                let size = node.size();
                self.complete(node, 0, size)?;
            }
            Event::SequenceStart(anchor, tag) => {
                collection_tag(tag.as_deref(), place)?;
                self.begin(place, anchor, Body::List(Vec::new()))?;
            }
            Event::MappingStart(anchor, tag) => {
                collection_tag(tag.as_deref(), place)?;
                let body = Body::Map {
                    pairs: Vec::new(),
                    key: None,
                    merged: Vec::new(),
                };
                self.begin(place, anchor, body)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(place)?,
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
        Ok(())
    }

    fn begin(&mut self, place: Place, anchor: usize, body: Body) -> Result<(), ImportError> {
        if self.open.len() == MAX_DEPTH {
            let what = format!("nested more than {MAX_DEPTH} levels deep; a config has four");
            return Err(unsupported(place, what));
        }
        self.open.push(Open { place, anchor, body });
        Ok(())
    }

    fn end(&mut self, place: Place) -> Result<(), ImportError> {
        let Some(open) = self.open.pop() else {
            return Err(unsupported(place, "an end without a beginning"));
        };
        let value = match open.body {
            Body::List(nodes) => Value::List(nodes),
            Body::Map {
                mut pairs, merged, ..
            } => {
                for node in merged {
                    merge(&mut pairs, &node)?;
                }
                Value::Map(pairs)
            }
        };
        let node = Node {
            place: open.place,
            value,
        };
        self.complete(node, open.anchor, 1)
    }

    /// Puts a finished node where it belongs.
    fn complete(&mut self, node: Node, anchor: usize, size: usize) -> Result<(), ImportError> {
        self.nodes += size;
        if self.nodes > MAX_NODES {
            let what = format!("more than {MAX_NODES} values, copies by alias included");
            return Err(unsupported(node.place, what));
        }
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        let Some(open) = self.open.last_mut() else {
            self.root.get_or_insert(node);
            return Ok(());
        };
        match &mut open.body {
            Body::List(nodes) => nodes.push(node),
            Body::Map { pairs, key, merged } => match key.take() {
                None => {
                    let Value::Scalar { raw, .. } = node.value else {
                        return Err(unsupported(node.place, "a key must be a plain word"));
                    };
                    *key = Some((raw, node.place));
                }
                Some((name, _)) if name == "<<" => merged.push(node),
                Some((key, place)) => {
                    if let Some(first) = pairs.iter().find(|pair| pair.key == key) {
                        return Err(ImportError::RepeatedKey {
                            line: place.line,
                            column: place.column,
                            key: quote_if_needed(&key),
                            first_line: first.place.line,
                        });
                    }
                    pairs.push(Pair { key, place, node });
                }
            },
        }
        Ok(())
    }
}

/// `<<: *anchor`: the map's own keys win, then those of the first map merged.
fn merge(pairs: &mut Vec<Pair>, node: &Node) -> Result<(), ImportError> {
    match &node.value {
        Value::Map(merged) => {
            for pair in merged {
                if !pairs.iter().any(|own| own.key == pair.key) {
                    pairs.push(pair.clone());
                }
            }
            Ok(())
        }
        Value::List(maps) if maps.iter().all(|map| map.map().is_some()) => {
            maps.iter().try_for_each(|map| merge(pairs, map))
        }
        _ => Err(unsupported(
            node.place,
            "`<<` takes a map or a list of maps, by alias",
        )),
    }
}

fn scalar(raw: &str, style: ScalarStyle, tag: Option<&Tag>, place: Place) -> Result<Scalar, ImportError> {
    let plain = style == ScalarStyle::Plain;
    let suffix = match tag {
        Some(tag) if tag.is_yaml_core_schema() => tag.suffix.as_str(),
        Some(tag) if tag.handle == "!" && tag.suffix.is_empty() => "str",
        Some(tag) => return Err(foreign_tag(tag, place)),
        None => {
            return Ok(if plain {
                resolve(raw)
            } else {
                Scalar::Text(raw.to_owned())
            });
        }
    };
    let resolved = resolve(raw);
    Ok(match (suffix, &resolved) {
        ("int", Scalar::Integer(_)) | ("bool", Scalar::Boolean(_)) | ("null", Scalar::Null) => resolved,
        ("float", Scalar::Integer(_) | Scalar::Float(_)) => resolved,
        _ => Scalar::Text(raw.to_owned()),
    })
}

fn collection_tag(tag: Option<&Tag>, place: Place) -> Result<(), ImportError> {
    match tag {
        Some(tag)
            if !(tag.is_yaml_core_schema()
                && matches!(tag.suffix.as_str(), "map" | "seq" | "python/tuple")) =>
        {
            Err(foreign_tag(tag, place))
        }
        _ => Ok(()),
    }
}

fn foreign_tag(tag: &Tag, place: Place) -> ImportError {
    let what = format!(
        "the tag {} stands for a Python object; write the value itself",
        quote(&tag.to_string())
    );
    unsupported(place, what)
}
