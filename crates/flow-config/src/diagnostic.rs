//! What is wrong with a config: diagnostics with a place in the text, and their rendering as plain text.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::Serialize;

use crate::printable::{printable, same_length};

/// How much a diagnostic matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// The config cannot be used.
    Error,
    /// The config can be used, but something in it is probably not what was meant.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
}

/// Which of the layers of a config a value is from; each wins over those below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// Nobody gave it.
    Default,
    /// The weights that the config names gave it.
    Weights,
    /// The preset gave it.
    Preset,
    /// The config file gave it.
    File,
    /// `--set` gave it.
    Override,
}

/// A text that diagnostics point into: the config file, a preset, or one override.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SourceText {
    /// How it is called in messages: the path of the file, `preset NAME`, `--set`, or the file beside the weights.
    pub name: String,
    /// Which layer it is.
    pub layer: Layer,
    /// The text itself.
    #[serde(skip)]
    pub text: String,
}

/// One thing that is wrong, or worth knowing.
///
/// Serialised, this is an entry of `diagnostics` in what `flow-train check --format json` prints. Whoever makes one
/// gives severity, code, message, path and help; [`Resolved::located`](crate::Resolved::located) finds the place.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnostic {
    /// How much it matters.
    pub severity: Severity,
    /// Stable code. Codes that begin with `rule::` are rules on several keys, which the JSON schema cannot say.
    pub code: &'static str,
    /// What is wrong, in the user's names and values.
    pub message: String,
    /// Dotted path of the key as `--set` takes it, for instance `acceleration.rollout.0.params.threshold`; empty if no
    /// key is concerned.
    pub path: String,
    /// Dotted paths of further keys that it is about. The place is that of the first that somebody wrote.
    pub related: Vec<String>,
    /// The layer that gave the value at `path`, if a key is concerned and has a value.
    pub layer: Option<Layer>,
    /// Whether the place is that of the key rather than of its value.
    #[serde(skip)]
    pub(crate) at_key: bool,
    /// Which of the report's sources the place is in.
    pub source: Option<usize>,
    /// The name of that source.
    pub file: Option<String>,
    /// Line, from 1.
    pub line: Option<usize>,
    /// Column in characters, from 1.
    pub column: Option<usize>,
    /// Byte range in the source's text.
    pub span: Option<Range<usize>>,
    /// How to mend it.
    pub help: Option<String>,
    /// What would be allowed in its place.
    pub allowed: Vec<String>,
    /// The allowed key or value that is nearest to what was written.
    pub nearest: Option<String>,
}

/// A sentence as the help of a [`Diagnostic`] begins: with a small letter.
pub fn begun_small(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => String::new(),
    }
}

impl Diagnostic {
    /// Without path, place and help. `code` is stable and explained; `message` says what is wrong, without a full stop.
    pub fn new(severity: Severity, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            severity,
            code,
            message: message.into(),
            path: String::new(),
            related: Vec::new(),
            layer: None,
            at_key: false,
            source: None,
            file: None,
            line: None,
            column: None,
            span: None,
            help: None,
            allowed: Vec::new(),
            nearest: None,
        }
    }

    /// As [`Diagnostic::new`], of an error.
    pub fn error(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, code, message)
    }

    /// As [`Diagnostic::new`], of a warning.
    pub fn warning(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, code, message)
    }

    /// With the path of the key it is about.
    #[must_use]
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.path = path.into();
        self
    }

    pub(crate) fn at(mut self, source: usize, span: Range<usize>) -> Self {
        self.source = Some(source);
        self.span = Some(span);
        self
    }

    /// With the paths of further keys it is about, the likelier culprit first.
    #[must_use]
    pub fn related(mut self, paths: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.related = paths.into_iter().map(Into::into).collect();
        self
    }

    /// With how to mend it, without a full stop.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// With what would be allowed in its place.
    #[must_use]
    pub fn allowed(mut self, allowed: Vec<String>) -> Self {
        self.allowed = allowed;
        self
    }

    /// About the key and not about its value: the key will be underlined.
    #[must_use]
    pub fn at_key(mut self) -> Self {
        self.at_key = true;
        self
    }

    /// With which of the allowed names or values is nearest to what was written.
    #[must_use]
    pub fn nearest(mut self, nearest: Option<String>) -> Self {
        self.nearest = nearest;
        self
    }

    /// What is said of the place if there is none to show: that the value is a default.
    pub fn note(&self) -> Option<String> {
        (self.layer == Some(Layer::Default))
            .then(|| format!("`{}` is written nowhere: its default is in force", self.path))
    }

    /// Whether this is a rule on several keys, which the JSON schema does not know.
    pub fn is_rule(&self) -> bool {
        self.code.starts_with("rule::")
    }
}

