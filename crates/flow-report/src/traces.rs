//! What a run has left in its directory, and what that says of going on with it.
//!
//! No single file says whether there is a run to go on with: files get lost, moved and renamed. So all are looked at.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::container::peek_checkpoint;
use crate::error::{ReportError, Result};
use crate::lock::LOCK_FILE;
use crate::manifest::Manifest;
use crate::metrics::Metrics;
use crate::run_id::{RunId, RunStamp};
use crate::store::step_of;

/// The kind of a record of `timing.jsonl` that says that a checkpoint was saved.
pub const CHECKPOINT_RECORD: &str = "checkpoint";

/// `run.json`, as it was found.
#[derive(Clone, Debug)]
pub enum ManifestFound {
    /// There is none.
    Missing,
    /// It is whole.
    Whole(Box<Manifest>),
    /// It cannot be read, for this reason.
    Damaged(String),
}

/// A file of `checkpoints/` by its header; its content is not verified.
#[derive(Clone, Debug)]
pub struct CheckpointFound {
    /// The step of its name.
    pub step: u64,
    /// The file.
    pub path: PathBuf,
    /// The run that it is of, as far as it can be read and says so.
    pub run: Option<RunStamp>,
}

/// What a run has left.
#[derive(Clone, Debug)]
pub struct Traces {
    /// `run.json`.
    pub manifest: ManifestFound,
    /// `checkpoints/step-….ckpt`, newest first.
    pub checkpoints: Vec<CheckpointFound>,
    /// Checkpoints under other names or in other folders of the directory, those called `superseded` left out.
    pub elsewhere: Vec<PathBuf>,
    /// The last step that metrics, timing, summary or pictures speak of.
    pub last_step: Option<u64>,
    /// Whether there are weights.
    pub has_weights: bool,
    /// Whether `timing.jsonl` is there and knows of no checkpoint, by a version that would have noted one.
    pub never_saved: bool,
}

/// How to go on with a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continuation {
    /// From a checkpoint.
    FromCheckpoint,
    /// From its first step: nothing was saved.
    FromStart,
}

impl Traces {
    /// Looks at all that is in `directory`.
    ///
    /// # Errors
    /// If the directory cannot be read, or its `run.json` is of a newer version.
    pub fn of(directory: &Path) -> Result<Self> {
        let manifest = manifest_of(directory)?;
        let mut checkpoints = Vec::new();
        let mut elsewhere = Vec::new();
        for file in checkpoint_files(directory)? {
            let step = file.file_name().and_then(|name| name.to_str()).and_then(step_of);
            match step.filter(|_| file.parent() == Some(&directory.join("checkpoints"))) {
                Some(step) => checkpoints.push(CheckpointFound {
                    step,
                    run: peek_checkpoint(&file)
                        .ok()
                        .and_then(|(_, meta)| RunStamp::of(&meta)),
                    path: file,
                }),
                None => elsewhere.push(file),
            }
        }
        checkpoints.sort_by_key(|found| std::cmp::Reverse(found.step));
        elsewhere.sort();
        let timing = Metrics::read(&directory.join("timing.jsonl")).ok();
        let has_id = matches!(&manifest, ManifestFound::Whole(manifest) if manifest.run_id.is_some());
        let knows_none = |timing: &Metrics| timing.of_kind(CHECKPOINT_RECORD).next().is_none();
        Ok(Self {
            manifest,
            checkpoints,
            elsewhere,
            last_step: last_step(directory, timing.as_ref()),
            has_weights: has_files(&directory.join("weights")),
            never_saved: has_id && timing.as_ref().is_some_and(knows_none),
        })
    }

