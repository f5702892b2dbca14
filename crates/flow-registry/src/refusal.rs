//! What a plug-in says when it does not do what it was asked for.

use std::fmt;

/// Why something is not done, and how to mend it: a kernel or a backend does not serve a call, an accelerator cannot be
/// in force. Displayed as the reason, and after a full stop the help, if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason, in the user's names and values, without a full stop.
    pub why: String,
    /// What to change; none where the one who refuses does not know what asked, as a kernel does not know a config.
    pub help: Option<String>,
}

impl Refusal {
    /// A refusal that says how to mend it.
    pub fn new(why: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            help: Some(help.into()),
        }
    }

    /// A refusal by one who does not know what asked.
    pub fn because(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            help: None,
        }
    }

    /// In one sentence, for an error that goes on with it: the reason, and after a semicolon the help, if there is one.
    pub fn sentence(&self) -> String {
        match &self.help {
            Some(help) => format!("{}; {help}", self.why),
            None => self.why.clone(),
        }
    }
}

/// Of one who does not know what asked.
impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self::because(why)
    }
}

/// Of one who does not know what asked.
impl From<&str> for Refusal {
    fn from(why: &str) -> Self {
        Self::because(why)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.help {
            Some(help) => write!(formatter, "{}. {help}", self.why),
            None => formatter.write_str(&self.why),
        }
    }
}

impl std::error::Error for Refusal {}