/// Diagnostics that are shown at once.
const MOST_SHOWN: usize = 25;

/// Every diagnostic of a config, with the texts they point into. As an error it holds at least one
/// [`Severity::Error`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, thiserror::Error)]
#[error("{}", self.render())]
pub struct Report {
    /// What is wrong: errors first, each kind in the order of the text.
    pub diagnostics: Vec<Diagnostic>,
    /// The texts.
    pub sources: Vec<SourceText>,
}

impl fmt::Display for Diagnostic {
    /// In one line, without the place, for logs.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}[{}]", self.severity, self.code)?;
        if !self.path.is_empty() {
            write!(formatter, " at {}", self.path)?;
        }
        write!(formatter, ": {}", self.message)?;
        if let Some(help) = &self.help {
            write!(formatter, "; {help}")?;
        }
        if !self.allowed.is_empty() {
            write!(formatter, "; allowed: {}", self.allowed.join(", "))?;
        }
        Ok(())
    }
}

impl Report {
    /// Sorts, removes duplicates, and fills in file, line and column.
    ///
    /// Texts of users come out such that a terminal shows them and does not obey them.
    pub(crate) fn new(mut diagnostics: Vec<Diagnostic>, mut sources: Vec<SourceText>) -> Self {
        for source in &mut sources {
            source.text = same_length(std::mem::take(&mut source.text));
            source.name = printable(&source.name).into_owned();
        }
        for diagnostic in &mut diagnostics {
            let texts = [
                Some(&mut diagnostic.message),
                diagnostic.help.as_mut(),
                Some(&mut diagnostic.path),
            ];
            for text in texts.into_iter().flatten().chain(&mut diagnostic.allowed) {
                let shown = match printable(text) {
                    Cow::Owned(shown) => shown,
                    Cow::Borrowed(_) => continue,
                };
                *text = shown;
            }
            let Some(source) = diagnostic.source.and_then(|index| sources.get(index)) else {
                continue;
            };
            diagnostic.layer = Some(source.layer);
            diagnostic.file = Some(source.name.clone());
            if let Some(span) = &mut diagnostic.span {
                *span = clamp_span(&source.text, span.clone());
                let (line, column) = line_and_column(&source.text, span.start);
                diagnostic.line = Some(line);
                diagnostic.column = Some(column);
            }
        }
        diagnostics.sort_by_key(|d| {
            (
                d.severity,
                d.source,
                d.span.as_ref().map(|span| (span.start, span.end)),
                d.path.clone(),
                d.code,
            )
        });
        diagnostics.dedup();
        Self { diagnostics, sources }
    }

    /// Whether any diagnostic is an error.
    pub fn has_errors(&self) -> bool {
        self.diagnostics
            .iter()
            .any(|diagnostic| diagnostic.severity == Severity::Error)
    }

    /// The text that a diagnostic points into.
    pub fn source_of(&self, diagnostic: &Diagnostic) -> Option<&SourceText> {
        diagnostic.source.and_then(|index| self.sources.get(index))
    }

    /// The diagnostics that people are shown, and how many are left out: errors come first, and nobody reads hundreds of
    /// what is mostly one mistake.
    pub fn shown(&self) -> (&[Diagnostic], usize) {
        let shown = self.diagnostics.len().min(MOST_SHOWN);
        (&self.diagnostics[..shown], self.diagnostics.len() - shown)
    }

