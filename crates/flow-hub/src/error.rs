//! Errors, worded for the person who has to mend them.

use crate::FileHash;
use std::io;
use std::path::{Path, PathBuf};

/// A repository cannot be downloaded. Whole files that came before stay, and so do the parts of others, which are resumed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// A name that no repository has.
    #[error("`{name}` is no name of a repository: {problem}")]
    Name {
        /// The name.
        name: String,
        /// What is allowed.
        problem: String,
    },
    /// A server's address that cannot be used.
    #[error("the endpoint `{endpoint}` (HF_ENDPOINT) cannot be used: {problem}")]
    Endpoint {
        /// The address.
        endpoint: String,
        /// Why not.
        problem: String,
    },
    /// A token that no header can hold.
    #[error("the token (HF_TOKEN) cannot be used: {problem}. Copy it again from the hub's settings")]
    Token {
        /// What is wrong with it; never the token.
        problem: String,
    },
    /// The server wants to know who asks, or does not let them.
    #[error("`{repository}` is not open to this request (status {status}{message}): {advice}")]
    NotAllowed {
        /// The repository.
        repository: String,
        /// 401 or 403.
        status: u16,
        /// What the server said, as the rest of a list, or nothing.
        message: String,
        /// What to do.
        advice: String,
    },
    /// There is no such repository.
    #[error("{endpoint} has no model repository `{repository}`; check the name")]
    NoRepository {
        /// The server.
        endpoint: String,
        /// The repository.
        repository: String,
    },
    /// There is no such revision.
    #[error(
        "`{repository}` has no revision `{revision}`; a revision is a branch (such as `main`), a tag or a commit. {endpoint}/\
         {repository}/tree/main lists them"
    )]
    NoRevision {
        /// The server.
        endpoint: String,
        /// The repository.
        repository: String,
        /// The revision.
        revision: String,
    },
    /// A page or a file that should be there is not.
    #[error("there is nothing at {url} (status 404), though the list of files names it; fetch again")]
    NothingThere {
        /// Where, without its query.
        url: String,
    },
    /// The server cannot be reached, or a connection ended early.
    #[error("{url}: {problem}{}", tried(*attempts))]
    Connection {
        /// What was asked for, without its query.
        url: String,
        /// What happened.
        problem: String,
        /// How often it was tried.
        attempts: u32,
    },
    /// The server answered with a status that says no.
    #[error("{url} answered with status {status}{message}{}", tried(*attempts))]
    Status {
        /// What was asked for, without its query.
        url: String,
        /// The status.
        status: u16,
        /// What the server said, as the rest of a list, or nothing.
        message: String,
        /// How often it was tried.
        attempts: u32,
    },
    /// A redirect that is not followed.
    #[error("{from} redirects to `{to}`, which is not followed: {problem}")]
    Redirect {
        /// What was asked for, without its query.
        from: String,
        /// Where it leads, without its query.
        to: String,
        /// Why not.
        problem: String,
    },
    /// An answer that is not the hub's.
    #[error(
        "{url}: {problem}. If a proxy or a page to log in answers in the place of the hub, see that the hub itself can be reached"
    )]
    Answer {
        /// What was asked for, without its query.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The list of files names one that could be written outside the folder.
    #[error("`{repository}` names a file {path:?}, which could lead out of the folder; nothing was written")]
    Path {
        /// The repository.
        repository: String,
        /// The path as listed.
        path: String,
    },
    /// The repository does not have the weights that are wanted.
    #[error("`{repository}`: {problem}")]
    Weights {
        /// The repository.
        repository: String,
        /// What is missing, and what is there instead.
        problem: String,
    },
    /// Another file is in the place of one that is wanted.
    #[error(
        "`{}` is there already, and its content is another; move it away, or fetch into another folder. Nothing was written over",
        path.display()
    )]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Another process downloads the same file.
    #[error("`{}` is being downloaded by another process; wait for it, or stop it", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// A file came whole and is not the one of the hub.
    #[error(
        "`{}` has the {} {found}, and should have {expected}: it was damaged or exchanged on the way. It was removed; fetch it again, \
         and if that happens again, look at proxies and mirrors between here and the server",
        path.display(), expected.algorithm()
    )]
    Hash {
        /// The file.
        path: PathBuf,
        /// The hub's hash.
        expected: FileHash,
        /// The hash of what came.
        found: FileHash,
    },
    /// An archive whose files cannot be had.
    #[error("the archive `{}`: {problem}", path.display())]
    Archive {
        /// The archive.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// There is no room left.
    #[error(
        "the disk of `{}` is full, and {missing_bytes} more bytes are needed for this file: {source}. Free space or choose another \
         folder, and fetch again: what came stays, and is resumed",
        path.display()
    )]
    DiskFull {
        /// The file.
        path: PathBuf,
        /// Bytes of the file that did not come yet.
        missing_bytes: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The operating system refused.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl HubError {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }

    /// An error of writing a file of which `missing_bytes` did not come yet.
    pub(crate) fn writing(path: &Path, missing_bytes: u64, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull {
                path: path.to_owned(),
                missing_bytes,
                source,
            },
            _ => Self::io("write", path, source),
        }
    }

    /// This error, after so many attempts.
    pub(crate) fn after_attempts(mut self, count: u32) -> Self {
        if let Self::Connection { attempts, .. } | Self::Status { attempts, .. } = &mut self {
            *attempts = count;
        }
        self
    }
}

/// The end of a message about something that was tried several times.
fn tried(attempts: u32) -> String {
    match attempts {
        0 | 1 => String::new(),
        count => format!("; tried {count} times. What came before stays: fetch again to go on"),
    }
}
