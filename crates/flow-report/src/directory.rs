//! The run directory and its layout.

use std::fmt;
use std::fs;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::aside::first_free;
use crate::atomic::{Disk, Storage, atomic_write, remove_leftovers};
use crate::curve::LineChart;
use crate::error::{ReportError, Result};
use crate::grid::{ImageGrid, Picture};
use crate::lock::RunLock;
use crate::manifest::{Manifest, read_json, write_json};
use crate::metrics::{Metrics, MetricsStart, MetricsWriter};
use crate::store::CheckpointStore;
use crate::summary::RunSummary;
use crate::tensorboard::EventWriter;
use crate::traces::{Continuation, Traces, is_begun, is_run};

/// What to do if the run is there already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnExists {
    /// Stop with an error that lists the other choices.
    #[default]
    Error,
    /// Go on with it.
    Resume,
    /// Move it aside (to `NAME.replaced-1`, -2, …) and start afresh. Nothing is deleted.
    Overwrite,
    /// Use the next free name (`NAME-2`, -3, …).
    New,
}

impl OnExists {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Error, "error"),
        (Self::Resume, "resume"),
        (Self::Overwrite, "overwrite"),
        (Self::New, "new"),
    ];
}

impl fmt::Display for OnExists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL
            .iter()
            .find(|(policy, _)| policy == self)
            .map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

impl FromStr for OnExists {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        found
            .map(|(policy, _)| *policy)
            .ok_or_else(|| format!("{text:?} is not one of error, resume, overwrite, new"))
    }
}

/// How a run directory came to be open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// It is new.
    Created,
    /// It was there and is gone on with.
    Resumed,
    /// It is new, and the old one of its name is now at `moved_to`.
    Replaced {
        /// Where the old run is.
        moved_to: PathBuf,
    },
}

/// A run directory that this process alone writes.
///
/// | path | content |
/// |---|---|
/// | `run.json` | [`Manifest`] |
/// | `summary.json` | [`RunSummary`] |
/// | `metrics.jsonl` | one record per line, a function of the configuration and the seed alone |
/// | `timing.jsonl` | wall-clock values, by process |
/// | `events.out.tfevents.*` | TensorBoard event files, one per process |
/// | `images/KIND-step-000123.png` | image grids |
/// | `curves/NAME.svg` | curves |
/// | `checkpoints/step-000123.ckpt` | see [`CheckpointStore`] |
/// | `weights/` | LoRA or full weights |
/// | `report.html` | the report |
/// | `run.lock` | who writes the run now |
///
/// Where a metrics file is cut on resume, what was cut goes to `NAME.superseded.jsonl` beside it.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
    opened: Opened,
    notices: Vec<String>,
    _lock: RunLock,
}

const SUBDIRECTORIES: [&str; 4] = ["images", "curves", "checkpoints", "weights"];

impl RunDirectory {
    /// Opens `root/name` for writing; makes it if it is not there, and follows `on_exists` if it is.
    ///
    /// # Errors
    /// A name that is no directory name, an existing run under [`OnExists::Error`], a run that another process
    /// writes, a directory that holds something else than a run, or an input or output error.
    pub fn open(root: &Path, name: &str, on_exists: OnExists) -> Result<Self> {
        check_name(name)?;
        fs::create_dir_all(root)
            .map_err(|e| ReportError::write("directory", root, "nothing was changed", e))?;
        let path = root.join(name);
        if create(&path)? {
            return Self::fill(path, Opened::Created, None);
        }
        let contents = Contents::of(&path)?;
        match (on_exists, &contents) {
            (_, Contents::Empty) => Self::fill(path, Opened::Created, None),
            (OnExists::New, _) => loop {
                let next = first_free(|number| match number {
                    1 => path.clone(),
                    _ => root.join(format!("{name}-{number}")),
                });
                // Another process may take the name in between; then the next one is tried.
                if create(&next)? {
                    return Self::fill(next, Opened::Created, None);
                }
            },
            (_, Contents::Foreign(entries)) => Err(ReportError::invalid(
                "directory",
                &path,
                format!(
                    "is not a run directory: it has neither run.json nor checkpoints, but holds {entries}"
                ),
                "choose another run name",
            )),
            (OnExists::Error, Contents::Run(contents)) => Err(ReportError::RunExists {
                path,
                contents: contents.clone(),
            }),
            (OnExists::Resume, Contents::Run(_)) => Self::resume_at(path),
            (OnExists::Overwrite, Contents::Run(_)) => {
                // Holding the old run's lock makes sure that nobody is writing what is moved.
                let old = RunLock::acquire(&path)?;
                let moved_to = first_free(|number| root.join(format!("{name}.replaced-{number}")));
                fs::rename(&path, &moved_to).map_err(|e| {
                    ReportError::write("(move aside) run", &path, "the old run is where it was", e)
                })?;
                drop(old);
                if !create(&path)? {
                    let contents = "another process made it just now".into();
                    return Err(ReportError::RunExists { path, contents });
                }
                let notice = format!(
                    "the old run `{}` was moved to `{}`",
                    path.display(),
                    moved_to.display()
                );
                Self::fill(path, Opened::Replaced { moved_to }, Some(notice))
            }
        }
    }

