//! What becomes of a config that was read: its values, where each is from, and what is said of it.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde_json::Value as Json;

use crate::diagnostic::{Diagnostic, Report};
use crate::locate;
use crate::rules;
use crate::sections::Config;
use crate::tree::{self, Node, Segment};

/// Where a value of a config is from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "from", rename_all = "kebab-case")]
pub enum Source {
    /// Nobody gave it.
    Default,
    /// The weights that the config names gave it.
    Weights {
        /// The file that says it.
        path: String,
    },
    /// The preset gave it.
    Preset {
        /// Its name.
        name: String,
    },
    /// The config file gave it.
    File {
        /// The file, as it was named.
        path: String,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
    },
    /// An override gave it.
    Override {
        /// Which one, from 0.
        index: usize,
        /// Its text.
        text: String,
    },
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => write!(formatter, "default"),
            Self::Weights { path } => write!(formatter, "{path}"),
            Self::Preset { name } => write!(formatter, "preset {name}"),
            Self::File { path, line, column } => write!(formatter, "{path}:{line}:{column}"),
            Self::Override { text, .. } => write!(formatter, "--set {text}"),
        }
    }
}

/// A config that passed every check, with the source of each of its values.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The config.
    pub config: Config,
    /// The source of every value, by dotted path. Lists of plain values are one value; entries of lists of tables have
    /// their index as a path segment. Optional values that nobody gave are not in it.
    pub sources: BTreeMap<String, Source>,
    /// Warnings, and the texts that they point into.
    pub report: Report,
    pub(crate) document: Node,
    /// What was taken out of the document because it is wrong.
    pub(crate) bad: Vec<Vec<Segment>>,
    /// Whether the algorithm learns from records of the data set.
    pub(crate) from_records: bool,
}

/// A config file that was read, right or wrong.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// Everything that is wrong, or worth knowing.
    pub report: Report,
    /// The config, as far as it can be read: what is wrong has its default, or is left out. Nothing if the text is not
    /// TOML, is of another version, or what is left cannot be a config.
    pub partial: Option<Resolved>,
}

impl Resolved {
    /// What training needs beyond a config that is right in itself: at least one reward, and weights to start from; of an algorithm
    /// that learns from the data set, a reward to evaluate by.
    /// Empty if nothing is missing.
    pub fn check_training(&self) -> Report {
        Report::new(
            rules::check_training(&self.config, self.from_records, &self.document, &self.bad),
            self.report.sources.clone(),
        )
    }

    /// Whether nothing in a section is wrong by itself: what [`inspect`](crate::inspect) gives has defaults in the place of wrong values.
    pub fn is_whole(&self, section: &str) -> bool {
        let section = Segment::Key(section.to_owned());
        !self
            .bad
            .iter()
            .any(|path| path.first().is_none_or(|first| *first == section))
    }

    /// The diagnostics of the config and `found`, with the place of each: the file and line, the preset or the override
    /// that gave the value.
    pub fn located(&self, found: impl IntoIterator<Item = Diagnostic>) -> Report {
        let found = found.into_iter().map(|one| locate::place(&self.document, one));
        let all = self.report.diagnostics.iter().cloned().chain(found).collect();
        Report::new(all, self.report.sources.clone())
    }

    /// The value at a dotted path of [`Resolved::sources`], as JSON.
    pub fn value(&self, path: &str) -> Option<Json> {
        leaves(&self.config)
            .into_iter()
            .find(|leaf| tree::dotted(&leaf.0) == path)
            .map(|leaf| leaf.1)
    }

    /// One line per value: `path = value  # source`, sorted by path.
    pub fn render(&self) -> String {
        let values: BTreeMap<String, String> = leaves(&self.config)
            .into_iter()
            .map(|(path, value)| (tree::dotted(&path), value.to_string()))
            .collect();
        let width = values
            .iter()
            .map(|(path, value)| path.len() + value.len())
            .filter(|w| *w < 60)
            .max()
            .unwrap_or(0);
        let mut text = String::new();
        for (path, value) in &values {
            let source = self.sources.get(path).unwrap_or(&Source::Default);
            let pad = " ".repeat(width.saturating_sub(path.len() + value.len()));
            text.push_str(&format!("{path} = {value}{pad}  # {source}\n"));
        }
        text
    }
}

/// The values of a config that can have a source of their own. Options that nobody gave are left out.
pub(crate) fn leaves(config: &Config) -> Vec<(Vec<Segment>, Json)> {
    fn walk(json: &Json, path: &mut Vec<Segment>, out: &mut Vec<(Vec<Segment>, Json)>) {
        match json {
            Json::Null => {}
            Json::Object(object) if !object.is_empty() => {
                for (key, value) in object {
                    path.push(Segment::Key(key.clone()));
                    walk(value, path, out);
                    path.pop();
                }
            }
            Json::Array(entries) if entries.iter().any(Json::is_object) => {
                for (index, value) in entries.iter().enumerate() {
                    path.push(Segment::Index(index));
                    walk(value, path, out);
                    path.pop();
                }
            }
            value => out.push((path.clone(), value.clone())),
        }
    }
    let mut out = Vec::new();
    if let Ok(json) = serde_json::to_value(config) {
        walk(&json, &mut Vec::new(), &mut out);
    }
    out
}
