//! The parameters of `command`, and what is wrong with them.

use flow_registry::Refusal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings of [`CommandReward`](crate::CommandReward).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandSettings {
    /// The program and its arguments: `["python3", "scorer.py"]`. It runs in the folder of the config, and no shell reads the words.
    #[schemars(length(min = 1, max = 1000))]
    pub command: Vec<String>,
    /// Processes of the program, started when they are needed.
    #[serde(default = "usual_processes")]
    #[schemars(range(min = 1, max = 64))]
    pub processes: usize,
    /// Seconds that one answer may take.
    #[serde(default = "usual_timeout_s")]
    #[schemars(range(min = 0.01, max = 86_400.0))]
    pub timeout_s: f64,
    /// Seconds that the first answer of a process may take, in which a program loads its model.
    #[serde(default = "usual_start_timeout_s")]
    #[schemars(range(min = 0.01, max = 86_400.0))]
    pub start_timeout_s: f64,
    /// How often a sample is given to a new process after one crashed or did not answer in time.
    #[serde(default = "usual_retries")]
    #[schemars(range(max = 1000))]
    pub retries: u32,
    /// Seconds before the first retry, of which jitter takes up to half. The wait doubles with each retry, up to a minute.
    #[serde(default = "usual_backoff_s")]
    #[schemars(range(min = 0.0, max = 60.0))]
    pub backoff_s: f64,
}

const fn usual_processes() -> usize {
    1
}

const fn usual_timeout_s() -> f64 {
    60.0
}

const fn usual_start_timeout_s() -> f64 {
    600.0
}

const fn usual_retries() -> u32 {
    3
}

const fn usual_backoff_s() -> f64 {
    1.0
}

impl CommandSettings {
    /// This program with its arguments, and the usual rest.
    pub fn new<S: Into<String>>(command: impl IntoIterator<Item = S>) -> Self {
        Self {
            command: command.into_iter().map(Into::into).collect(),
            processes: usual_processes(),
            timeout_s: usual_timeout_s(),
            start_timeout_s: usual_start_timeout_s(),
            retries: usual_retries(),
            backoff_s: usual_backoff_s(),
        }
    }

    /// What is wrong with them, with the name of the parameter.
    pub(super) fn problem(&self) -> Option<Refusal> {
        let seconds = 0.01..=86_400.0;
        let times = [
            ("timeout_s", self.timeout_s),
            ("start_timeout_s", self.start_timeout_s),
        ];
        let wrong_time = times.iter().find(|(_, value)| !seconds.contains(value));
        if self.command.first().is_none_or(String::is_empty) {
            Some(Refusal::new(
                "`command`: there is no program",
                "write [\"python3\", \"scorer.py\"]",
            ))
        } else if !(1..=64).contains(&self.processes) {
            Some(format!("`processes`: {} is not from 1 to 64", self.processes).into())
        } else if let Some((name, value)) = wrong_time {
            Some(format!("`{name}`: {value} is not from 0.01 to 86400").into())
        } else if self.retries > 1000 {
            Some(format!("`retries`: {} is more than 1000", self.retries).into())
        } else if !(0.0..=60.0).contains(&self.backoff_s) {
            Some(format!("`backoff_s`: {} is not from 0 to 60", self.backoff_s).into())
        } else {
            None
        }
    }
}
