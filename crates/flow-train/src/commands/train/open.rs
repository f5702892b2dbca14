//! Before a run: its directory, its manifest, and what to say about both.

use super::defaults;
use crate::arguments::{Existing, TrainArguments};
use crate::command_line::{self, quoted};
use crate::commands::config_report::ConfigUse;
use crate::commands::{CommandContext, described, nearest};
use crate::failure::{Failure, OrFailure};
use flow_accel::Arrangement;
use flow_config::{Config, Diagnostic, Severity};
use flow_report::{
    CheckpointReader, Continuation, Manifest, OnExists, Opened, RunDirectory, Traces, peek_checkpoint,
};
use flow_train::Registries;
use flow_trainer::TrainError;
use flow_trainer::description::{Description, forbidden};
use flow_trainer::setup::{Environment, PipelineFolders};
use flow_validate::codes;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// How a run begins.
pub enum Start {
    /// From its first iteration; and what is to be said of it.
    Fresh(RunDirectory, Vec<String>),
    /// From its newest checkpoint, or from the one given.
    Resume(RunDirectory, Option<PathBuf>),
}

/// Before anything is built of a config that goes on with a run: whether it describes that run. What cannot be read here is for
/// others to say. Gives whether there is a checkpoint to go on from.
pub fn compare(arguments: &TrainArguments, folders: &PipelineFolders) -> Result<bool, Failure> {
    let registries = Registries::built_in().or_failed()?;
    let catalog = registries.catalog();
    // A run that begins is compared with nothing, so its files are not asked.
    let plain = flow_config::inspect(&catalog, &arguments.config.config, &arguments.config.set).partial;
    if !plain.is_some_and(|plain| goes_on(arguments, &plain.config)) {
        return Ok(false);
    }
    let inspection = described::inspect(
        &arguments.config,
        ConfigUse::Training,
        (&registries.plugins.models, &catalog),
        folders,
    )?;
    // A config that contradicts its weights contradicts the run, too, which says more.
    let is_wrong = |one: &Diagnostic| one.severity == Severity::Error && one.code != codes::OTHER_MODEL;
    let Some(resolved) = inspection
        .partial
        .filter(|resolved| !resolved.report.diagnostics.iter().any(is_wrong))
    else {
        return Ok(false);
    };
    let config = &resolved.config;
    let directory = config.run.dir.join(&config.run.name);
    let traces = Traces::of(&directory).ok();
    let named = arguments
        .resume
        .as_deref()
        .filter(|from| *from != Path::new("latest"));
    let candidates: Vec<PathBuf> = match (named, &traces) {
        (Some(named), _) => vec![PathBuf::from(named)],
        (None, Some(traces)) => traces
            .checkpoints
            .iter()
            .map(|found| found.path.clone())
            .collect(),
        (None, None) => Vec::new(),
    };
    let readable = candidates
        .into_iter()
        .find_map(|path| Some((peek_checkpoint(&path).ok()?.1, path)));
    let Some((meta, path)) = readable else {
        return Ok(false);
    };
    let Some(before) = Description::of_checkpoint(&meta, traces.as_ref()) else {
        return Ok(true);
    };
    let changes = before.changes(&Description::of_config(config), &catalog);
    TrainError::if_other_run(&path, &forbidden(&changes)).or_bad_input()?;
    Ok(true)
}

/// Whether the run is to go on, from its newest checkpoint or a named one.
pub fn goes_on(arguments: &TrainArguments, config: &Config) -> bool {
    arguments.resume.is_some() || policy(arguments, config) == OnExists::Resume
}

/// Whether the run is to go on from its newest checkpoint.
pub fn goes_on_from_newest(arguments: &TrainArguments, config: &Config) -> bool {
    let named = arguments.resume.as_deref();
    goes_on(arguments, config) && named.is_none_or(|named| named == Path::new("latest"))
}

/// Opens the run's directory as command line and config ask.
pub fn directory(arguments: &TrainArguments, config: &Config) -> Result<Start, Failure> {
    let (root, name) = (&config.run.dir, &config.run.name);
    if let Some(from) = &arguments.resume {
        let Some(from) = checkpoint(from)? else {
            return resumed(RunDirectory::resume(root, name).or_bad_input()?);
        };
        if !root.join(name).exists() {
            // A checkpoint that cannot be used leaves no new folder.
            CheckpointReader::open(&from).or_bad_input()?;
        }
        let directory = RunDirectory::open(root, name, OnExists::Resume).or_bad_input()?;
        return Ok(Start::Resume(directory, Some(from)));
    }
    let directory = RunDirectory::open(root, name, policy(arguments, config)).or_bad_input()?;
    match directory.opened() {
        Opened::Resumed => resumed(directory),
        Opened::Created | Opened::Replaced { .. } => Ok(Start::Fresh(directory, Vec::new())),
    }
}