    /// Opens `root/name` to go on with it; it is an error if there is no such run.
    ///
    /// # Errors
    /// [`ReportError::RunMissing`], which lists the runs there are; otherwise as [`RunDirectory::open`].
    pub fn resume(root: &Path, name: &str) -> Result<Self> {
        check_name(name)?;
        let path = root.join(name);
        match Contents::of(&path) {
            Ok(Contents::Run(_)) => Self::resume_at(path),
            Ok(Contents::Foreign(_) | Contents::Empty) => Err(ReportError::invalid(
                "directory",
                &path,
                "is not a run directory: it has neither run.json nor checkpoints",
                "choose another run name",
            )),
            Err(_) if !path.exists() => Err(missing(path)),
            Err(error) => Err(error),
        }
    }

    fn resume_at(path: PathBuf) -> Result<Self> {
        // A process that was killed before it wrote anything leaves a lock and empty folders: nothing to go on with.
        let opened = if is_begun(&path) {
            Opened::Resumed
        } else {
            Opened::Created
        };
        Self::fill(path, opened, None)
    }

    fn fill(path: PathBuf, opened: Opened, notice: Option<String>) -> Result<Self> {
        let lock = RunLock::acquire(&path)?;
        let mut notices: Vec<String> = notice
            .into_iter()
            .chain(lock.stale().map(str::to_owned))
            .collect();
        for directory in [&path]
            .into_iter()
            .cloned()
            .chain(SUBDIRECTORIES.iter().map(|name| path.join(name)))
        {
            fs::create_dir_all(&directory).map_err(|e| {
                ReportError::write("directory", &directory, "the run's other files are intact", e)
            })?;
            for leftover in remove_leftovers(&directory)? {
                notices.push(format!(
                    "removed `{}`, which a killed process left unfinished",
                    leftover.display()
                ));
            }
        }
        // A checkpoint is only as durable as the names of the directories above it.
        for directory in [Some(path.as_path()), path.parent()].into_iter().flatten() {
            if !directory.as_os_str().is_empty() {
                Disk.sync_directory(directory).map_err(|e| {
                    ReportError::write("directory", directory, "the run's files are intact", e)
                })?;
            }
        }
        Ok(Self {
            path,
            opened,
            notices,
            _lock: lock,
        })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The run's name.
    pub fn name(&self) -> String {
        self.path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    }

    /// How it was opened.
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// What opening it did that the user should know: a stale lock, removed leftovers, an old run moved.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Writes `run.json`.
    ///
    /// # Errors
    /// As [`atomic_write`].
    pub fn write_manifest(&self, manifest: &Manifest) -> Result<()> {
        manifest.write(&self.path.join("run.json"))
    }

    /// Reads `run.json`.
    ///
    /// # Errors
    /// As [`Manifest::read`].
    pub fn read_manifest(&self) -> Result<Manifest> {
        Manifest::read(&self.path.join("run.json"))
    }

    /// Writes `summary.json`.
    ///
    /// # Errors
    /// As [`atomic_write`].
    pub fn write_summary(&self, summary: &RunSummary) -> Result<()> {
        write_json(&self.path.join("summary.json"), "summary", summary)
    }

    /// Reads `summary.json`; `None` if the run has not written one.
    ///
    /// # Errors
    /// If it is there and cannot be read.
    pub fn read_summary(&self) -> Result<Option<RunSummary>> {
        let path = self.path.join("summary.json");
        if path.exists() {
            read_json(&path, "summary").map(Some)
        } else {
            Ok(None)
        }
    }

    /// Opens `metrics.jsonl`, whose bytes depend on configuration and seed alone.
    ///
    /// # Errors
    /// As [`MetricsWriter::open`].
    pub fn metrics(&self, start: MetricsStart) -> Result<MetricsWriter> {
        MetricsWriter::open(&self.path.join("metrics.jsonl"), start)
    }

    /// What the run has left.
    ///
    /// # Errors
    /// As [`Traces::of`].
    pub fn traces(&self) -> Result<Traces> {
        Traces::of(&self.path)
    }

    /// How to go on with the newest state of the run.
    ///
    /// # Errors
    /// As [`Traces::continuation`].
    pub fn continuation(&self) -> Result<Continuation> {
        self.traces()?.continuation(&self.path)
    }

    /// Opens `timing.jsonl`, where wall-clock values go, to append to it.
    ///
    /// # Errors
    /// As [`MetricsWriter::open`].
    pub fn timing(&self) -> Result<MetricsWriter> {
        MetricsWriter::open(&self.path.join("timing.jsonl"), MetricsStart::Append)
    }

    /// Reads `metrics.jsonl`.
    ///
    /// # Errors
    /// As [`Metrics::read`].
    pub fn read_metrics(&self) -> Result<Metrics> {
        Metrics::read(&self.path.join("metrics.jsonl"))
    }

    /// A TensorBoard event file of this process. It lies in the run directory itself, so that viewers call the run by its name; in
    /// `events/` where an earlier process has written there. `resumed_from` is the step the run goes on after, if
    /// it does; viewers then drop what earlier processes logged for later steps.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn events(&self, resumed_from: Option<u64>) -> Result<EventWriter> {
        let earlier = self.path.join("events");
        let has_earlier = fs::read_dir(&earlier).is_ok_and(|mut entries| entries.next().is_some());
        EventWriter::create(if has_earlier { &earlier } else { &self.path }, resumed_from)
    }

