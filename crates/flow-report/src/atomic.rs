//! Files that are there whole or not at all.
//!
//! A file is written under a temporary name in its own directory, flushed, synced, renamed over its final name, and
//! the directory is synced. A process killed at any moment leaves either the old file or the new one, and at most a
//! temporary file, which [`remove_leftovers`] removes when the run is opened again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{ReportError, Result};

/// A file that can be made durable.
pub trait DurableFile: Write + Send {
    /// Returns when the data are on the device (fsync).
    fn sync(&mut self) -> io::Result<()>;
}

/// The few operations that atomic writing needs from a file system. [`Disk`] is the real one; a test passes its own
/// to run out of space or to be cut off at a chosen byte.
pub trait Storage: Send + Sync {
    /// Creates a file that must not exist yet.
    fn create_new(&self, path: &Path) -> io::Result<Box<dyn DurableFile>>;
    /// Renames, replacing the target.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;
}

/// The file system of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl DurableFile for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

impl Storage for Disk {
    fn create_new(&self, path: &Path) -> io::Result<Box<dyn DurableFile>> {
        Ok(Box::new(
            OpenOptions::new().write(true).create_new(true).open(path)?,
        ))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        // Windows has no handle for a directory that could be synced; its rename is journalled.
        if cfg!(unix) {
            File::open(directory)?.sync_all()
        } else {
            Ok(())
        }
    }
}

/// Writes `path` atomically on the real disk. `what` names the content in errors ("checkpoint", "manifest").
///
/// # Errors
/// [`ReportError::Write`], which says whether the previous file is intact. The temporary file is removed.
pub fn atomic_write(
    path: &Path,
    what: &str,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    atomic_write_in(&Disk, path, what, content)
}

/// [`atomic_write`] on a given [`Storage`].
///
/// # Errors
/// As [`atomic_write`].
pub fn atomic_write_in(
    storage: &dyn Storage,
    path: &Path,
    what: &str,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    let temporary = temporary_name(path);
    let directory = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let written =
        write_and_sync(storage, &temporary, content).and_then(|()| storage.rename(&temporary, path));
    if let Err(source) = written {
        // The error to report is the first one; a temporary that cannot be removed now goes when the run is
        // opened next.
        let removed = storage.remove(&temporary);
        let mut state = previous_state(path);
        if removed.is_err() && temporary.exists() {
            state += &format!(
                "; the incomplete `{}` is left and may be deleted",
                temporary.display()
            );
        }
        return Err(ReportError::write(what, path, state, source));
    }
    storage.sync_directory(directory).map_err(|source| {
        let state = "the new file is in place and whole, but may not survive a power failure";
        ReportError::write(what, path, state, source)
    })
}

fn write_and_sync(
    storage: &dyn Storage,
    temporary: &Path,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut writer = BufWriter::with_capacity(1 << 16, storage.create_new(temporary)?);
    content(&mut writer)?;
    // `into_inner` flushes and hands the error over; a dropped BufWriter would swallow it.
    writer
        .into_inner()
        .map_err(io::IntoInnerError::into_error)?
        .sync()
}

fn previous_state(path: &Path) -> String {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => {
            format!(
                "the previous `{}` ({} bytes) is intact",
                path.display(),
                metadata.len()
            )
        }
        _ => format!("there is no `{}`; nothing else was changed", path.display()),
    }
}

/// `.NAME.PID.COUNT.tmp` beside `path`. The count keeps two writers of one process apart.
fn temporary_name(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.{count}.tmp", std::process::id()))
}

/// Whether `name` is one that [`atomic_write`] gives to its temporary files.
pub(crate) fn is_temporary_name(name: &str) -> bool {
    let Some(middle) = name.strip_prefix('.').and_then(|n| n.strip_suffix(".tmp")) else {
        return false;
    };
    let mut parts = middle.rsplit('.');
    let number =
        |part: Option<&str>| part.is_some_and(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()));
    number(parts.next()) && number(parts.next()) && parts.next().is_some()
}

/// Removes the temporary files that killed processes left in `directory` (not in its sub-directories) and returns
/// their paths. Call it only while no other process writes there, that is, with the run's lock held.
///
/// # Errors
/// If the directory cannot be read or a leftover cannot be removed.
pub fn remove_leftovers(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(ReportError::read("directory", directory, source)),
    };
    let mut removed = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|source| ReportError::read("directory", directory, source))?;
        let path = entry.path();
        if path.is_file() && entry.file_name().to_str().is_some_and(is_temporary_name) {
            fs::remove_file(&path).map_err(|source| {
                ReportError::write("(remove) leftover", &path, "the leftover is still there", source)
            })?;
            removed.push(path);
        }
    }
    removed.sort();
    Ok(removed)
}
