//! The checkpoints of a run: save, prune, find the newest that is valid.

use std::fs;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::atomic::{Disk, Storage};
use crate::container::{CheckpointReader, CheckpointWriter, WrittenCheckpoint};
use crate::container_error::CheckpointError;
use crate::error::{ReportError, Result};

/// The directory of a run's checkpoints, `step-000123.ckpt` each. A process keeps one store as long as it writes: what a store did
/// not write itself it neither removes nor replaces.
#[derive(Clone)]
pub struct CheckpointStore {
    directory: PathBuf,
    keep: NonZeroUsize,
    storage: Arc<dyn Storage>,
    /// What this store has written, oldest first.
    written: Vec<PathBuf>,
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
            written: Vec::new(),
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

    /// Writes the checkpoint of `writer.step()` atomically, and only when it is durable removes the oldest ones that this store
    /// wrote, so that `keep` of them are left. Checkpoints that were there before the store are not counted and not removed; one in
    /// the place of the new one is moved to `superseded/`.
    ///
    /// # Errors
    /// If it cannot be written; every earlier checkpoint is then still there. Failing to prune is no error, but is
    /// told in [`Saved::not_pruned`].
    pub fn save(&mut self, writer: &CheckpointWriter<'_>) -> Result<Saved> {
        fs::create_dir_all(&self.directory).map_err(|source| self.no_directory(source))?;
        let path = self.path_of(writer.step());
        if path.symlink_metadata().is_ok() && !self.written.contains(&path) {
            self.move_aside(&path)?;
        }
        let checkpoint = writer
            .write_in(&*self.storage, &path)
            .map_err(|e| self.name_previous(e))?;
        let mut saved = Saved {
            checkpoint,
            pruned: Vec::new(),
            not_pruned: Vec::new(),
        };
        self.written.retain(|written| *written != path);
        self.written.push(path);
        while self.written.len() > self.keep.get() {
            let oldest = self.written.remove(0);
            match self.storage.remove(&oldest) {
                Ok(()) => saved.pruned.push(oldest),
                // Someone else removed it: it is not there, as wanted.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => saved.not_pruned.push((oldest, error.to_string())),
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
        let later = self.list()?.into_iter().filter(|(found, _)| *found > step);
        later.map(|(_, path)| self.move_aside(&path)).collect()
    }

    /// Moves the checkpoint at `path` into `superseded/` and returns its new path.
    ///
    /// # Errors
    /// If it cannot be moved.
    pub fn move_aside(&self, path: &Path) -> Result<PathBuf> {
        let rename = |from: &Path, to: &Path| self.storage.rename(from, to);
        crate::aside::supersede(path, "checkpoint", rename)
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
pub(crate) fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("step-")?.strip_suffix(".ckpt")?;
    digits
        .bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| digits.parse().ok())
        .flatten()
}
