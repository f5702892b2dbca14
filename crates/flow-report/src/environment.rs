//! What the run ran on: host, processor, and the state of the source tree.

use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// The machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Host name, or "unknown".
    pub name: String,
    /// Operating system, for example "linux".
    pub os: String,
    /// Architecture, for example "x86_64".
    pub arch: String,
    /// The processor's name as the operating system gives it, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// Threads this process may run at the same time.
    pub cpu_threads: usize,
    /// Physical memory in GiB, if the operating system says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_gib: Option<f64>,
}

impl Host {
    /// Asks the operating system.
    pub fn detect() -> Self {
        let cpu = proc_file("/proc/cpuinfo").and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        });
        let memory_kib =
            proc_file("/proc/meminfo").and_then(|text| crate::probe::field_kib(&text, "MemTotal:"));
        Self {
            name: host_name(),
            os: std::env::consts::OS.into(),
            arch: std::env::consts::ARCH.into(),
            cpu,
            cpu_threads: std::thread::available_parallelism().map_or(1, usize::from),
            // Two decimals are enough to know the machine by.
            memory_gib: memory_kib.map(|kib| (kib as f64 / (1024.0 * 1024.0) * 100.0).round() / 100.0),
        }
    }
}

fn proc_file(path: &str) -> Option<String> {
    if cfg!(target_os = "linux") {
        std::fs::read_to_string(path).ok()
    } else {
        None
    }
}

/// The host's name, or "unknown" where the operating system keeps it elsewhere.
pub(crate) fn host_name() -> String {
    let name = proc_file("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned());
    name.filter(|name| !name.is_empty())
        .unwrap_or_else(|| "unknown".into())
}

/// The state of the source tree that the run was started in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum GitState {
    /// Everything is committed.
    Clean {
        /// Full commit hash.
        commit: String,
    },
    /// There are changes that are not committed, so the commit alone does not give the code.
    Dirty {
        /// Full commit hash of what they are based on.
        commit: String,
        /// The changed and untracked files, `git status --porcelain` lines, at most [`GitState::LISTED`].
        changes: Vec<String>,
        /// How many there are in all.
        change_count: usize,
    },
    /// There is no commit to name.
    Absent {
        /// Why: no git, no repository, no commit yet.
        why: String,
    },
}

impl GitState {
    /// Changes listed at most.
    pub const LISTED: usize = 50;

    /// Asks `git` about the tree that `directory` is in.
    pub fn detect(directory: &Path) -> Self {
        let commit = match git(directory, &["rev-parse", "--verify", "HEAD"]) {
            Ok(commit) => commit.trim().to_owned(),
            Err(why) => return Self::Absent { why },
        };
        match git(directory, &["status", "--porcelain"]) {
            Ok(status) if status.trim().is_empty() => Self::Clean { commit },
            Ok(status) => Self::Dirty {
                commit,
                changes: status.lines().take(Self::LISTED).map(str::to_owned).collect(),
                change_count: status.lines().count(),
            },
            Err(why) => Self::Absent {
                why: format!("commit {commit}, but its status is unknown: {why}"),
            },
        }
    }

    /// One line for people.
    pub fn text(&self) -> String {
        match self {
            Self::Clean { commit } => format!("{commit} (clean)"),
            Self::Dirty {
                commit, change_count, ..
            } => {
                format!(
                    "{commit} and {change_count} uncommitted change{}",
                    if *change_count == 1 { "" } else { "s" }
                )
            }
            Self::Absent { why } => format!("absent: {why}"),
        }
    }
}

/// Standard output of git, or the reason why there is none.
fn git(directory: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(directory)
        .args(arguments)
        .output();
    let output = output.map_err(|error| format!("git cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    let line = message
        .lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("git gave no reason");
    Err(line.trim().trim_start_matches("fatal: ").to_owned())
}
