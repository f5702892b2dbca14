//! The config as it is being made: what was read of the YAML, and what goes into the TOML.

use std::collections::BTreeSet;

use flow_config::Catalog;
use toml_edit::Value;

use crate::note::{Note, Outcome, Rank};
use crate::table::SECTIONS;
use crate::yaml::{Node, Place, quote_if_needed};

/// Where a value stood in the YAML.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Origin {
    pub from: String,
    pub place: Place,
    /// The value on one line.
    pub value: String,
}

impl Origin {
    pub fn new(from: impl Into<String>, place: Place, node: &Node) -> Self {
        Self {
            from: from.into(),
            place,
            value: node.flow(),
        }
    }
}

/// A key of the YAML with its value.
#[derive(Clone, Debug)]
pub(crate) struct Item<'y> {
    pub origin: Origin,
    pub node: &'y Node,
}

/// A key of the TOML.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Its dotted path; of an entry of a list the path of the list.
    pub to: String,
    pub value: Value,
    /// Empty if it is Flow-Factory's default.
    pub origins: Vec<Origin>,
    pub text: String,
    pub rank: Rank,
    /// Whether the text stands above it as a comment.
    pub explained: bool,
    /// It is what the YAML asks for and flow-train does not have: flow-config refuses it, and it stays.
    pub asked: bool,
    /// One `[[to]]` of several, its value being an inline table.
    pub in_list: bool,
}

/// A key of the YAML that becomes a comment.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    /// The section of the TOML that it stands in; empty for the end of the file.
    pub section: String,
    pub origin: Origin,
    pub reason: String,
    pub rank: Rank,
}

/// The config as it is being made.
pub(crate) struct Draft<'y> {
    /// The plug-ins that a config can name.
    pub catalog: &'y Catalog,
    items: Vec<Item<'y>>,
    used: BTreeSet<usize>,
    pub entries: Vec<Entry>,
    pub kept: Vec<Kept>,
    pub notes: Vec<Note>,
    /// Our `algorithm.kind`.
    pub kind: &'static str,
    /// Whether flow-train has the trainer, so that Flow-Factory's defaults for it mean something.
    pub trainer_exists: bool,
    /// What flow-train does not have and nothing like it can be trained without, such as "no model FLUX.1".
    pub because: Vec<String>,
    /// What must be there before it can be trained.
    pub needs: Vec<String>,
    /// flow-train's defaults.
    defaults: serde_json::Value,
}

impl<'y> Draft<'y> {
    /// Splits a document into the keys that rules speak of.
    pub fn new(root: &'y Node, catalog: &'y Catalog) -> Self {
        let mut items = Vec::new();
        for pair in root.map().unwrap_or_default() {
            let section = quoted(&pair.key);
            match pair.node.map() {
                Some(pairs) if SECTIONS.contains(&pair.key.as_str()) => {
                    items.extend(pairs.iter().map(|pair| Item {
                        origin: Origin::new(
                            format!("{section}.{}", quoted(&pair.key)),
                            pair.place,
                            &pair.node,
                        ),
                        node: &pair.node,
                    }));
                }
                _ => items.push(Item {
                    origin: Origin::new(section, pair.place, &pair.node),
                    node: &pair.node,
                }),
            }
        }
        let mut draft = Self {
            catalog,
            items,
            used: BTreeSet::new(),
            entries: Vec::new(),
            kept: Vec::new(),
            notes: Vec::new(),
            kind: "grpo",
            trainer_exists: true,
            because: Vec::new(),
            needs: Vec::new(),
            defaults: serde_json::Value::Null,
        };
        draft.set_kind("grpo", true);
        draft
    }

    /// Chooses the algorithm, on which flow-train's defaults depend.
    pub fn set_kind(&mut self, kind: &'static str, exists: bool) {
        let mut config = self.catalog.defaults().clone();
        if let Some(algorithm) = self.catalog.algorithm(kind) {
            config.algorithm = algorithm;
        }
        self.kind = kind;
        self.trainer_exists = exists;
        self.defaults = serde_json::to_value(config).unwrap_or_default();
    }

