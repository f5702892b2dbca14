//! What is wrong with a set of options, or worth knowing about it.

use flow_config::Severity;
use serde::Serialize;
use std::fmt;

/// Stable codes of the findings that are about one option alone. Those of rules stand with the rules.
pub mod codes {
    /// No such option.
    pub const UNKNOWN_OPTION: &str = "runtime::unknown-option";
    /// A table where a quoted dotted path was meant.
    pub const NESTED_TABLE: &str = "runtime::nested-table";
    /// A value of another type.
    pub const WRONG_TYPE: &str = "runtime::wrong-type";
    /// A number outside the range, or a text of a length outside it.
    pub const OUT_OF_RANGE: &str = "runtime::out-of-range";
    /// A word that is not among the choices.
    pub const UNKNOWN_CHOICE: &str = "runtime::unknown-choice";
    /// A text with characters that are not allowed; the JSON schema cannot say this.
    pub const BAD_TEXT: &str = "runtime::bad-text";
    /// The build has not what reads the option.
    pub const MISSING_FEATURE: &str = "runtime::missing-feature";
    /// An entry of a runtime's configuration that no build of flow-train reads.
    pub const NEVER_READ: &str = "runtime::never-read";
    /// The run's device does not read the option.
    pub const WRONG_DEVICE: &str = "runtime::wrong-device";
}

/// One thing that is wrong, or worth knowing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// Stable code: one of [`codes`], or that of a [`Rule`](crate::Rule).
    pub code: &'static str,
    /// The option as it was written; empty if the finding is not about one.
    pub option: String,
    /// What is the matter, in the user's names and values.
    pub message: String,
    /// How to mend it.
    pub help: String,
    /// What would be allowed in its place: options, sorted, or values.
    pub allowed: Vec<String>,
    /// Which of them is nearest to what was written.
    pub nearest: Option<String>,
}

impl Finding {
    pub(crate) fn new(severity: Severity, code: &'static str, option: &str, message: String) -> Self {
        Self {
            severity,
            code,
            option: option.to_owned(),
            message,
            help: String::new(),
            allowed: Vec::new(),
            nearest: None,
        }
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }

    /// One line without the list of what is allowed.
    fn head(&self) -> String {
        let Self {
            severity,
            code,
            message,
            nearest,
            ..
        } = self;
        let nearest = nearest
            .as_ref()
            .map(|nearest| format!(" The nearest is `{nearest}`."));
        let mut head = format!("{severity}[{code}]: {message}.{}", nearest.unwrap_or_default());
        if !self.help.is_empty() {
            head.push(' ');
            head.push_str(&self.help);
        }
        head
    }

    fn allowed_line(&self) -> String {
        format!("  allowed: {}", self.allowed.join(", "))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.head())?;
        if !self.allowed.is_empty() {
            write!(formatter, "\n{}", self.allowed_line())?;
        }
        Ok(())
    }
}

/// Options that cannot be used. Holds every finding: the errors, at least one, then the warnings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{}", self.render())]
pub struct OptionsError {
    /// All that was found.
    pub findings: Vec<Finding>,
}

impl OptionsError {
    /// One finding per line. The list of options, which is long, stands once, below all that refer to it.
    fn render(&self) -> String {
        let mut lines = Vec::new();
        let mut options = None;
        for finding in &self.findings {
            if finding.code == codes::UNKNOWN_OPTION {
                lines.push(finding.head());
                options = Some(finding.allowed_line());
            } else {
                lines.push(finding.to_string());
            }
        }
        lines.extend(options);
        lines.join("\n")
    }
}
