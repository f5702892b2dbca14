//! From files and overrides to a config: parse, lay the layers over each other, check, and say where each value is
//! from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value as Json;

use crate::anchor;
use crate::check::{self, Findings};
use crate::codes;
use crate::diagnostic::{Diagnostic, Layer, Report, Severity, SourceText, line_and_column};
use crate::locate;
use crate::migrate;
use crate::overrides;
use crate::presets::presets;
use crate::rules;
use crate::schema::{SCHEMA, View};
use crate::sections::{CONFIG_VERSION, Config};
use crate::tree::{self, Node, Segment, Value};

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
    /// What training needs beyond a config that is right in itself: at least one reward, and weights to start from.
    /// Empty if nothing is missing.
    pub fn check_training(&self) -> Report {
        Report::new(
            rules::check_training(&self.config, &self.document, &self.bad),
            self.report.sources.clone(),
        )
    }

    /// Whether nothing in a section is wrong by itself: what [`inspect`] gives has defaults in the place of wrong values.
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

/// What the weights that a config names say of their model: a layer above the defaults, below everything that anybody wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightsLayer {
    /// The file that says it.
    pub path: String,
    /// Keys of the config with their values, as TOML.
    pub text: String,
}

/// Reads and checks a config file. `overrides` are of the form `a.b=value`; they win over the file, which wins over its
/// preset, which wins over the defaults. Environment variables play no part.
///
/// Relative paths start from where they were written: one in the file from the file's folder ([`base_dir`]), one in an
/// override from the working directory. `run.dir` of the file is given with that folder, paths of overrides as absolute ones.
///
/// # Errors
/// Everything that is wrong, at once; see [`codes`] for what can be.
pub fn load(path: impl AsRef<Path>, overrides: &[String]) -> Result<Resolved, Report> {
    strict(inspect(path, overrides))
}

/// As [`load`], but gives what can be read of a wrong config too, so that more can be said of it.
pub fn inspect(path: impl AsRef<Path>, overrides: &[String]) -> Inspection {
    inspect_over(path, overrides, &[])
}

/// As [`inspect`], with what weights say where the config is silent.
pub fn inspect_over(path: impl AsRef<Path>, overrides: &[String], weights: &[WeightsLayer]) -> Inspection {
    let path = path.as_ref();
    let name = path.display().to_string();
    let unreadable = |why: String, help: &str| {
        let diagnostic =
            Diagnostic::error(codes::UNREADABLE, format!("cannot read the config {name}: {why}"));
        Inspection {
            report: Report::new(vec![diagnostic.help(help)], Vec::new()),
            partial: None,
        }
    };
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) => return unreadable(error.to_string(), "check the path, and that the file may be read"),
    };
    match String::from_utf8(bytes) {
        Ok(text) => {
            let mut inspection = inspect_text(&name, &text, overrides, weights);
            if let Some(resolved) = &mut inspection.partial {
                anchor::anchor(resolved, &base_dir(path));
            }
            inspection
        }
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            unreadable(format!("byte {at} is not UTF-8"), "save the file as UTF-8")
        }
    }
}

/// The config, if nothing in it is an error.
fn strict(inspection: Inspection) -> Result<Resolved, Report> {
    match inspection {
        Inspection {
            report,
            partial: Some(resolved),
        } if !report.has_errors() => Ok(resolved),
        Inspection { report, .. } => Err(report),
    }
}

/// Checks a config that was made in code, by the same rules as a file. Places of diagnostics are in its TOML text.
///
/// # Errors
/// Everything that is wrong, at once; also what TOML cannot hold: a number above 2^63 - 1, a path that is not UTF-8.
pub fn check(config: &Config) -> Result<Resolved, Report> {
    match toml::to_string(config) {
        Ok(text) => parse_named("<config>", &text, &[]),
        Err(error) => {
            let message = format!("the config cannot be written as TOML: {error}");
            let diagnostic = Diagnostic::error(codes::UNREADABLE, message);
            Err(Report::new(
                vec![diagnostic.help("numbers are at most 2^63 - 1, and paths are UTF-8")],
                Vec::new(),
            ))
        }
    }
}

/// Checks a config given as text. Never panics, whatever the text is.
///
/// # Errors
/// Everything that is wrong, at once.
pub fn parse_str(text: &str) -> Result<Resolved, Report> {
    parse_named("<config>", text, &[])
}

/// Checks a config given as text, which messages call `name`.
///
/// # Errors
/// Everything that is wrong, at once.
pub fn parse_named(name: &str, text: &str, overrides: &[String]) -> Result<Resolved, Report> {
    strict(inspect_named(name, text, overrides))
}

/// As [`parse_named`], but gives what can be read of a wrong config too.
pub fn inspect_named(name: &str, text: &str, overrides: &[String]) -> Inspection {
    inspect_text(name, text, overrides, &[])
}