fn policy(arguments: &TrainArguments, config: &Config) -> OnExists {
    let given = arguments.on_exists.map(|policy| match policy {
        Existing::Error => OnExists::Error,
        Existing::Resume => OnExists::Resume,
        Existing::Overwrite => OnExists::Overwrite,
        Existing::New => OnExists::New,
    });
    given.unwrap_or(match config.run.on_exists {
        flow_config::OnExists::Error => OnExists::Error,
        flow_config::OnExists::Resume => OnExists::Resume,
        flow_config::OnExists::Overwrite => OnExists::Overwrite,
        flow_config::OnExists::New => OnExists::New,
    })
}

/// The checkpoint that `--resume` names; `None` for the newest.
fn checkpoint(from: &Path) -> Result<Option<PathBuf>, Failure> {
    if from == Path::new("latest") {
        return Ok(None);
    }
    if from.is_file() {
        return Ok(Some(from.to_owned()));
    }
    let help = match newest_below(from) {
        Some(file) => format!(
            "it is a folder; pass `--resume {}`, the newest checkpoint in it",
            file.display()
        ),
        None if from.is_dir() => {
            "it is a folder, and there is no `step-….ckpt` in it or in its folder `checkpoints`".into()
        }
        None => {
            let hint = nearest::path_in_words(from, |path| nearest::has_ending(path, "ckpt"));
            format!("pass `--resume latest`, or one of the files in the run's folder `checkpoints`{hint}")
        }
    };
    Err(Failure::Input(format!(
        "there is no checkpoint `{}`; {help}",
        from.display()
    )))
}

/// The newest checkpoint in a folder, or in the folder `checkpoints` in it.
fn newest_below(folder: &Path) -> Option<PathBuf> {
    let folders = [folder.join("checkpoints"), folder.to_owned()];
    folders.iter().find_map(|folder| {
        let store = flow_report::CheckpointStore::new(folder, NonZeroUsize::MIN);
        Some(store.list().ok()?.into_iter().next()?.1)
    })
}

/// A run from which nothing was saved has nothing to go on from and begins again; what it wrote is moved aside.
fn resumed(directory: RunDirectory) -> Result<Start, Failure> {
    if *directory.opened() == Opened::Created {
        return Ok(Start::Fresh(directory, Vec::new()));
    }
    match directory.continuation().or_bad_input()? {
        Continuation::FromCheckpoint => Ok(Start::Resume(directory, None)),
        Continuation::FromStart => {
            let mut notices = vec!["the run saved no state to go on from and begins again".to_owned()];
            notices.extend(directory.supersede_all().or_failed()?);
            Ok(Start::Fresh(directory, notices))
        }
    }
}

/// What the run is, for `run.json`.
pub fn manifest(
    directory: &RunDirectory,
    context: &CommandContext,
    environment: &Environment<'_>,
    acceleration: &Arrangement,
) -> Result<Manifest, Failure> {
    let resolved = &context.resolved;
    let config = serde_json::to_value(&resolved.config).or_failed()?;
    let here = std::env::current_dir().unwrap_or_default();
    let mut manifest = Manifest::new(&directory.name(), command_line::words(), config, &here);
    manifest.versions.extend(flow_train::versions());
    manifest.device = flow_train::manifest_device(&resolved.config, environment, acceleration);
    let ranks = environment.exchange.world().ranks;
    if ranks > 1 {
        manifest.device.insert("processes".into(), ranks.into());
    }
    let options = serde_json::to_value(context.options()).or_failed()?;
    manifest.device.insert("runtime_options".into(), options);
    manifest.config_sources = resolved
        .sources
        .iter()
        .map(|(key, source)| (manifest_key(key), source.to_string()))
        .collect();
    manifest.config_defaults = defaults::of(&context.catalog, &resolved.sources);
    Ok(manifest)
}

/// `rewards.0.kind` as the manifest writes it: `rewards[0].kind`.
pub(super) fn manifest_key(key: &str) -> String {
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

/// The command that goes on with the run called `name`.
pub fn resume_command(arguments: &TrainArguments, config: &Config, name: &str) -> String {
    let mut command = format!("flow-train train {}", quoted(arguments.config.config.as_os_str()));
    let mut overrides: Vec<String> = arguments.config.set.clone();
    if config.run.name != name {
        // `--on-exists new` gave it another name than the config.
        overrides.push(format!("run.name={name}"));
    }
    for one in overrides {
        command.push_str(&format!(" --set {}", quoted(one.as_ref())));
    }
    command.push_str(" --resume latest");
    command
}
