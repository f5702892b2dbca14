//! From files and overrides to a config: parse, lay the layers over each other, check, and say where each value is
//! from.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::anchor;
use crate::catalog::Catalog;
use crate::check::{self, Findings};
use crate::codes;
use crate::diagnostic::{Diagnostic, Layer, Report, Severity, SourceText, line_and_column};
use crate::migrate;
use crate::overrides;
use crate::presets::presets;
use crate::resolved::{Inspection, Resolved, Source, leaves};
use crate::rules;
use crate::schema::View;
use crate::sections::{CONFIG_VERSION, Config};
use crate::tree::{self, Node, Segment, Value};

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
pub fn load(catalog: &Catalog, path: impl AsRef<Path>, overrides: &[String]) -> Result<Resolved, Report> {
    strict(inspect(catalog, path, overrides))
}

/// As [`load`], but gives what can be read of a wrong config too, so that more can be said of it.
pub fn inspect(catalog: &Catalog, path: impl AsRef<Path>, overrides: &[String]) -> Inspection {
    inspect_over(catalog, path, overrides, &[])
}

/// Bytes that a file of settings may have at most: some devices have no end.
const MOST_BYTES: u64 = 64 << 20;

/// All bytes of a file of settings, which may also be a pipe.
///
/// # Errors
/// If it cannot be read, or has more than 64 MiB.
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MOST_BYTES {
        true => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "it has more than 64 MiB, which no config has",
        )),
        false => Ok(bytes),
    }
}

/// What a diffusers folder says as a config: that it is the model.
const OF_FOLDER: &str = "config_version = 1\n\n[model]\npath = \".\"\n";

/// As [`inspect`], with what weights say where the config is silent. A diffusers folder in the place of a file is a config that names
/// this folder and nothing else.
pub fn inspect_over(
    catalog: &Catalog,
    path: impl AsRef<Path>,
    overrides: &[String],
    weights: &[WeightsLayer],
) -> Inspection {
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
    let read = match path.join("model_index.json").is_file() {
        true => Ok(OF_FOLDER.as_bytes().to_vec()),
        false => read_file(path),
    };
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
            return unreadable(
                "it is a folder".into(),
                "name a config (TOML), or a diffusers folder, which has a `model_index.json`; a run goes on with the config that it \
                 was started with, and `--resume latest`",
            );
        }
        Err(error) => return unreadable(error.to_string(), "check the path, and that the file may be read"),
    };
    match String::from_utf8(bytes) {
        Ok(text) => {
            let mut inspection = inspect_text(catalog, &name, &text, overrides, weights);
            if let Some(resolved) = &mut inspection.partial {
                anchor::anchor(catalog, resolved, &base_dir(path));
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
pub fn check(catalog: &Catalog, config: &Config) -> Result<Resolved, Report> {
    match toml::to_string(config) {
        Ok(text) => parse_named(catalog, "<config>", &text, &[]),
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
pub fn parse_str(catalog: &Catalog, text: &str) -> Result<Resolved, Report> {
    parse_named(catalog, "<config>", text, &[])
}

/// Checks a config given as text, which messages call `name`.
///
/// # Errors
/// Everything that is wrong, at once.
pub fn parse_named(
    catalog: &Catalog,
    name: &str,
    text: &str,
    overrides: &[String],
) -> Result<Resolved, Report> {
    strict(inspect_named(catalog, name, text, overrides))
}

/// As [`parse_named`], but gives what can be read of a wrong config too.
pub fn inspect_named(catalog: &Catalog, name: &str, text: &str, overrides: &[String]) -> Inspection {
    inspect_text(catalog, name, text, overrides, &[])
}

fn inspect_text(
    catalog: &Catalog,
    name: &str,
    text: &str,
    overrides: &[String],
    weights: &[WeightsLayer],
) -> Inspection {
    let mut loader = Loader {
        catalog,
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
        from_records: catalog.rows_of_record(&config).is_some(),
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

struct Loader<'c> {
    catalog: &'c Catalog,
    sources: Vec<SourceText>,
    places: Vec<Place>,
    problems: Vec<Diagnostic>,
}

impl Loader<'_> {
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
        let catalog = self.catalog;
        let schema = View::root(catalog.schema());

        // The file by itself, as an editor would check it.
        let findings = check::check(catalog, &file, &self.sources);
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
        let defaults = serde_json::to_value(catalog.defaults()).ok()?;
        let mut document = tree::from_json(&defaults)?;
        tree::merge(&mut document, given, &schema);
        overrides::apply(&mut document, parsed, &schema, &mut self.problems);

        let findings = check::check(catalog, &document, &self.sources);
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
        self.problems
            .extend(rules::check(catalog, &config, &document, &bad));
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

    /// The config with the defaults of its plug-ins.
    fn complete(&mut self, mut config: Config, partial: bool) -> Option<Config> {
        match self.catalog.complete(&mut config) {
            Ok(()) => Some(config),
            Err(_) if partial => None,
            // As in `deserialize`.
            Err((path, error)) => {
                let message = format!("`{path}` cannot be read: {error}");
                self.problems
                    .push(Diagnostic::new(Severity::Error, codes::WRONG_TYPE, message).path(path));
                None
            }
        }
    }

    fn deserialize(&mut self, document: &Node, partial: bool) -> Option<Config> {
        let mut json = document.to_json()?;
        // The section of a plug-in that was taken out: another one's keys would mean nothing in it.
        if let (Some(table), Json::Object(defaults)) = (
            json.as_object_mut(),
            serde_json::to_value(self.catalog.defaults()).ok()?,
        ) {
            for (section, default) in defaults {
                if ["algorithm", "data"].contains(&&*section) {
                    table.entry(section).or_insert(default);
                }
            }
        }
        match serde_path_to_error::deserialize(json) {
            Ok(config) => self.complete(config, partial),
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

/// The directory that relative paths in a config file start from: the file's; of a diffusers folder, the folder. Paths given by an override, and `run.dir`,
/// are anchored by [`load`] and [`inspect`] already.
pub fn base_dir(config_path: impl AsRef<Path>) -> PathBuf {
    if config_path.as_ref().is_dir() {
        return config_path.as_ref().to_owned();
    }
    match config_path.as_ref().parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}
