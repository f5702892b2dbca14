//! What a command found, for programs: one JSON document on standard output whatever happens. `docs/src/config.md` describes it.

use crate::failure::{Failure, OrFailure};
use crate::terminal;
use flow_config::{Diagnostic, Report, Severity};
use flow_core::stopped;
use flow_validate::codes::SETUP_REFUSED;
use serde_json::{Value, json};
use std::path::Path;

/// Raised when the shape changes in a way that a reader would stumble over.
const FORMAT: u32 = 1;

/// Diagnostics, and what else there is to say, by key.
pub type Found = (Report, Vec<(&'static str, Value)>);

/// Prints what `examine` finds about `config`. A failure, and a panic, is a diagnostic like others.
///
/// # Errors
/// [`Failure::Said`] if a diagnostic is an error, and what is no fault of the input as it is: standard error and the exit code
/// say it, too.
pub fn print(config: &Path, examine: impl FnOnce() -> Result<Found, Failure>) -> Result<(), Failure> {
    let examined = stopped::caught(examine).unwrap_or_else(|why| Err(why.into()));
    let (found, failure) = match examined {
        Ok(found) => (found, None),
        Err(Failure::Config(report)) => ((*report, Vec::new()), None),
        Err(failure) => {
            let report = Report {
                diagnostics: vec![Diagnostic::error(SETUP_REFUSED, failure.to_string())],
                ..Report::default()
            };
            ((report, Vec::new()), Some(failure))
        }
    };
    let (report, more) = found;
    let text = serde_json::to_string_pretty(&document(config, &report, more)).or_failed()?;
    terminal::line(&text)?;
    match failure {
        None if !report.has_errors() => Ok(()),
        None | Some(Failure::Input(_)) => Err(Failure::Said),
        Some(other) => Err(other),
    }
}

fn document(config: &Path, report: &Report, more: Vec<(&'static str, Value)>) -> Value {
    let count = |severity| {
        let of_it = report.diagnostics.iter().filter(|one| one.severity == severity);
        of_it.count()
    };
    let mut document = json!({
        "format": FORMAT,
        "config": config.display().to_string(),
        "ok": !report.has_errors(),
        "errors": count(Severity::Error),
        "warnings": count(Severity::Warning),
        "diagnostics": report.diagnostics,
    });
    for (key, value) in more {
        document[key] = value;
    }
    document
}
