//! Diagnostics of a config as people see them: file, line, the place underlined, and how to mend it.

use flow_config::{Report, Severity};
use miette::{GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, SourceCode};
use std::fmt;

/// One diagnostic in miette's terms.
#[derive(Debug)]
struct Shown<'a> {
    diagnostic: &'a flow_config::Diagnostic,
    source: Option<NamedSource<String>>,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.diagnostic.message)
    }
}

impl std::error::Error for Shown<'_> {}

impl miette::Diagnostic for Shown<'_> {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(self.diagnostic.code))
    }

    fn severity(&self) -> Option<miette::Severity> {
        Some(match self.diagnostic.severity {
            Severity::Error => miette::Severity::Error,
            Severity::Warning => miette::Severity::Warning,
        })
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let allowed = match self.diagnostic.allowed.as_slice() {
            [] => None,
            allowed => Some(format!("allowed: {}", allowed.join(", "))),
        };
        let lines = self.diagnostic.note().into_iter();
        let lines: Vec<String> = lines.chain(self.diagnostic.help.clone()).chain(allowed).collect();
        if lines.is_empty() {
            None
        } else {
            Some(Box::new(lines.join("\n")))
        }
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.source.as_ref().map(|source| source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let span = self.diagnostic.span.clone()?;
        Some(Box::new(std::iter::once(LabeledSpan::new(
            None,
            span.start,
            span.len(),
        ))))
    }
}

/// All diagnostics of a report.
pub fn render(report: &Report, colour: bool) -> String {
    let theme = if colour {
        GraphicalTheme::unicode()
    } else {
        GraphicalTheme::unicode_nocolor()
    };
    let handler = GraphicalReportHandler::new_themed(theme)
        .with_links(false)
        .with_width(110)
        .with_context_lines(1);
    let mut text = String::new();
    for diagnostic in report.shown().0 {
        let source = report
            .source_of(diagnostic)
            .map(|source| NamedSource::new(source.name.clone(), source.text.clone()).with_language("TOML"));
        let before = text.len();
        if handler
            .render_report(&mut text, &Shown { diagnostic, source })
            .is_err()
        {
            text.truncate(before);
            text.push_str(&report.render_one(diagnostic));
        }
    }
    if let Some(left) = report.left_out() {
        text.push_str(&format!("\n{left}\n"));
    }
    // Lines of the file that are empty, and those of a help, come with their indentation.
    let mut text: String = text
        .lines()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect();
    let count = |severity| {
        report
            .diagnostics
            .iter()
            .filter(|diagnostic| diagnostic.severity == severity)
            .count()
    };
    let plural = |count: usize, noun: &str| match count {
        0 => None,
        1 => Some(format!("1 {noun}")),
        _ => Some(format!("{count} {noun}s")),
    };
    let counts = [
        plural(count(Severity::Error), "error"),
        plural(count(Severity::Warning), "warning"),
    ];
    text.push_str(&format!(
        "\n{}\n",
        counts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    ));
    text
}
