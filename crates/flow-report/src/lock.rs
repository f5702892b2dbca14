//! One writer per run.
//!
//! The lock is the operating system's advisory lock on `run.lock`, which the kernel gives back when the process ends,
//! however it ends. The file's text says who holds it. On file systems without such locks the process id in the file
//! decides: a holder on this host that no longer runs is stale.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::error::{ReportError, Result};
use crate::probe::rfc3339;

/// Name of the lock file in a run directory.
pub const LOCK_FILE: &str = "run.lock";

/// Who holds a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Holder {
    pid: u32,
    host: String,
    since: String,
}

/// The right to write a run, held until it is dropped.
#[derive(Debug)]
pub struct RunLock {
    file: File,
    path: PathBuf,
    stale: Option<String>,
}

impl RunLock {
    /// Takes the lock of the run in `directory`, which must exist.
    ///
    /// # Errors
    /// [`ReportError::RunLocked`] if another process holds it, or this process a second time.
    pub fn acquire(directory: &Path) -> Result<Self> {
        let path = directory.join(LOCK_FILE);
        let failed = |source| ReportError::write("lock file", &path, "the run was not touched", source);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        let mut text = String::new();
        // A lock file with other bytes in it has no holder that could be named; the lock itself still decides.
        if file.read_to_string(&mut text).is_err() {
            text.clear();
        }
        let holder: Option<Holder> = serde_json::from_str(&text).ok();
        let locked = || {
            let name =
                |holder: &Holder| format!("process {} on {} since {}", holder.pid, holder.host, holder.since);
            let holder = holder.as_ref().map_or("it has not written its name".into(), name);
            ReportError::RunLocked {
                path: directory.into(),
                holder,
            }
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(locked()),
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                if holder.as_ref().is_some_and(may_be_running) {
                    return Err(locked());
                }
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let stale = holder.map(|holder| {
            format!(
                "the lock of process {} on {} (since {}) was left behind: that process was killed; taken over",
                holder.pid, holder.host, holder.since
            )
        });
        let now = Holder {
            pid: std::process::id(),
            host: crate::environment::host_name(),
            since: rfc3339(SystemTime::now()),
        };
        let text = serde_json::to_string(&now).map_err(|error| failed(error.into()))?;
        let mut lock = Self {
            file,
            path: path.clone(),
            stale,
        };
        lock.replace_text(&text).map_err(failed)?;
        Ok(lock)
    }

    /// If the last holder did not give the lock back, a sentence that says so.
    pub fn stale(&self) -> Option<&str> {
        self.stale.as_deref()
    }

    /// The lock file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn replace_text(&mut self, text: &str) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(text.as_bytes())
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // The file stays: deleting it would let a third process lock a new file while a second one waits on the old.
        // An empty file means "given back"; if that cannot be written, the next run reports a stale lock, no more.
        drop(self.replace_text(""));
        drop(self.file.unlock());
    }
}

/// Whether the holder could still be writing. On another host nobody can tell, so yes.
fn may_be_running(holder: &Holder) -> bool {
    if holder.host != crate::environment::host_name() || !cfg!(target_os = "linux") {
        return true;
    }
    Path::new("/proc").join(holder.pid.to_string()).exists()
}
