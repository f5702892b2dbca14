//! The checkpoints of a run: save, prune, find the newest that is valid.

use std::fs;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::atomic::{Disk, Storage};
use crate::container::{CheckpointError, CheckpointReader, CheckpointWriter, WrittenCheckpoint};
use crate::error::{ReportError, Result};

/// The directory of a run's checkpoints, `step-000123.ckpt` each.
#[derive(Clone)]
pub struct CheckpointStore {
    directory: PathBuf,
    keep: NonZeroUsize,
    storage: Arc<dyn Storage>,
}

/// What [`CheckpointStore::save`] did.
#[derive(Clone, Debug)]
pub struct Saved {
    /// The new checkpoint, durable.
    pub checkpoint: WrittenCheckpoint,
    /// Older checkpoints that were removed after that.
    pub pruned: Vec<PathBuf>,
    /// Older checkpoints that should have been removed and could not be, with the reason.
    pub not_pruned: Vec<(PathBuf, String)>,
}

/// The answer of [`CheckpointStore::latest`].
#[derive(Debug)]
pub struct Latest {
    /// The newest valid checkpoint, verified.
    pub found: Option<CheckpointReader>,
    /// Newer files that cannot be used and why. Tell the user about each of them.
    pub skipped: Vec<CheckpointError>,
}

impl CheckpointStore {
    /// A store in `directory` (made at the first save) that keeps the `keep` newest checkpoints.
    pub fn new(directory: impl Into<PathBuf>, keep: NonZeroUsize) -> Self {
        Self::with_storage(directory, keep, Arc::new(Disk))
    }

    /// A store whose writing goes through `storage`.
    pub fn with_storage(
        directory: impl Into<PathBuf>,
        keep: NonZeroUsize,
        storage: Arc<dyn Storage>,
    ) -> Self {
        Self {
            directory: directory.into(),
            keep,
            storage,
        }
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The file of a step, whether it exists or not.
    pub fn path_of(&self, step: u64) -> PathBuf {
        self.directory.join(format!("step-{step:06}.ckpt"))
    }

    /// Steps and files of the checkpoints, newest first, by name alone.
    ///
    /// # Errors
    /// If the directory exists and cannot be read.
    pub fn list(&self) -> Result<Vec<(u64, PathBuf)>> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(ReportError::read("checkpoint directory", &self.directory, source)),
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|e| ReportError::read("checkpoint directory", &self.directory, e))?;
            if let Some(step) = entry.file_name().to_str().and_then(step_of) {
                found.push((step, entry.path()));
            }
        }
        found.sort_by(|a, b| b.cmp(a));
        Ok(found)
    }

    /// Writes the checkpoint of `writer.step()` atomically, and only when it is durable removes the oldest ones so
    /// that `keep` are left. Checkpoints of later steps than this one are neither counted nor removed
    /// ([`CheckpointStore::supersede_after`] moves them).
    ///
    /// # Errors
    /// If it cannot be written; every earlier checkpoint is then still there. Failing to prune is no error, but is
    /// told in [`Saved::not_pruned`].
    pub fn save(&self, writer: &CheckpointWriter<'_>) -> Result<Saved> {
        fs::create_dir_all(&self.directory).map_err(|source| self.no_directory(source))?;
        let step = writer.step();
        let checkpoint = writer
            .write_in(&*self.storage, &self.path_of(step))
            .map_err(|e| self.name_previous(e))?;
        let mut saved = Saved {
            checkpoint,
            pruned: Vec::new(),
            not_pruned: Vec::new(),
        };
        let earlier = match self.list() {
            Ok(all) => all.into_iter().filter(|(found, _)| *found < step),
            Err(error) => {
                saved.not_pruned.push((self.directory.clone(), error.to_string()));
                return Ok(saved);
            }
        };
        for (_, path) in earlier.skip(self.keep.get() - 1) {
            match self.storage.remove(&path) {
                Ok(()) => saved.pruned.push(path),
                Err(error) => saved.not_pruned.push((path, error.to_string())),
            }
        }
        Ok(saved)
    }

    /// The newest valid checkpoint, and the newer ones that were passed over because they are not.
    ///
    /// # Errors
    /// If the directory cannot be read. That there is no valid checkpoint is not an error here.
    pub fn latest(&self) -> Result<Latest> {
        let mut skipped = Vec::new();
        for (_, path) in self.list()? {
            match CheckpointReader::open(&path) {
                Ok(found) => {
                    return Ok(Latest {
                        found: Some(found),
                        skipped,
                    });
                }
                Err(error) => skipped.push(error),
            }
        }
        Ok(Latest { found: None, skipped })
    }

    /// Moves the checkpoints of later steps than `step` into `superseded/` and returns their new paths. Call it when
    /// a run goes on from `step`, so that the ones of the abandoned future are not taken for its newest.
    ///
    /// # Errors
    /// If the directory cannot be read or a file cannot be moved.
    pub fn supersede_after(&self, step: u64) -> Result<Vec<PathBuf>> {
        let mut moved = Vec::new();
        for (_, path) in self.list()?.into_iter().filter(|(found, _)| *found > step) {
            let rename = |from: &Path, to: &Path| self.storage.rename(from, to);
            moved.push(crate::directory::supersede(&path, "checkpoint", rename)?);
        }
        Ok(moved)
    }

    fn no_directory(&self, source: io::Error) -> ReportError {
        let write = ReportError::write(
            "checkpoint directory",
            &self.directory,
            "nothing was changed",
            source,
        );
        self.name_previous(write)
    }

    /// Adds to a failure the checkpoint that one can still resume from.
    fn name_previous(&self, error: ReportError) -> ReportError {
        match error {
            ReportError::Write {
                what,
                path,
                mut state,
                help,
                source,
            } => {
                if let Ok(Latest {
                    found: Some(found), ..
                }) = self.latest()
                {
                    state += &format!(
                        "; `{}` (step {}) is valid to resume from",
                        found.path().display(),
                        found.step()
                    );
                }
                ReportError::Write {
                    what,
                    path,
                    state,
                    help,
                    source,
                }
            }
            other => other,
        }
    }
}

/// The step of a checkpoint's file name.
fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("step-")?.strip_suffix(".ckpt")?;
    digits
        .bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| digits.parse().ok())
        .flatten()
}
