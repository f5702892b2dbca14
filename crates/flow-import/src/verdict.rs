//! Whether what a config asks for can be trained here, in one line.

use std::fmt;

use serde::Serialize;

/// What becomes of a config as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// flow-train has everything that the config asks for.
    Runs,
    /// The TOML says what the YAML says; what is named must be there before it can be trained.
    RunsWhen {
        /// What is not there, such as "the reward PickScore".
        needs: Vec<String>,
    },
    /// Something that decides what is trained does not exist in flow-train. It stands in the TOML as it was asked for,
    /// where flow-train refuses it: nothing else is trained in its place.
    Cannot {
        /// What flow-train does not have, such as "no model FLUX.1".
        because: Vec<String>,
    },
}

impl Verdict {
    /// From what does not exist, and from what is not there yet.
    pub(crate) fn of(because: &[String], needs: &[String]) -> Self {
        match (because, needs) {
            ([], []) => Self::Runs,
            ([], needs) => Self::RunsWhen {
                needs: needs.to_vec(),
            },
            (because, _) => Self::Cannot {
                because: because.to_vec(),
            },
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Runs => formatter.write_str("runs here"),
            Self::RunsWhen { needs } => {
                let verb = if needs.len() == 1 { "is" } else { "are" };
                write!(formatter, "runs when {} {verb} there", listed(needs))
            }
            Self::Cannot { because } => {
                write!(
                    formatter,
                    "cannot run here, because flow-train has {}",
                    listed(because)
                )
            }
        }
    }
}

/// "a", "a and b", "a, b and c".
fn listed(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}