    /// The run that the directory is of: by its manifest, else by its checkpoints if these are all of one run.
    pub fn run_id(&self) -> Option<&RunId> {
        let of_manifest = match &self.manifest {
            ManifestFound::Whole(manifest) => manifest.run_id.as_ref(),
            ManifestFound::Missing | ManifestFound::Damaged(_) => None,
        };
        of_manifest.or_else(|| {
            let mut ids = self
                .checkpoints
                .iter()
                .filter_map(|found| Some(&found.run.as_ref()?.id));
            let first = ids.next()?;
            ids.all(|id| id == first).then_some(first)
        })
    }

    /// How to go on with the newest state of the run in `directory`.
    ///
    /// # Errors
    /// [`ReportError::NoWayOn`] if it did work and its checkpoints are gone, or if there are checkpoints of several runs: beginning
    /// again, or choosing one, would not be what was asked for.
    pub fn continuation(&self, directory: &Path) -> Result<Continuation> {
        let no_way_on = |problem: String, help: String| ReportError::NoWayOn {
            path: directory.into(),
            problem,
            help,
        };
        let name_one = |path: &Path| format!("`--resume {}`", path.display());
        if !self.checkpoints.is_empty() {
            let runs = self.runs();
            if runs.len() < 2 {
                return Ok(Continuation::FromCheckpoint);
            }
            let problem = format!(
                "its folder `checkpoints` holds checkpoints of {} runs: {}",
                runs.len(),
                runs.values().cloned().collect::<Vec<_>>().join("; ")
            );
            return Err(no_way_on(problem, self.way_out_of_several_runs()));
        }
        let done = self.last_step.unwrap_or(0);
        let anew =
            "to begin anew, pass `--on-exists overwrite` (moves all of this aside) or `--on-exists new`";
        if let Some(file) = self.elsewhere.last() {
            let there: Vec<String> = (self.elsewhere.iter())
                .map(|file| file.strip_prefix(directory).unwrap_or(file).display().to_string())
                .collect();
            let problem = format!(
                "there is no `checkpoints/step-….ckpt` in it, but there is {}",
                there.join(", ")
            );
            let help = format!(
                "pass {} to go on from it, or move it back to `checkpoints/step-….ckpt`; {anew}",
                name_one(file)
            );
            return Err(no_way_on(problem, help));
        }
        let has_worked = done > 0 && !self.never_saved;
        if has_worked || self.has_weights {
            let did = if done > 0 {
                format!("it has done {done} iteration(s)")
            } else {
                "it has written weights".into()
            };
            let problem = format!("{did}, but there is no checkpoint in its folder `checkpoints`");
            let help =
                format!("put the checkpoints back, or pass `--resume PATH` with the path of one; {anew}");
            return Err(no_way_on(problem, help));
        }
        Ok(Continuation::FromStart)
    }

    /// What to do about checkpoints of several runs: only those of the run that the directory is of may be gone on from in it.
    fn way_out_of_several_runs(&self) -> String {
        let id = self.run_id();
        let is_own = |found: &&CheckpointFound| id.is_none() || found.run.as_ref().map(|run| &run.id) == id;
        if let Some(own) = self.checkpoints.iter().find(is_own) {
            return format!(
                "move those of the other run away, or name the checkpoint to go on from, for example `--resume {}`; files of \
                 the other run are then moved to `checkpoints/superseded`",
                own.path.display()
            );
        }
        let any = self
            .checkpoints
            .first()
            .map_or(Path::new("PATH"), |found| found.path.as_path());
        format!(
            "put the checkpoints of the run of `run.json` back and move the others away, or begin another run from one of \
             them, for example `--resume {} --set run.name=NAME`",
            any.display()
        )
    }

