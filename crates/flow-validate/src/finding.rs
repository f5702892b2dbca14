//! What a check found.

pub use flow_config::Severity;
use serde::Serialize;
use std::fmt;

/// One thing that is wrong, or worth knowing, about a combination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// Stable code; [`explain`](crate::explain) has its rationale.
    pub code: &'static str,
    /// Dotted path of the config entry, for instance `acceleration.rollout[0]`.
    pub path: String,
    /// What is the matter, in the user's names and values.
    pub message: String,
    /// How to mend it.
    pub help: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            severity,
            code,
            path,
            message,
            help,
        } = self;
        write!(f, "{severity}[{code}] at {path}: {message} {help}")
    }
}

/// Whether one of `findings` forbids the run.
pub fn errors(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.severity == Severity::Error)
}
