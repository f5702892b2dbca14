//! Prompts of a file: one a line (`.txt`), one JSON object a line (`.jsonl`), or a table (`.csv`, `.tsv`).

mod csv;
mod error;
pub(crate) mod read;
mod split;

pub(crate) use error::listed;
pub use error::{LineProblem, PromptListError};
pub use split::TestShare;

use serde_json::{Map, Value};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// The key or column of a prompt, unless the user says otherwise.
pub const PROMPT_KEY: &str = "prompt";

/// How a file of prompts is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptFormat {
    /// One prompt a line; lines of white space are left out.
    Lines,
    /// One JSON object a line, or one text in quotes.
    JsonLines,
    /// A table with the names of its columns in the first row, after RFC 4180; commas, tabs or semicolons part the columns.
    Table,
}

impl PromptFormat {
    /// The format of a file by the ending of its name.
    pub fn from_path(path: &Path) -> Option<Self> {
        let ending = path.extension()?.to_str()?.to_ascii_lowercase();
        match ending.as_str() {
            "txt" => Some(Self::Lines),
            "jsonl" | "ndjson" => Some(Self::JsonLines),
            "csv" | "tsv" => Some(Self::Table),
            _ => None,
        }
    }
}

/// One prompt of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptEntry {
    /// Position among the prompts of the file, from 0. Splitting keeps it.
    pub id: u32,
    /// What the model is asked for.
    pub text: String,
    /// Everything else that the file says of it; rewards read it. Values of a table are texts.
    pub metadata: Map<String, Value>,
    /// Its line in the file, from 1; of a row of several lines, the first.
    pub line: usize,
}

/// Something about a file that its owner may not know.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PromptNote {
    /// Prompts that are there again, with the same metadata, and were left out: their lines.
    Repeated(Vec<usize>),
    /// Prompts that are there with several metadata, and were kept: how many.
    SeveralMetadata(usize),
}

impl fmt::Display for PromptNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Repeated(lines) => write!(
                f,
                "{} prompt(s) are there more than once and count once (line {})",
                lines.len(),
                numbers(lines)
            ),
            Self::SeveralMetadata(count) => {
                write!(
                    f,
                    "{count} prompt(s) are there more than once, with different metadata; all count"
                )
            }
        }
    }
}

/// The first few of `lines`.
fn numbers(lines: &[usize]) -> String {
    const SHOWN: usize = 8;
    let mut words: Vec<String> = lines.iter().take(SHOWN).map(usize::to_string).collect();
    if lines.len() > SHOWN {
        words.push("…".into());
    }
    words.join(", ")
}

/// The prompts of a file, in its order.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptList {
    path: PathBuf,
    entries: Vec<PromptEntry>,
    notes: Vec<PromptNote>,
}

impl PromptList {
    /// Reads a file in UTF-8, with or without a byte order mark, whose lines end as on Unix, Windows or old Macs. `key` is the key
    /// or column of the prompts, usually [`PROMPT_KEY`].
    ///
    /// # Errors
    /// [`PromptListError`] with every line that cannot be read, by its number.
    pub fn read(path: &Path, key: &str) -> Result<Self, PromptListError> {
        let format = PromptFormat::from_path(path).ok_or_else(|| PromptListError::Format {
            path: path.to_owned(),
        })?;
        let bytes = fs::read(path).map_err(|source| PromptListError::Io {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(path, &bytes, format, key)
    }

    /// Reads prompts from memory. `path` is for messages.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn parse(
        path: &Path,
        bytes: &[u8],
        format: PromptFormat,
        key: &str,
    ) -> Result<Self, PromptListError> {
        let text = read::text(bytes).map_err(|problems| problems.of(path))?;
        let rows = match format {
            PromptFormat::Lines => read::lines(&text),
            PromptFormat::JsonLines => read::json_lines(&text, key).map_err(|problems| problems.of(path))?,
            PromptFormat::Table => csv::table(&text, key).map_err(|problems| problems.of(path))?,
        };
        Self::of_rows(path, rows)
    }

    /// Of rows that were read, from the file or folder at `path`.
    fn of_rows(path: &Path, rows: Vec<read::Row>) -> Result<Self, PromptListError> {
        if rows.is_empty() {
            return Err(PromptListError::Empty {
                path: path.to_owned(),
            });
        }
        let (entries, notes) = read::distinct(rows);
        if u32::try_from(entries.len()).is_err() {
            return Err(PromptListError::TooMany {
                path: path.to_owned(),
                count: entries.len(),
            });
        }
        Ok(Self {
            path: path.to_owned(),
            entries,
            notes,
        })
    }

    /// Captions that lie in files of their own below the folder `path`: text, metadata.
    pub(crate) fn of_captions(
        path: &Path,
        captions: impl Iterator<Item = (String, Map<String, Value>)>,
    ) -> Result<Self, PromptListError> {
        let row = |(index, (text, metadata))| read::Row {
            text,
            metadata,
            line: index + 1,
        };
        Self::of_rows(path, captions.enumerate().map(row).collect())
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The prompts.
    pub fn entries(&self) -> &[PromptEntry] {
        &self.entries
    }

    /// How many prompts there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none, which only a part of a split can be.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What the owner of the file may want to know.
    pub fn notes(&self) -> &[PromptNote] {
        &self.notes
    }

    /// The prompts of `other` that are in this list, too: their lines in `other`. A test file should share none with the file
    /// that is trained on.
    pub fn shared_with(&self, other: &Self) -> Vec<usize> {
        let texts: std::collections::HashSet<&str> = self.entries.iter().map(|it| it.text.as_str()).collect();
        let shared = other.entries.iter().filter(|it| texts.contains(it.text.as_str()));
        shared.map(|it| it.line).collect()
    }
}