    /// The runs that checkpoints and manifest are of, each with its steps in words.
    fn runs(&self) -> BTreeMap<&RunId, String> {
        let mut steps: BTreeMap<&RunId, (String, Vec<String>)> = BTreeMap::new();
        for found in &self.checkpoints {
            let Some(run) = &found.run else { continue };
            let of_run = steps
                .entry(&run.id)
                .or_insert_with(|| (run.to_string(), Vec::new()));
            of_run.1.push(found.step.to_string());
        }
        if let ManifestFound::Whole(manifest) = &self.manifest
            && let Some(id) = &manifest.run_id
            && !steps.is_empty()
        {
            let described = format!("{} ({}, the one of `run.json`)", manifest.run, id.short());
            steps.entry(id).or_insert((described, Vec::new()));
        }
        let in_words = |(id, (run, mut steps)): (_, (String, Vec<String>))| {
            steps.reverse();
            let steps = match steps.as_slice() {
                [] => "no checkpoint".into(),
                steps => format!("step {}", steps.join(", ")),
            };
            (id, format!("{run}: {steps}"))
        };
        steps.into_iter().map(in_words).collect()
    }
}

/// Whether the entries of a directory are those of a run: it has a manifest, a lock or checkpoints.
pub(crate) fn is_run(directory: &Path) -> bool {
    let has = |name: &str| directory.join(name).exists();
    has("run.json") || has(LOCK_FILE) || has_checkpoint(&directory.join("checkpoints"))
}

/// Whether anything was begun in the directory that a new run would write over.
pub(crate) fn is_begun(directory: &Path) -> bool {
    let written = ["metrics.jsonl", "timing.jsonl"].map(|name| directory.join(name));
    let written = written
        .iter()
        .any(|file| fs::metadata(file).is_ok_and(|file| file.len() > 0));
    let there = ["run.json", "summary.json"]
        .iter()
        .any(|name| directory.join(name).exists());
    let folders = ["images", "weights"].map(|name| directory.join(name));
    written
        || there
        || folders.iter().any(|folder| has_files(folder))
        || checkpoint_files(directory).is_ok_and(|files| !files.is_empty())
}

fn manifest_of(directory: &Path) -> Result<ManifestFound> {
    let path = directory.join("run.json");
    if path.symlink_metadata().is_err() {
        return Ok(ManifestFound::Missing);
    }
    match Manifest::read(&path) {
        Ok(manifest) => Ok(ManifestFound::Whole(Box::new(manifest))),
        Err(error) if Manifest::is_newer(&path) => Err(error),
        Err(error) => {
            let text = error.to_string();
            Ok(ManifestFound::Damaged(
                text.lines().next().unwrap_or_default().into(),
            ))
        }
    }
}

/// Files that end in `.ckpt`, in the directory and in the folders in it, `superseded` left out.
fn checkpoint_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).map_err(|e| ReportError::read("run directory", directory, e))?;
    let mut files = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() && entry.file_name() != "superseded" {
            files.extend(
                fs::read_dir(&path)
                    .into_iter()
                    .flatten()
                    .flatten()
                    .map(|inner| inner.path()),
            );
        } else {
            files.push(path);
        }
    }
    files.retain(|file| file.extension().is_some_and(|extension| extension == "ckpt") && file.is_file());
    Ok(files)
}

fn has_checkpoint(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.path());
    names.any(|file| file.extension().is_some_and(|extension| extension == "ckpt"))
}

fn has_files(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name());
    names.any(|name| name != "superseded")
}

/// The last step that anything but a checkpoint speaks of.
fn last_step(directory: &Path, timing: Option<&Metrics>) -> Option<u64> {
    let metrics = Metrics::read(&directory.join("metrics.jsonl")).ok();
    let logs = [metrics.as_ref(), timing].into_iter().flatten();
    let logged = logs
        .flat_map(|log| log.records.iter().map(|record| record.step))
        .max();
    let summary = fs::read_to_string(directory.join("summary.json")).ok();
    let summary: Option<Value> = summary.and_then(|text| serde_json::from_str(&text).ok());
    let summed = summary.and_then(|summary| summary.get("steps")?.as_u64());
    let grids = crate::report::files(&directory.join("images"), "png").unwrap_or_default();
    let pictured = grids
        .iter()
        .filter_map(|path| Some(crate::report::grid_of(path)?.1))
        .max();
    [logged, summed, pictured].into_iter().flatten().max()
}
