//! Why a file is not a usable checkpoint.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::container::VERSION;

/// Why a file is not a usable checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file cannot be read.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The file is something else.
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it seems to be.
        looks_like: String,
    },
    /// The file comes from a newer version of the tool.
    Newer {
        /// The file.
        path: PathBuf,
        /// Its container version.
        found: u32,
    },
    /// The file ends too early or goes on too long.
    Length {
        /// The file.
        path: PathBuf,
        /// "truncated" or "too long".
        problem: &'static str,
        /// Bytes in the file.
        found: u64,
        /// Bytes there should be (at least).
        expected: u64,
    },
    /// The content is not what was written.
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        problem: String,
    },
    /// A section that the reader asks for is not in the file.
    MissingSection {
        /// The file.
        path: PathBuf,
        /// The section asked for.
        name: String,
        /// The sections it has.
        present: Vec<String>,
    },
    /// The writer was given two sections of one name, or a section of another length than announced.
    Section {
        /// The section.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl CheckpointError {
    /// What is wrong, without the advice: for a reader who goes on with another checkpoint already.
    pub fn problem(&self) -> String {
        match self {
            Self::Unreadable { path, source } => {
                format!("cannot read checkpoint `{}`: {source}", path.display())
            }
            Self::Foreign { path, looks_like } => {
                format!(
                    "`{}` is not a flow-train checkpoint: {looks_like}",
                    path.display()
                )
            }
            Self::Newer { path, found } => format!(
                "checkpoint `{}` has container version {found}, this build reads up to {VERSION}",
                path.display()
            ),
            Self::Length {
                path,
                problem,
                found,
                expected,
            } => format!(
                "checkpoint `{}` is {problem}: it has {found} bytes and should have {expected}",
                path.display()
            ),
            Self::Corrupt { path, problem } => {
                format!("checkpoint `{}` is corrupt: {problem}", path.display())
            }
            Self::MissingSection { path, name, present } => format!(
                "checkpoint `{}` has no section {name:?}; it has {}",
                path.display(),
                kinds_of(present)
            ),
            Self::Section { name, problem } => format!("checkpoint section {name:?} {problem}"),
        }
    }

    /// What to do, where it is always the same.
    pub fn help(&self) -> Option<&'static str> {
        Some(match self {
            Self::Foreign { .. } => "checkpoints are the `step-….ckpt` files in `checkpoints/` of a run",
            Self::Newer { .. } => {
                "use the version of flow-train that wrote it (see run.json), or a newer one"
            }
            Self::Length { .. } | Self::Corrupt { .. } => {
                "resume from an older checkpoint, `--resume latest` finds the newest valid one"
            }
            Self::MissingSection { .. } => {
                "the checkpoint was written with another model, trainer or option than the ones now configured"
            }
            Self::Unreadable { .. } | Self::Section { .. } => return None,
        })
    }
}

impl fmt::Display for CheckpointError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.problem())?;
        match self.help() {
            Some(help) => write!(formatter, "\n  help: {help}"),
            None => Ok(()),
        }
    }
}

/// Sections by what stands before their first `/`, and how many there are of each: a model has hundreds.
fn kinds_of(sections: &[String]) -> String {
    let mut kinds: BTreeMap<&str, (&str, usize)> = BTreeMap::new();
    for section in sections {
        let kind = section.split('/').next().unwrap_or_default();
        kinds.entry(kind).or_insert((section, 0)).1 += 1;
    }
    let kinds: Vec<String> = kinds
        .into_iter()
        .map(|(kind, (name, count))| match count {
            1 => format!("{name:?}"),
            _ => format!("{count} below `{kind}/`"),
        })
        .collect();
    match kinds.as_slice() {
        [] => "none".into(),
        kinds => kinds.join(", "),
    }
}
