//! Errors, worded for the person who has to mend them.

use crate::looks::Looks;
use std::fmt;
use std::path::PathBuf;

/// A folder or a file of a model cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// The operating system refused.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file cannot be used.
    #[error("`{}`: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and how to mend it.
        problem: String,
    },
    /// A folder lacks what it needs, or has too much of it.
    #[error("`{}`: {problem}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What is wrong, and how to mend it.
        problem: String,
    },
    /// Something else than a pipeline's folder.
    #[error("`{}` is {looks}, and the folder of a whole pipeline is needed, with its `model_index.json`. {}", path.display(), looks.advice())]
    NotAPipeline {
        /// The path.
        path: PathBuf,
        /// What it looks like.
        looks: Looks,
    },
    /// Files that other files name are not there.
    #[error(
        "`{}` lacks {} of {named} file(s) that `{by}` names: {}. {advice}",
        folder.display(), missing.len(), crate::names::list(missing, 40)
    )]
    Missing {
        /// The folder.
        folder: PathBuf,
        /// The file that names them.
        by: String,
        /// How many it names.
        named: usize,
        /// Those that are not there.
        missing: Vec<String>,
        /// How to get them.
        advice: String,
    },
    /// Several things are wrong with a pipeline's folder.
    #[error("the {class} in `{}` cannot be used{problems}", folder.display())]
    Pipeline {
        /// The folder.
        folder: PathBuf,
        /// Its class, as `model_index.json` has it.
        class: String,
        /// Everything that is wrong.
        problems: Problems,
    },
    /// A tensor is not what its reader expects.
    #[error("tensor `{name}` of `{}`: {problem}", path.display())]
    Tensor {
        /// Its name.
        name: String,
        /// The file, or the folder if it is in none.
        path: PathBuf,
        /// What is wrong, and how to mend it.
        problem: String,
    },
    /// A name that is neither a folder nor a repository in the local cache.
    #[error("{problem}")]
    Name {
        /// The name.
        name: String,
        /// Where was looked, and what to do.
        problem: String,
    },
    /// A scheduler that cannot be computed.
    #[error("`{}`: `{key}` is {value}: {problem}", path.display())]
    Scheduler {
        /// Its config.
        path: PathBuf,
        /// The key at fault.
        key: String,
        /// Its value.
        value: String,
        /// What is allowed.
        problem: String,
    },
    /// A file was not written.
    #[error(transparent)]
    Write(#[from] crate::safetensors::WriteError),
}

/// What is wrong, one line each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(pub Vec<String>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}