    /// The checkpoints of the run, of which the `keep` newest are kept.
    pub fn checkpoints(&self, keep: NonZeroUsize) -> CheckpointStore {
        CheckpointStore::new(self.path.join("checkpoints"), keep)
    }

    /// Where the weights go.
    pub fn weights(&self) -> PathBuf {
        self.path.join("weights")
    }

    /// Writes a grid to `images/KIND-step-000123.png` and returns it, for
    /// [`EventWriter::image`].
    ///
    /// # Errors
    /// A tile whose data do not fit its size, or as [`atomic_write`].
    pub fn write_grid(&self, kind: &str, step: u64, grid: &ImageGrid) -> Result<Picture> {
        check_name(kind)?;
        let picture = grid.picture()?;
        let path = self
            .path
            .join("images")
            .join(format!("{kind}-step-{step:06}.png"));
        atomic_write(&path, "image grid", |out| out.write_all(&picture.png))?;
        Ok(picture)
    }

    /// Writes a chart to `curves/NAME.svg`.
    ///
    /// # Errors
    /// As [`atomic_write`].
    pub fn write_curve(&self, name: &str, chart: &LineChart) -> Result<()> {
        check_name(name)?;
        let path = self.path.join("curves").join(format!("{name}.svg"));
        atomic_write(&path, "curve", |out| out.write_all(chart.svg().as_bytes()))
    }

    /// Writes the charts of [`run_charts`](crate::run_charts) that have a file name, from what the directory holds, to `curves/`.
    ///
    /// # Errors
    /// If the run's files cannot be read, or as [`atomic_write`].
    pub fn write_curves(&self) -> Result<()> {
        let data = crate::report::ReportData::read(&self.path)?;
        let groups = crate::report::run_charts(&data.metrics, &data.timing, data.summary.as_ref());
        for chart in groups.into_iter().flat_map(|group| group.charts) {
            if let Some(name) = chart.file {
                self.write_curve(name, &chart.chart)?;
            }
        }
        Ok(())
    }

    /// Makes `report.html` from what is in the directory and returns its path.
    ///
    /// # Errors
    /// If the run's files cannot be read, or as [`atomic_write`].
    pub fn write_report(&self) -> Result<PathBuf> {
        crate::report::write_report(&self.path)
    }
}

enum Contents {
    Empty,
    Run(String),
    Foreign(String),
}

impl Contents {
    fn of(path: &Path) -> Result<Self> {
        let unreadable = |source| ReportError::read("run directory", path, source);
        let mut names = Vec::new();
        for entry in fs::read_dir(path).map_err(unreadable)? {
            names.push(
                entry
                    .map_err(unreadable)?
                    .file_name()
                    .to_string_lossy()
                    .into_owned(),
            );
        }
        if names.is_empty() {
            return Ok(Self::Empty);
        }
        names.sort();
        if !is_run(path) {
            return Ok(Self::Foreign(
                names.into_iter().take(3).collect::<Vec<_>>().join(", "),
            ));
        }
        let store = CheckpointStore::new(path.join("checkpoints"), NonZeroUsize::MIN);
        Ok(Self::Run(match store.list()?.first() {
            Some((step, _)) => format!("its newest checkpoint is of step {step}"),
            None => "it has no checkpoint yet".into(),
        }))
    }
}

/// Makes a directory; `false` if something of that name is there.
fn create(path: &Path) -> Result<bool> {
    match fs::create_dir(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(false),
        Err(error) => Err(ReportError::write(
            "run directory",
            path,
            "nothing was changed",
            error,
        )),
    }
}

fn missing(path: PathBuf) -> ReportError {
    let mut runs: Vec<String> = path
        .parent()
        .and_then(|root| fs::read_dir(root).ok())
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path().join("run.json").is_file())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    runs.sort();
    let nearby = match runs.as_slice() {
        [] => "; there are no runs beside it".into(),
        runs => format!("; the runs beside it are: {}", runs.join(", ")),
    };
    ReportError::RunMissing { path, nearby }
}

fn check_name(name: &str) -> Result<()> {
    let problem = if name.is_empty() {
        "is empty"
    } else if name.starts_with(['.', '-', '~']) {
        "begins with `.`, `-` or `~`"
    } else if let Some(letter) = name
        .chars()
        .find(|c| c.is_control() || "/\\:*?\"<>|".contains(*c))
    {
        return Err(ReportError::RunName {
            name: name.into(),
            problem: format!("contains {letter:?}"),
        });
    } else if name.len() > 200 {
        "is longer than 200 bytes"
    } else {
        return Ok(());
    };
    Err(ReportError::RunName {
        name: name.into(),
        problem: problem.into(),
    })
}
