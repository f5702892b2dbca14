//! Notes: what became of each key.

use std::fmt;

use serde::Serialize;

/// What became of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Its value stands in the TOML under [`Note::to`].
    Converted,
    /// It says what flow-train does anyway, so nothing is written.
    Default,
    /// It has no counterpart, or its value has none; it stands in the TOML as a comment.
    Kept,
    /// Nobody wrote it: Flow-Factory's default is written, because flow-train's is another.
    Added,
    /// Not about one key: something to know about the result.
    Remark,
}

/// What a note means for what is trained; the weightiest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rank {
    /// It is in the verdict: without it nothing is trained, or nothing like it.
    Verdict,
    /// What is trained differs from what Flow-Factory trains, or may: somebody has to look at it.
    Result,
    /// It changes nothing about what is trained: how Flow-Factory spreads work, caches and logs; or it was converted.
    Detail,
}

/// What became of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// What became of it.
    pub outcome: Outcome,
    /// What it means for what is trained.
    pub rank: Rank,
    /// Dotted path in the YAML; entries of lists have their index as a segment. Empty if nobody wrote it.
    pub from: String,
    /// Line in the YAML, from 1; `None` if nobody wrote it.
    pub line: Option<usize>,
    /// Column in characters, from 1.
    pub column: Option<usize>,
    /// The value in the YAML, on one line.
    pub value: String,
    /// Dotted path in the TOML; empty if there is none.
    pub to: String,
    /// The value in the TOML; empty if there is none.
    pub written: String,
    /// What was done and why.
    pub text: String,
}

impl Note {
    /// Whether somebody has to look at it.
    pub fn needs_attention(&self) -> bool {
        self.rank != Rank::Detail
    }
}

impl fmt::Display for Note {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(formatter, "line {line}: ")?;
        }
        if !self.from.is_empty() {
            write!(formatter, "{}: {}", self.from, self.value)?;
        }
        match self.outcome {
            Outcome::Converted => write!(formatter, " -> {} = {}", self.to, self.written)?,
            Outcome::Added => write!(formatter, "added {} = {}", self.to, self.written)?,
            Outcome::Default => formatter.write_str(" is the default")?,
            Outcome::Kept => formatter.write_str(" is kept as a comment")?,
            Outcome::Remark => return formatter.write_str(&self.text),
        }
        write!(formatter, ": {}", self.text)
    }
}