    /// What is said of those that [`Report::shown`] leaves out; nothing if there are none.
    pub fn left_out(&self) -> Option<String> {
        match self.shown().1 {
            0 => None,
            left => Some(format!(
                "and {left} more, which `flow-train check CONFIG --format json` lists; mend these first"
            )),
        }
    }

    /// The diagnostics as plain text, with the line concerned and a caret below the place, and a count at the end. Of
    /// many the first are shown, and the others counted.
    pub fn render(&self) -> String {
        let mut text = String::new();
        for diagnostic in self.shown().0 {
            text.push_str(&self.render_one(diagnostic));
            text.push('\n');
        }
        if let Some(left) = self.left_out() {
            text.push_str(&format!("{left}\n\n"));
        }
        let count = |severity| self.diagnostics.iter().filter(|d| d.severity == severity).count();
        let plural =
            |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
        let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
        text.push_str(&match (errors, warnings) {
            (errors, 0) => plural(errors, "error"),
            (0, warnings) => plural(warnings, "warning"),
            (errors, warnings) => format!("{}, {}", plural(errors, "error"), plural(warnings, "warning")),
        });
        text.push('\n');
        text
    }

    /// One diagnostic as plain text.
    pub fn render_one(&self, diagnostic: &Diagnostic) -> String {
        let mut text = format!(
            "{}[{}]: {}\n",
            diagnostic.severity, diagnostic.code, diagnostic.message
        );
        let mut gutter = 0;
        if let Some(source) = self.source_of(diagnostic) {
            match (&diagnostic.span, diagnostic.line, diagnostic.column) {
                (Some(span), Some(line), Some(column)) => {
                    let number = line.to_string();
                    gutter = number.len();
                    let indent = " ".repeat(gutter);
                    let (excerpt, carets) = excerpt(&source.text, span.clone());
                    text.push_str(&format!("{indent}--> {}:{line}:{column}\n", source.name));
                    text.push_str(&format!(
                        "{indent} |\n{number} | {excerpt}\n{indent} | {carets}\n"
                    ));
                }
                _ => text.push_str(&format!(" --> {}\n", source.name)),
            }
        }
        let indent = " ".repeat(gutter);
        if let Some(note) = diagnostic.note() {
            text.push_str(&format!("{indent} = note: {note}\n"));
        }
        if let Some(help) = &diagnostic.help {
            text.push_str(&format!("{indent} = help: {help}\n"));
        }
        if !diagnostic.allowed.is_empty() {
            text.push_str(&format!(
                "{indent} = allowed: {}\n",
                diagnostic.allowed.join(", ")
            ));
        }
        text
    }
}

/// Moves both ends of a span into the text and onto character boundaries.
fn clamp_span(text: &str, span: Range<usize>) -> Range<usize> {
    let floor = |mut index: usize| {
        index = index.min(text.len());
        while !text.is_char_boundary(index) {
            index -= 1;
        }
        index
    };
    let start = floor(span.start);
    start..floor(span.end).max(start)
}

/// Line and column, both from 1, of a byte offset that lies on a character boundary.
pub(crate) fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = &text[..clamp_span(text, offset..offset).start];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (
        before.matches('\n').count() + 1,
        before[line_start..].chars().count() + 1,
    )
}

/// The first line that a span touches, and a line of carets below the part of it that lies in the span. Tabs stay
/// tabs in both, so that the carets stand where they should however wide a tab is.
fn excerpt(text: &str, span: Range<usize>) -> (String, String) {
    let line_start = text[..span.start].rfind('\n').map_or(0, |newline| newline + 1);
    let line_end = text[span.start..]
        .find('\n')
        .map_or(text.len(), |newline| span.start + newline);
    let line = text[line_start..line_end].trim_end_matches('\r');
    let in_line = span.start.min(line_start + line.len());
    let end = span.end.clamp(in_line, line_start + line.len());
    let blank = |c: char| if c == '\t' { '\t' } else { ' ' };
    let mut carets: String = text[line_start..in_line].chars().map(blank).collect();
    carets.push_str(&"^".repeat(text[in_line..end].chars().count().max(1)));
    (line.to_owned(), carets)
}