fn inspect_text(name: &str, text: &str, overrides: &[String], weights: &[WeightsLayer]) -> Inspection {
    let mut loader = Loader {
        sources: vec![SourceText {
            name: name.to_owned(),
            layer: Layer::File,
            text: text.to_owned(),
        }],
        places: vec![Place::File],
        problems: Vec::new(),
    };
    let outcome = loader.run(text, overrides, weights);
    let report = Report::new(loader.problems, loader.sources);
    let partial = outcome.map(|(config, document, bad)| Resolved {
        sources: sources(&config, &document, &report.sources, &loader.places),
        report: report.clone(),
        config,
        document,
        bad,
    });
    Inspection { report, partial }
}

/// What kind of text a source is.
enum Place {
    File,
    Weights,
    Preset(&'static str),
    Override(usize),
}

struct Loader {
    sources: Vec<SourceText>,
    places: Vec<Place>,
    problems: Vec<Diagnostic>,
}

impl Loader {
    fn add_source(&mut self, name: String, text: &str, place: Place) -> usize {
        let layer = match place {
            Place::File => Layer::File,
            Place::Weights => Layer::Weights,
            Place::Preset(_) => Layer::Preset,
            Place::Override(_) => Layer::Override,
        };
        self.sources.push(SourceText {
            name,
            layer,
            text: text.to_owned(),
        });
        self.places.push(place);
        self.sources.len() - 1
    }

    fn run(
        &mut self,
        text: &str,
        overrides: &[String],
        weights: &[WeightsLayer],
    ) -> Option<(Config, Node, Vec<Vec<Segment>>)> {
        let mut file = tree::parse(text, 0, &mut self.problems);
        let broken = !self.problems.is_empty();
        if !self.version_is_current(&file) {
            return None;
        }
        let mut parsed = Vec::new();
        for (index, text) in overrides.iter().enumerate() {
            let source = self.add_source("--set".into(), text, Place::Override(index));
            parsed.extend(overrides::parse(text, source, &mut self.problems));
        }
        let schema = View::root(&SCHEMA);

        // The file by itself, as an editor would check it.
        let findings = check::check(&file, &self.sources);
        self.take(&findings, broken, None);
        let mut bad = findings.bad;

        // Defaults, weights, preset, file, overrides.
        let mut given = Node::empty_table(None);
        for layer in weights {
            let source = self.add_source(layer.path.clone(), &layer.text, Place::Weights);
            let said = tree::parse(&layer.text, source, &mut self.problems);
            tree::merge(&mut given, said, &schema);
        }
        if let Some(preset) = self.preset(&file, &parsed) {
            tree::merge(&mut given, preset, &schema);
        }
        file.span = 0..0;
        tree::merge(&mut given, file, &schema);
        let defaults = serde_json::to_value(Config::default()).ok()?;
        let mut document = tree::from_json(&defaults)?;
        tree::merge(&mut document, given, &schema);
        overrides::apply(&mut document, parsed, &schema, &mut self.problems);

        let findings = check::check(&document, &self.sources);
        self.take(&findings, broken, Some(0));
        bad.extend(findings.bad);
        if broken {
            return None;
        }

        // What is wrong is taken out, so that the rules can be checked on the rest.
        bad.sort();
        bad.dedup();
        for path in bad.iter().rev() {
            document.remove(path);
        }
        if let Value::Table(table) = &mut document.value {
            table.entry("config_version".into()).or_insert_with(|| Node {
                value: Value::Integer(CONFIG_VERSION.into()),
                ..Node::empty_table(None)
            });
        }
        let config = self.deserialize(&document, !bad.is_empty())?;
        self.problems.extend(rules::check(&config, &document, &bad));
        Some((config, document, bad))
    }

    /// Keeps the findings of a check. With `skip`, those in that source were found before.
    fn take(&mut self, findings: &Findings, broken: bool, skip: Option<usize>) {
        for finding in &findings.problems {
            let same = |known: &Diagnostic| {
                let place = known.source == finding.source || finding.code == codes::MISSING_KEY;
                known.code == finding.code && known.path == finding.path && place
            };
            // After a syntax error keys may be missing because they could not be read.
            let uncertain = broken && (finding.code == codes::MISSING_KEY || self.near_syntax_error(finding));
            let repeated = skip.is_some() && finding.source == skip && finding.code != codes::MISSING_KEY;
            if uncertain || repeated {
                continue;
            }
            if skip.is_none() || !self.problems.iter().any(same) {
                self.problems.push(finding.clone());
            }
        }
    }

    fn near_syntax_error(&self, finding: &Diagnostic) -> bool {
        let line = |diagnostic: &Diagnostic| {
            let text = &self.sources.get(diagnostic.source?)?.text;
            Some((
                diagnostic.source?,
                line_and_column(text, diagnostic.span.as_ref()?.start).0,
            ))
        };
        let place = line(finding);
        self.problems
            .iter()
            .any(|problem| problem.code == codes::SYNTAX && line(problem) == place)
    }

