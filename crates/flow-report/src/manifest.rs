//! `run.json`: everything that is needed to know what a run was, and to run it again.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::atomic::atomic_write;
use crate::environment::{GitState, Host};
use crate::error::{ReportError, Result};
use crate::probe::rfc3339;
use crate::run_id::{RunId, RunStamp};

/// The manifest's format version that this build writes.
pub const MANIFEST_VERSION: u32 = 1;

/// The content of `run.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Format version of this file.
    pub manifest_version: u32,
    /// The run's name.
    pub run: String,
    /// Which run this is, whatever it is called; runs that began before there were ids have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// Start of the first process, RFC 3339 UTC.
    pub started_at: String,
    /// The command line of the first process.
    pub command: Vec<String>,
    /// Versions by crate name, for example `flow-train` and `burn`.
    pub versions: BTreeMap<String, String>,
    /// State of the source tree at the first start.
    pub git: GitState,
    /// The machine of the first start.
    pub host: Host,
    /// The compute device: free pairs, for example `backend`, `name`, `dtype`.
    pub device: Map<String, Value>,
    /// The configuration with every default filled in.
    pub config: Value,
    /// Where each value of the configuration comes from: dotted key to source, for example
    /// `"trainer.learning_rate": "configs/digits-grpo.toml:12"`. A key covers the keys below it.
    pub config_sources: BTreeMap<String, String>,
    /// The defaults of values that somebody set, by dotted key, as far as they are known: what differs from them is what makes this
    /// run another one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub config_defaults: BTreeMap<String, Value>,
    /// Where the run did something else than was asked for. Empty is the normal case, and is written out.
    pub fallbacks: Vec<Fallback>,
    /// Every later process that went on with the run.
    pub resumes: Vec<Resume>,
    /// Fields that this build does not know, kept when the file is written again.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Something that ran in another way than asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fallback {
    /// The part concerned, for example "attention backend".
    pub what: String,
    /// What was asked for.
    pub wanted: String,
    /// What was used.
    pub used: String,
    /// Why.
    pub why: String,
}

/// One resumption of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resume {
    /// When, RFC 3339 UTC.
    pub at: String,
    /// The step the checkpoint was written after.
    pub from_step: u64,
    /// The checkpoint's path relative to the run directory, or as given.
    pub checkpoint: String,
    /// The command line.
    pub command: Vec<String>,
    /// State of the source tree then.
    pub git: GitState,
    /// The machine then.
    pub host: Host,
    /// Values of the configuration that differ from the first start.
    pub config_changes: Vec<ConfigChange>,
    /// What opening the run reported: removed leftovers, skipped checkpoints, cut metrics.
    pub notices: Vec<String>,
}

/// A value that differs between two configurations. `null` stands for "not there".
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfigChange {
    /// Dotted key.
    pub key: String,
    /// Value before.
    pub before: Value,
    /// Value now.
    pub after: Value,
}

impl Manifest {
    /// A manifest of a run that starts now on this machine. `directory` is where to ask git. Versions, device,
    /// sources and fallbacks are empty; set them before writing.
    pub fn new(run: &str, command: Vec<String>, config: Value, directory: &Path) -> Self {
        Self {
            manifest_version: MANIFEST_VERSION,
            run: run.into(),
            run_id: Some(RunId::draw()),
            started_at: rfc3339(SystemTime::now()),
            command,
            versions: BTreeMap::from([("flow-report".into(), env!("CARGO_PKG_VERSION").into())]),
            git: GitState::detect(directory),
            host: Host::detect(),
            device: Map::new(),
            config,
            config_sources: BTreeMap::new(),
            config_defaults: BTreeMap::new(),
            fallbacks: Vec::new(),
            resumes: Vec::new(),
            extra: Map::new(),
        }
    }

    /// Which run this is, for its checkpoints.
    pub fn stamp(&self) -> RunStamp {
        RunStamp {
            id: self.run_id.clone().unwrap_or_else(RunId::draw),
            name: self.run.clone(),
            started_at: self.started_at.clone(),
        }
    }

    /// Adds a resumption that starts now. `config` is the configuration the new process runs with.
    pub fn add_resume(
        &mut self,
        from_step: u64,
        checkpoint: &str,
        command: Vec<String>,
        config: &Value,
        directory: &Path,
        notices: Vec<String>,
    ) {
        self.resumes.push(Resume {
            at: rfc3339(SystemTime::now()),
            from_step,
            checkpoint: checkpoint.into(),
            command,
            git: GitState::detect(directory),
            host: Host::detect(),
            config_changes: config_changes(&self.config, config),
            notices,
        });
    }

