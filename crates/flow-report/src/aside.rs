//! Moving files of a run aside, so that nothing is lost when it goes on otherwise.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use crate::directory::RunDirectory;
use crate::error::{ReportError, Result};
use crate::hash::ContentHash;

impl RunDirectory {
    /// Moves everything that a run wrote here into folders called `superseded`, so that it begins again with nothing lost, and
    /// says of what.
    ///
    /// # Errors
    /// If a file cannot be moved.
    pub fn supersede_all(&self) -> Result<Vec<String>> {
        let mut moved = Vec::new();
        for name in [
            "run.json",
            "metrics.jsonl",
            "timing.jsonl",
            "summary.json",
            "report.html",
        ] {
            moved.extend(self.supersede_file(name)?);
        }
        for (_, path) in self.checkpoints(NonZeroUsize::MIN).list()? {
            moved.push(supersede(&path, "checkpoint", |from, to| fs::rename(from, to))?);
        }
        self.supersede_grids(|_| true)?;
        self.supersede_weights()?;
        Ok(moved
            .iter()
            .map(|path| format!("kept `{}`", path.display()))
            .collect())
    }

    /// Moves a file of the directory into `superseded/`, if it is there, and returns its new path.
    ///
    /// # Errors
    /// If it cannot be moved.
    pub fn supersede_file(&self, name: &str) -> Result<Option<PathBuf>> {
        let path = self.path().join(name);
        let is_empty = fs::metadata(&path).is_ok_and(|file| file.len() == 0);
        if path.symlink_metadata().is_err() || is_empty {
            return Ok(None);
        }
        supersede(&path, "file", |from, to| fs::rename(from, to)).map(Some)
    }

    /// Of weights that [`supersede_weights`](Self::supersede_weights) moved, removes those whose like was written in their old place.
    ///
    /// # Errors
    /// If something cannot be read or removed.
    pub fn drop_same(&self, moved: &[(PathBuf, PathBuf)]) -> Result<()> {
        for (old, new) in moved {
            if !is_same(old, new).map_err(|e| ReportError::read("weights", new, e))? {
                continue;
            }
            let removed = if new.is_dir() {
                fs::remove_dir_all(new)
            } else {
                fs::remove_file(new)
            };
            removed.map_err(|e| {
                ReportError::write("(remove) weights", new, "the same weights are there twice", e)
            })?;
        }
        // A folder that still holds something stays.
        drop(fs::remove_dir(self.weights().join("superseded")));
        Ok(())
    }

    /// Moves what is in `weights/` into `weights/superseded/`, and returns the old and the new path of each.
    ///
    /// # Errors
    /// If something cannot be moved.
    pub fn supersede_weights(&self) -> Result<Vec<(PathBuf, PathBuf)>> {
        let mut moved = Vec::new();
        for entry in fs::read_dir(self.weights()).into_iter().flatten().flatten() {
            if entry.file_name() == "superseded" {
                continue;
            }
            let new = supersede(&entry.path(), "weights", |from, to| fs::rename(from, to))?;
            moved.push((entry.path(), new));
        }
        Ok(moved)
    }

    /// Moves the pictures of later steps than `step` into `images/superseded/`: those of a future that a run which goes on from
    /// `step` abandons.
    ///
    /// # Errors
    /// If a file cannot be moved.
    pub fn supersede_grids_after(&self, step: u64) -> Result<()> {
        self.supersede_grids(|found| found > step)
    }

    fn supersede_grids(&self, wanted: impl Fn(u64) -> bool) -> Result<()> {
        let images = self.path().join("images");
        for path in crate::report::files(&images, "png")? {
            if crate::report::grid_of(&path).is_none_or(|(_, found)| !wanted(found)) {
                continue;
            }
            supersede(&path, "image grid", |from, to| fs::rename(from, to))?;
        }
        Ok(())
    }
}

/// Moves the `what` at `path` into the folder `superseded` beside it, where it gets a name that no other has, and returns its new path.
pub(crate) fn supersede(
    path: &Path,
    what: &str,
    rename: impl FnOnce(&Path, &Path) -> std::io::Result<()>,
) -> Result<PathBuf> {
    let state = format!("the {what} is where it was");
    let failed = |source| ReportError::write(&format!("(move aside) {what}"), path, &state, source);
    let aside = path.with_file_name("superseded");
    fs::create_dir_all(&aside).map_err(failed)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let target = first_free(|number| match number {
        1 => aside.join(&*name),
        _ => aside.join(format!("{number}-{name}")),
    });
    rename(path, &target).map_err(failed)?;
    Ok(target)
}

/// The first of the paths for 1, 2, 3, … that is not taken.
pub fn first_free(name: impl Fn(u64) -> PathBuf) -> PathBuf {
    let mut number = 1;
    loop {
        let path = name(number);
        // A dangling link counts as taken, too.
        if path.symlink_metadata().is_err() {
            return path;
        }
        number += 1;
    }
}

/// Whether two files, or two folders of files, hold the same.
fn is_same(one: &Path, other: &Path) -> io::Result<bool> {
    if !one.exists() || one.is_dir() != other.is_dir() {
        return Ok(false);
    }
    if !one.is_dir() {
        if fs::metadata(one)?.len() != fs::metadata(other)?.len() {
            return Ok(false);
        }
        return Ok(ContentHash::of_file(one)? == ContentHash::of_file(other)?);
    }
    let names = |folder: &Path| -> io::Result<BTreeSet<OsString>> {
        fs::read_dir(folder)?
            .map(|entry| Ok(entry?.file_name()))
            .collect()
    };
    let there = names(one)?;
    if there != names(other)? {
        return Ok(false);
    }
    for name in there {
        if !is_same(&one.join(&name), &other.join(&name))? {
            return Ok(false);
        }
    }
    Ok(true)
}
