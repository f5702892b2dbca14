//! What can be wrong with a file of prompts.

use std::fmt;
use std::path::{Path, PathBuf};

/// A file of prompts cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PromptListError {
    /// The operating system refused.
    #[error("cannot read the prompts `{}`: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        source: std::io::Error,
    },
    /// The file's name does not say its format.
    #[error(
        "`{}` does not end as a file of prompts: `.txt` (one a line), `.jsonl` or `.ndjson` (one JSON object a line), `.csv` or `.tsv` (a \
         table whose first row names the columns)", path.display()
    )]
    Format {
        /// The file.
        path: PathBuf,
    },
    /// The file as a whole is not what it should be.
    #[error("the prompts `{}`: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What it is, and what to do.
        problem: String,
    },
    /// Lines that cannot be read.
    #[error("the prompts `{}`: {} line(s) cannot be read{}", path.display(), problems.len(), listed(problems))]
    Lines {
        /// The file.
        path: PathBuf,
        /// Every such line.
        problems: Vec<LineProblem>,
    },
    /// No prompt at all.
    #[error("the prompts `{}`: there is no prompt in it", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// More prompts than there are ids.
    #[error("the prompts `{}`: {count} are too many", path.display())]
    TooMany {
        /// The file.
        path: PathBuf,
        /// How many.
        count: usize,
    },
    /// A split that leaves nothing to train on, or nothing to test with.
    #[error("the prompts `{}`: {problem}", path.display())]
    Split {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what is allowed.
        problem: String,
    },
}

/// A line that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineProblem {
    /// Its number, from 1.
    pub line: usize,
    /// What is wrong with it, and how to mend it.
    pub problem: String,
}

impl fmt::Display for LineProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.problem)
    }
}

/// Problems shown; the error holds all.
const SHOWN: usize = 20;

/// A line for each problem.
pub(crate) fn listed(problems: &[impl fmt::Display]) -> String {
    let mut text: String = problems
        .iter()
        .take(SHOWN)
        .map(|it| format!("\n  {it}"))
        .collect();
    if problems.len() > SHOWN {
        text.push_str(&format!("\n  and {} more", problems.len() - SHOWN));
    }
    text
}

/// What is wrong with a file whose path is not known yet.
pub(super) enum Wrong {
    /// The whole of it.
    File(String),
    /// Some of its lines.
    Lines(Vec<LineProblem>),
}

impl Wrong {
    pub fn of(self, path: &Path) -> PromptListError {
        let path = path.to_owned();
        match self {
            Self::File(problem) => PromptListError::File { path, problem },
            Self::Lines(problems) => PromptListError::Lines { path, problems },
        }
    }
}