    /// Where the value of a dotted key comes from: its own entry, or that of the nearest key above it.
    pub fn source_of(&self, key: &str) -> Option<&str> {
        let mut key = key;
        loop {
            if let Some(source) = self.config_sources.get(key) {
                return Some(source);
            }
            // `a.b[2]` is covered by `a.b`, which is covered by `a`.
            key = &key[..key.rfind(['.', '['])?];
        }
    }

    /// Writes the manifest atomically.
    ///
    /// # Errors
    /// As [`atomic_write`].
    pub fn write(&self, path: &Path) -> Result<()> {
        write_json(path, "run manifest", self)
    }

    /// Whether the file is a manifest of a newer version, which this build must leave alone.
    pub(crate) fn is_newer(path: &Path) -> bool {
        let value: Option<Value> = read_json(path, "run manifest").ok();
        let version = value.and_then(|value| value.get("manifest_version")?.as_u64());
        version.is_some_and(|version| version > u64::from(MANIFEST_VERSION))
    }

    /// Reads a manifest.
    ///
    /// # Errors
    /// If the file is missing, is not a manifest, or comes from a newer version.
    pub fn read(path: &Path) -> Result<Self> {
        let value: Value = read_json(path, "run manifest")?;
        let found = value.get("manifest_version").and_then(Value::as_u64);
        if found.is_some_and(|found| found > u64::from(MANIFEST_VERSION)) {
            let problem = format!(
                "has version {}, this build reads up to {MANIFEST_VERSION}",
                found.unwrap_or(0)
            );
            return Err(ReportError::invalid(
                "run manifest",
                path,
                problem,
                "use a newer flow-train",
            ));
        }
        serde_json::from_value(value).map_err(|error| {
            ReportError::invalid(
                "run manifest",
                path,
                format!("is not complete: {error}"),
                "see whether it was edited by hand",
            )
        })
    }
}

/// The leaves of a JSON value with their dotted keys, in the value's own order. Lists of plain values are leaves.
pub fn flatten(value: &Value) -> Vec<(String, Value)> {
    fn walk(key: &str, value: &Value, leaves: &mut Vec<(String, Value)>) {
        match value {
            Value::Object(map) if !map.is_empty() => {
                for (name, value) in map {
                    let below = if key.is_empty() {
                        name.clone()
                    } else {
                        format!("{key}.{name}")
                    };
                    walk(&below, value, leaves);
                }
            }
            Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
                for (index, item) in items.iter().enumerate() {
                    walk(&format!("{key}[{index}]"), item, leaves);
                }
            }
            leaf => leaves.push((key.into(), leaf.clone())),
        }
    }
    let mut leaves = Vec::new();
    walk("", value, &mut leaves);
    leaves
}

/// The leaves in which two configurations differ, those of `before` first.
pub fn config_changes(before: &Value, after: &Value) -> Vec<ConfigChange> {
    let (before, after) = (flatten(before), flatten(after));
    let find = |leaves: &[(String, Value)], key: &str| {
        leaves
            .iter()
            .find(|(found, _)| found == key)
            .map_or(Value::Null, |(_, value)| value.clone())
    };
    let added = after
        .iter()
        .filter(|(key, _)| !before.iter().any(|(found, _)| found == key));
    before
        .iter()
        .chain(added)
        .map(|(key, _)| ConfigChange {
            key: key.clone(),
            before: find(&before, key),
            after: find(&after, key),
        })
        .filter(|change| change.before != change.after)
        .collect()
}

pub(crate) fn write_json(path: &Path, what: &str, value: &impl Serialize) -> Result<()> {
    atomic_write(path, what, |out| {
        serde_json::to_writer_pretty(&mut *out, value)?;
        out.write_all(b"\n")
    })
}

pub(crate) fn read_json<T: for<'de> Deserialize<'de>>(path: &Path, what: &str) -> Result<T> {
    let text = fs::read_to_string(path).map_err(|source| ReportError::read(what, path, source))?;
    serde_json::from_str(&text).map_err(|error| {
        ReportError::invalid(
            what,
            path,
            format!("is not valid: {error}"),
            "see whether it was edited by hand",
        )
    })
}