    /// Whether the file is of this version. If not, nothing else can be said of it.
    fn version_is_current(&mut self, file: &Node) -> bool {
        let version = file.get(&Segment::Key("config_version".into()));
        match version.map(|node| (node, &node.value)) {
            Some((node, Value::Integer(version))) if *version != i128::from(CONFIG_VERSION) => {
                let (message, help) = if *version < i128::from(CONFIG_VERSION) && *version >= 0 {
                    (
                        format!(
                            "this config is of version {version}, this build reads version {CONFIG_VERSION}"
                        ),
                        "`flow-train migrate FILE` brings it up to date and keeps its comments".to_owned(),
                    )
                } else {
                    (
                        format!(
                            "there is no config version {version}; this build reads version {CONFIG_VERSION}"
                        ),
                        format!("set `config_version = {CONFIG_VERSION}`, or use a newer flow-train"),
                    )
                };
                self.problems.push(
                    Diagnostic::error(codes::CONFIG_VERSION, message)
                        .path("config_version")
                        .at(0, node.span.clone())
                        .help(help)
                        .allowed(vec![CONFIG_VERSION.to_string()]),
                );
                false
            }
            None if migrate::looks_like_version_0(file) => {
                self.problems.push(
                    Diagnostic::error(
                        codes::CONFIG_VERSION,
                        "this config has no `config_version` and uses the names of version 0",
                    )
                    .path("config_version")
                    .at(0, 0..0)
                    .help("`flow-train migrate FILE` brings it up to date and keeps its comments"),
                );
                false
            }
            _ => true,
        }
    }

    /// The preset that the file or an override asks for.
    fn preset(&mut self, file: &Node, overrides: &[overrides::Override]) -> Option<Node> {
        let chosen = overrides
            .iter()
            .rev()
            .find_map(|one| one.value_of("preset"))
            .or_else(|| file.get(&Segment::Key("preset".into())))?;
        let Value::String(name) = &chosen.value else {
            return None;
        };
        // The check says so if there is none of this name: the schema lists them.
        let preset = presets().iter().find(|preset| preset.name == name)?;
        let source = self.add_source(
            format!("preset {}", preset.name),
            preset.text,
            Place::Preset(preset.name),
        );
        Some(tree::parse(preset.text, source, &mut self.problems))
    }

    fn deserialize(&mut self, document: &Node, partial: bool) -> Option<Config> {
        let json = document.to_json()?;
        match serde_path_to_error::deserialize(json) {
            Ok(config) => Some(config),
            // The errors that are known already say why.
            Err(_) if partial => None,
            // The schema and the types it is made from disagree. Say so rather than lose the config.
            Err(error) => {
                let path = error.path().to_string();
                let message = format!("`{path}` cannot be read: {}", error.inner());
                self.problems
                    .push(Diagnostic::new(Severity::Error, codes::WRONG_TYPE, message).path(path));
                None
            }
        }
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

fn sources(
    config: &Config,
    document: &Node,
    texts: &[SourceText],
    places: &[Place],
) -> BTreeMap<String, Source> {
    let source = |path: &[Segment]| {
        let Some(node) = document.lookup(path) else {
            return Source::Default;
        };
        let Some(origin) = node.origin else {
            return Source::Default;
        };
        // Entries of a plain list may be overridden one by one; the list is then the override's.
        let entries = match &node.value {
            Value::Array(entries) => entries.as_slice(),
            _ => &[],
        };
        let origin = entries
            .iter()
            .filter_map(|entry| entry.origin)
            .find(|one| *one != origin)
            .unwrap_or(origin);
        match (places.get(origin), texts.get(origin)) {
            (Some(Place::File), Some(text)) => {
                let (line, column) = line_and_column(&text.text, node.span.start);
                Source::File {
                    path: text.name.clone(),
                    line,
                    column,
                }
            }
            (Some(Place::Weights), Some(text)) => Source::Weights {
                path: text.name.clone(),
            },
            (Some(Place::Preset(name)), _) => Source::Preset {
                name: (*name).to_owned(),
            },
            (Some(Place::Override(index)), Some(text)) => Source::Override {
                index: *index,
                text: text.text.clone(),
            },
            _ => Source::Default,
        }
    };
    leaves(config)
        .into_iter()
        .map(|(path, _)| (tree::dotted(&path), source(&path)))
        .collect()
}

/// The directory that relative paths in a config file start from: the file's. Paths given by an override, and `run.dir`,
/// are anchored by [`load`] and [`inspect`] already.
pub fn base_dir(config_path: impl AsRef<Path>) -> PathBuf {
    match config_path.as_ref().parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}
