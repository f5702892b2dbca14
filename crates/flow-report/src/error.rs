//! What can go wrong on disk, said so that a person can mend it.

use std::io;
use std::path::{Path, PathBuf};

/// The result type of this crate.
pub type Result<T, E = ReportError> = std::result::Result<T, E>;

/// Every failure of this crate. The text names the path, what was being done, the state the disk is in, and how
/// to mend it; print it as it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// Writing failed; `state` says what is on disk now.
    #[error("cannot write {what} `{}`: {source}\n  on disk: {state}\n  help: {help}", path.display())]
    Write {
        /// What was being written, for example "checkpoint".
        what: String,
        /// Its final path.
        path: PathBuf,
        /// What the disk holds after the failure.
        state: String,
        /// How to mend it.
        help: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// Reading failed.
    #[error("cannot read {what} `{}`: {source}\n  help: {help}", path.display())]
    Read {
        /// What was being read.
        what: String,
        /// From where.
        path: PathBuf,
        /// How to mend it.
        help: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// A file could be read, but does not hold what it must.
    #[error("{what} `{}` {problem}\n  help: {help}", path.display())]
    Invalid {
        /// What the file should be.
        what: String,
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it, as the end of a sentence that begins with the path.
        problem: String,
        /// How to mend it.
        help: String,
    },
    /// The run's name cannot be a directory name.
    #[error(
        "run name {name:?} {problem}\n  help: use letters, digits, `-`, `_` and `.`, for example `digits-grpo`"
    )]
    RunName {
        /// The name as given.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The run directory is there and the policy is `error`.
    #[error(
        "run `{}` already exists ({contents})\n  help: pass --on-exists resume (go on from its newest checkpoint), \
         new (write to the next free name), or overwrite (move it aside and start afresh)",
        path.display()
    )]
    RunExists {
        /// The run directory.
        path: PathBuf,
        /// What is in it, in words.
        contents: String,
    },
    /// Another process writes to this run.
    #[error(
        "run `{}` is being written by another process ({holder})\n  help: wait for it, stop it, or use another \
         run name (--on-exists new)",
        path.display()
    )]
    RunLocked {
        /// The run directory.
        path: PathBuf,
        /// Process id, host and start time of the holder, as far as its lock file says.
        holder: String,
    },
    /// There is no such run to resume or to read.
    #[error("there is no run `{}`{nearby}", path.display())]
    RunMissing {
        /// The run directory asked for.
        path: PathBuf,
        /// The runs that exist beside it, as the end of the sentence.
        nearby: String,
    },
    /// The run cannot be gone on with as it stands, and beginning it again is not what was asked for. Nothing was changed.
    #[error("cannot go on with run `{}`: {problem}\n  help: {help}", path.display())]
    NoWayOn {
        /// The run directory.
        path: PathBuf,
        /// What was found in it.
        problem: String,
        /// The ways out.
        help: String,
    },
    /// A metrics record that may not be written.
    #[error("metrics record at step {step} of kind {kind:?}: {problem}")]
    Record {
        /// The record's step.
        step: u64,
        /// The record's kind.
        kind: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A checkpoint cannot be used.
    #[error("{0}")]
    Checkpoint(#[from] crate::container_error::CheckpointError),
    /// A video's data do not fit its stated shape, or it cannot be written so.
    #[error("video {shape}: {problem}")]
    Video {
        /// Frames, height, width and channels.
        shape: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A picture's data do not fit its stated size.
    #[error("image tile {tile}: {problem}")]
    Tile {
        /// Which tile, in words.
        tile: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl ReportError {
    /// A reading error with the usual advice for its cause.
    pub(crate) fn read(what: &str, path: &Path, source: io::Error) -> Self {
        let help = advice(&source, path);
        Self::Read {
            what: what.into(),
            path: path.into(),
            help,
            source,
        }
    }

    /// A writing error with the usual advice for its cause.
    pub(crate) fn write(what: &str, path: &Path, state: impl Into<String>, source: io::Error) -> Self {
        let help = match source.kind() {
            // It need not exist; what is to hold it must.
            io::ErrorKind::NotFound => {
                let folder = path.parent().unwrap_or(path).display();
                format!("see that the folder `{folder}` exists and takes new files, or choose another")
            }
            _ => advice(&source, path),
        };
        Self::Write {
            what: what.into(),
            path: path.into(),
            state: state.into(),
            help,
            source,
        }
    }

    pub(crate) fn invalid(
        what: &str,
        path: &Path,
        problem: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        Self::Invalid {
            what: what.into(),
            path: path.into(),
            problem: problem.into(),
            help: help.into(),
        }
    }
}

/// How to mend an operating-system error on `path`.
pub(crate) fn advice(source: &io::Error, path: &Path) -> String {
    let directory = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let directory = directory.display();
    match source.kind() {
        io::ErrorKind::StorageFull => format!(
            "the disk is full: free space on the device of `{directory}` (`df -h {directory}` shows it) and resume"
        ),
        io::ErrorKind::QuotaExceeded => {
            format!(
                "the disk quota is used up: free space or write the runs somewhere else than `{directory}`"
            )
        }
        io::ErrorKind::PermissionDenied => {
            format!("give this user permission on `{directory}`, or choose another directory for the runs")
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            format!("`{directory}` is on a read-only file system: choose another directory for the runs")
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            let in_the_way = path
                .ancestors()
                .find(|folder| folder.exists() && !folder.is_dir());
            let in_the_way = in_the_way.unwrap_or(path).display();
            format!(
                "`{in_the_way}` is a file where a directory is needed: move it away, or choose another directory"
            )
        }
        io::ErrorKind::IsADirectory => format!(
            "`{}` is a folder where a file is needed: move it away, or choose another path",
            path.display()
        ),
        io::ErrorKind::NotFound => format!("see that `{}` exists", path.display()),
        io::ErrorKind::TooManyLinks | io::ErrorKind::InvalidFilename => {
            "use a shorter or plainer name".into()
        }
        _ => format!("see that the device of `{directory}` is mounted and healthy"),
    }
}