    /// A key of the YAML, without taking it.
    pub fn peek(&self, from: &str) -> Option<&Item<'y>> {
        self.items.iter().find(|item| item.origin.from == from)
    }

    /// Takes a key of the YAML; whoever does must see to it that it comes to something.
    pub fn take(&mut self, from: &str) -> Option<Item<'y>> {
        let index = self.items.iter().position(|item| item.origin.from == from)?;
        self.used.insert(index);
        self.items.get(index).cloned()
    }

    /// The keys that nobody took.
    pub fn left_over(&self) -> Vec<Item<'y>> {
        let items = self.items.iter().enumerate();
        let left = items.filter(|(index, _)| !self.used.contains(index));
        left.map(|(_, item)| item.clone()).collect()
    }

    /// Writes a value that comes from `origins`, or from Flow-Factory's defaults if there are none. If it is
    /// flow-train's default, it is noted and not written.
    pub fn set(&mut self, to: &str, value: impl Into<Value>, origins: &[&Origin], text: &str) {
        self.put(to, value.into(), origins, text, Rank::Detail, false);
    }

    /// As `set`, with the text as a comment above it.
    pub fn set_explained(&mut self, to: &str, value: impl Into<Value>, origins: &[&Origin], text: &str) {
        self.put(to, value.into(), origins, text, Rank::Detail, true);
    }

    /// As `set`, for what somebody has to look at.
    pub fn set_with_attention(&mut self, to: &str, value: impl Into<Value>, origins: &[&Origin], text: &str) {
        self.put(to, value.into(), origins, text, Rank::Result, true);
    }

    /// As `set_with_attention`, for what must be there before anything is trained: it is in the verdict.
    pub fn set_needed(&mut self, to: &str, value: impl Into<Value>, origins: &[&Origin], text: &str) {
        self.put(to, value.into(), origins, text, Rank::Verdict, true);
    }

    /// Writes what the YAML asks for and flow-train does not have: the config is refused where it stands, so that nothing
    /// else is trained in its place. `because` goes to the verdict.
    pub fn ask(&mut self, to: &str, value: impl Into<Value>, origins: &[&Origin], because: &str, text: &str) {
        self.because.push(because.to_owned());
        self.entries.push(Entry {
            to: to.to_owned(),
            value: value.into(),
            origins: origins.iter().map(|origin| (*origin).clone()).collect(),
            text: format!("flow-train has {because}{text}"),
            rank: Rank::Verdict,
            explained: true,
            asked: true,
            in_list: false,
        });
    }

    /// Says what must be there before anything is trained, once.
    pub fn need(&mut self, what: impl Into<String>) {
        let what = what.into();
        if !self.needs.contains(&what) {
            self.needs.push(what);
        }
    }

    fn put(&mut self, to: &str, value: Value, origins: &[&Origin], text: &str, rank: Rank, explained: bool) {
        let pointer = format!("/{}", to.replace('.', "/"));
        // `algorithm.kind` is written in any case, since every other key of that table needs it.
        let is_default = to != "algorithm.kind"
            && !self.is_folders(to)
            && rank == Rank::Detail
            && self
                .defaults
                .pointer(&pointer)
                .is_some_and(|default| says(&value, default));
        if is_default {
            for origin in origins {
                self.same(origin, to, text);
            }
            return;
        }
        self.entries.push(Entry {
            to: to.to_owned(),
            value,
            origins: origins.iter().map(|origin| (*origin).clone()).collect(),
            text: text.to_owned(),
            rank,
            explained,
            asked: false,
            in_list: false,
        });
    }

    /// Whether a key that is left out is decided by the diffusers folder rather than by flow-train's default.
    fn is_folders(&self, to: &str) -> bool {
        let has_folder = || self.entries.iter().any(|entry| entry.to == "model.path");
        let keys = [
            "sampling.guidance_scale",
            "sampling.embedded_guidance_scale",
            "scheduler.shift",
        ];
        keys.contains(&to) && has_folder()
    }

    /// Adds an entry to a list of tables.
    pub fn push(
        &mut self,
        list: &str,
        table: toml_edit::InlineTable,
        origin: &Origin,
        text: String,
        attention: bool,
    ) {
        self.entries.push(Entry {
            to: list.to_owned(),
            value: Value::InlineTable(table),
            origins: vec![origin.clone()],
            text,
            rank: if attention { Rank::Result } else { Rank::Detail },
            explained: attention,
            asked: false,
            in_list: true,
        });
    }

    /// As `push`, for what must be there before anything is trained: it is in the verdict.
    pub fn push_needed(&mut self, list: &str, table: toml_edit::InlineTable, origin: &Origin, text: String) {
        self.push(list, table, origin, text, true);
        if let Some(entry) = self.entries.last_mut() {
            entry.rank = Rank::Verdict;
        }
    }

    /// Notes that a key says what flow-train does anyway.
    pub fn same(&mut self, origin: &Origin, to: &str, text: &str) {
        let mut note = from_origin(Outcome::Default, origin, text);
        note.to = to.to_owned();
        self.notes.push(note);
    }

    /// Keeps a key as a comment in a section: what is trained differs, or may.
    pub fn keep(&mut self, section: &str, origin: &Origin, reason: impl Into<String>) {
        self.keep_as(Rank::Result, section, origin, reason);
    }

    /// Keeps a key as a comment in a section.
    pub fn keep_as(&mut self, rank: Rank, section: &str, origin: &Origin, reason: impl Into<String>) {
        self.kept.push(Kept {
            section: section.to_owned(),
            origin: origin.clone(),
            reason: reason.into(),
            rank,
        });
    }

    /// Notes what is not about one key.
    pub fn remark(&mut self, to: &str, text: impl Into<String>) {
        self.notes.push(Note {
            outcome: Outcome::Remark,
            rank: Rank::Result,
            from: String::new(),
            line: None,
            column: None,
            value: String::new(),
            to: to.to_owned(),
            written: String::new(),
            text: text.into(),
        });
    }

    /// Where a key stands among the keys of its table in flow-train's config; what has no default comes last.
    pub fn rank(&self, to: &str) -> usize {
        let (table, key) = to.rsplit_once('.').unwrap_or(("", to));
        let table = self.defaults.pointer(&format!("/{}", table.replace('.', "/")));
        let keys = table.and_then(serde_json::Value::as_object);
        keys.and_then(|keys| keys.keys().position(|other| other == key))
            .unwrap_or(usize::MAX)
    }

    /// Every note, in the order of the YAML; what nobody wrote comes last.
    pub fn all_notes(&self) -> Vec<Note> {
        let mut notes = self.notes.clone();
        for entry in &self.entries {
            let written = entry.value.to_string().trim().to_owned();
            let note = |mut note: Note| {
                note.to.clone_from(&entry.to);
                note.written.clone_from(&written);
                note.rank = entry.rank;
                note
            };
            for origin in &entry.origins {
                notes.push(note(from_origin(Outcome::Converted, origin, &entry.text)));
            }
            if entry.origins.is_empty() {
                let nobody = Origin {
                    from: String::new(),
                    place: Place::default(),
                    value: String::new(),
                };
                let text = format!("Flow-Factory's default ({})", entry.text);
                notes.push(note(Note {
                    line: None,
                    column: None,
                    ..from_origin(Outcome::Added, &nobody, &text)
                }));
            }
        }
        for kept in &self.kept {
            let mut note = from_origin(Outcome::Kept, &kept.origin, &kept.reason);
            note.rank = kept.rank;
            notes.push(note);
        }
        notes.sort_by_key(|note| (note.line.unwrap_or(usize::MAX), note.column));
        notes
    }
}

