//! Before a run: its directory, its manifest, and what to say about both.

use crate::arguments::{Existing, TrainArguments};
use crate::commands::Loaded;
use crate::failure::{Failure, OrFailure};
use flow_accel::Arrangement;
use flow_config::Config;
use flow_report::{Manifest, MetricsPosition, MetricsStart, OnExists, Opened, RunDirectory};
use flow_trainer::setup::Environment;
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// How a run begins.
pub enum Start {
    /// From its first iteration; and what is to be said of it.
    Fresh(RunDirectory, Vec<String>),
    /// From its newest checkpoint, or from the one given.
    Resume(RunDirectory, Option<PathBuf>),
}

/// Opens the run's directory as command line and config ask.
pub fn directory(arguments: &TrainArguments, config: &Config) -> Result<Start, Failure> {
    let (root, name) = (&config.run.dir, &config.run.name);
    if let Some(from) = &arguments.resume {
        let from = checkpoint(from)?;
        return resumed(RunDirectory::resume(root, name).or_bad_input()?, from);
    }
    let given = arguments.on_exists.map(|policy| match policy {
        Existing::Error => OnExists::Error,
        Existing::Resume => OnExists::Resume,
        Existing::Overwrite => OnExists::Overwrite,
        Existing::New => OnExists::New,
    });
    let policy = given.unwrap_or(match config.run.on_exists {
        flow_config::OnExists::Error => OnExists::Error,
        flow_config::OnExists::Resume => OnExists::Resume,
        flow_config::OnExists::Overwrite => OnExists::Overwrite,
        flow_config::OnExists::New => OnExists::New,
    });
    let directory = RunDirectory::open(root, name, policy).or_bad_input()?;
    match directory.opened() {
        Opened::Resumed => resumed(directory, None),
        Opened::Created | Opened::Replaced { .. } => Ok(Start::Fresh(directory, Vec::new())),
    }
}

/// The checkpoint that `--resume` names; `None` for the newest.
fn checkpoint(from: &str) -> Result<Option<PathBuf>, Failure> {
    if from == "latest" {
        return Ok(None);
    }
    let path = PathBuf::from(from);
    if !path.is_file() {
        return Err(Failure::Input(format!(
            "there is no checkpoint `{from}`; pass `--resume latest`, or one of the files in the run's folder \
             `checkpoints`"
        )));
    }
    Ok(Some(path))
}

/// A run that was killed before an iteration was saved has nothing to go on from and begins again; records that it
/// wrote go to `metrics.superseded.jsonl`.
fn resumed(directory: RunDirectory, from: Option<PathBuf>) -> Result<Start, Failure> {
    let fresh = *directory.opened() == Opened::Created;
    let checkpoints = directory.checkpoints(NonZeroUsize::MIN).list().or_bad_input()?;
    let has_iteration = checkpoints.iter().any(|(step, _)| *step > 0);
    if from.is_some() || (has_iteration && !fresh) {
        return Ok(Start::Resume(directory, from));
    }
    let metrics = directory.metrics(MetricsStart::At(MetricsPosition::default()));
    let mut notices = metrics.or_failed()?.notices().to_vec();
    if !fresh {
        directory.supersede_grids_after(0).or_failed()?;
        notices.push("the run has no checkpoint of an iteration to go on from and begins again".into());
    }
    Ok(Start::Fresh(directory, notices))
}

/// What the run is, for `run.json`.
pub fn manifest(
    directory: &RunDirectory,
    loaded: &Loaded,
    environment: &Environment<'_>,
    acceleration: &Arrangement,
) -> Result<Manifest, Failure> {
    let resolved = &loaded.resolved;
    let config = serde_json::to_value(&resolved.config).or_failed()?;
    let here = std::env::current_dir().unwrap_or_default();
    let mut manifest = Manifest::new(&directory.name(), std::env::args().collect(), config, &here);
    manifest.versions.extend(flow_train::versions());
    manifest.device = flow_train::manifest_device(&resolved.config, environment, acceleration);
    let options = serde_json::to_value(loaded.options()).or_failed()?;
    manifest.device.insert("runtime_options".into(), options);
    manifest.config_sources = resolved
        .sources
        .iter()
        .map(|(key, source)| (manifest_key(key), source.to_string()))
        .collect();
    Ok(manifest)
}

/// `rewards.0.kind` as the manifest writes it: `rewards[0].kind`.
fn manifest_key(key: &str) -> String {
    let mut text = String::new();
    for part in key.split('.') {
        if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            text.push_str(&format!("[{part}]"));
        } else {
            if !text.is_empty() {
                text.push('.');
            }
            text.push_str(part);
        }
    }
    text
}

/// Values that the resumed run changes, as sentences.
pub fn changes(directory: &RunDirectory) -> Vec<String> {
    let changes = directory
        .read_manifest()
        .ok()
        .and_then(|mut manifest| Some(manifest.resumes.pop()?.config_changes));
    let sentence = |change: flow_report::ConfigChange| {
        format!(
            "changed since the start: {} = {}, was {}",
            change.key, change.after, change.before
        )
    };
    changes.unwrap_or_default().into_iter().map(sentence).collect()
}

/// The command that goes on with the run called `name`.
pub fn resume_command(arguments: &TrainArguments, config: &Config, name: &str) -> String {
    let mut command = format!(
        "flow-train train {}",
        quoted(&arguments.config.config.display().to_string())
    );
    let mut overrides: Vec<String> = arguments.config.set.clone();
    if config.run.name != name {
        // `--on-exists new` gave it another name than the config.
        overrides.push(format!("run.name={name}"));
    }
    for one in overrides {
        command.push_str(&format!(" --set {}", quoted(&one)));
    }
    command.push_str(" --resume latest");
    command
}

/// An argument as a POSIX shell reads it.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}