fn from_origin(outcome: Outcome, origin: &Origin, text: &str) -> Note {
    Note {
        outcome,
        rank: Rank::Detail,
        from: origin.from.clone(),
        line: Some(origin.place.line),
        column: Some(origin.place.column),
        value: origin.value.clone(),
        to: String::new(),
        written: String::new(),
        text: text.to_owned(),
    }
}

/// A key as a segment of a dotted path.
pub(crate) fn quoted(key: &str) -> String {
    if key.contains('.') || key.is_empty() {
        crate::yaml::quote(key)
    } else {
        quote_if_needed(key)
    }
}

/// Whether a TOML value says what a default says. A table need not name all that the default has.
fn says(value: &Value, default: &serde_json::Value) -> bool {
    match value {
        Value::String(text) => default.as_str() == Some(text.value()),
        Value::Boolean(switch) => default.as_bool() == Some(*switch.value()),
        Value::Integer(number) => default.as_f64() == Some(*number.value() as f64),
        Value::Float(number) => default.as_f64() == Some(*number.value()),
        Value::Array(array) => default.as_array().is_some_and(|defaults| {
            defaults.len() == array.len()
                && array
                    .iter()
                    .zip(defaults)
                    .all(|(value, default)| says(value, default))
        }),
        Value::InlineTable(table) => table
            .iter()
            .all(|(key, value)| default.get(key).is_some_and(|default| says(value, default))),
        Value::Datetime(_) => false,
    }
}

/// The section of a rule's target.
pub(crate) fn section_of(to: &'static str) -> &'static str {
    to.split([',', '.']).next().unwrap_or("")
}
