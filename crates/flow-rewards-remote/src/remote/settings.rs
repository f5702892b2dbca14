//! The parameters of `remote`, and what is wrong with them.

use std::collections::BTreeMap;

use flow_config::Rules;
use flow_config::codes::{NOT_ALLOWED, RULE_UNUSED};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::headers;
use super::server::checked_url;

/// Settings of [`RemoteReward`](crate::RemoteReward).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoteSettings {
    /// URLs of servers that score alike, taken in turn: `http://localhost:8000`. One that fails is passed over for half a minute
    /// while others answer.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1)), extend("uniqueItems" = true))]
    pub servers: Vec<String>,
    /// Seconds that one request may take, from connecting to the end of the answer.
    #[serde(default = "usual_timeout_s")]
    #[schemars(range(min = 0.01, max = 86_400.0))]
    pub timeout_s: f64,
    /// How often all servers are asked again after none of them answered.
    #[serde(default = "usual_retries")]
    #[schemars(range(max = 1000))]
    pub retries: u32,
    /// Seconds before the first retry, of which jitter takes up to half. The wait doubles with each retry, up to a minute.
    #[serde(default = "usual_backoff_s")]
    #[schemars(range(min = 0.0, max = 60.0))]
    pub backoff_s: f64,
    /// Samples per request, at most; a group-wise reward gets whole groups.
    #[serde(default = "usual_batch")]
    #[schemars(range(min = 1, max = 1024))]
    pub batch: usize,
    /// Whether the prompts' metadata goes along, one object per sample under the key `metadata`.
    #[serde(default)]
    pub metadata: bool,
    /// Headers of every request, each with the environment variable that has its value: `{ Authorization = "REWARD_TOKEN" }`,
    /// where the variable has `Bearer` and the token.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers_from: BTreeMap<String, String>,
    /// Whether the servers score whole groups: each request has all samples of one prompt group.
    #[serde(default)]
    pub groupwise: bool,
}

const fn usual_timeout_s() -> f64 {
    60.0
}

const fn usual_retries() -> u32 {
    3
}

const fn usual_backoff_s() -> f64 {
    1.0
}

const fn usual_batch() -> usize {
    16
}

impl RemoteSettings {
    /// These servers, and the usual rest.
    pub fn new<S: Into<String>>(servers: impl IntoIterator<Item = S>) -> Self {
        Self {
            servers: servers.into_iter().map(Into::into).collect(),
            timeout_s: usual_timeout_s(),
            retries: usual_retries(),
            backoff_s: usual_backoff_s(),
            batch: usual_batch(),
            metadata: false,
            headers_from: BTreeMap::new(),
            groupwise: false,
        }
    }

    /// What is wrong with them, with the name of the parameter.
    pub(super) fn problem(&self) -> Option<String> {
        let Self {
            servers,
            timeout_s,
            retries,
            backoff_s,
            batch,
            ..
        } = self;
        if !(1..=64).contains(&servers.len()) {
            Some(format!("`servers`: {} URLs; allowed are 1 to 64", servers.len()))
        } else if !(0.01..=86_400.0).contains(timeout_s) {
            Some(format!("`timeout_s`: {timeout_s} is not from 0.01 to 86400"))
        } else if *retries > 1000 {
            Some(format!("`retries`: {retries} is more than 1000"))
        } else if !(0.0..=60.0).contains(backoff_s) {
            Some(format!("`backoff_s`: {backoff_s} is not from 0 to 60"))
        } else if !(1..=1024).contains(batch) {
            Some(format!("`batch`: {batch} is not from 1 to 1024"))
        } else {
            None
        }
    }
}

/// Rules that the schema cannot say.
pub(super) fn check(settings: &RemoteSettings, rules: &mut Rules<'_>, path: &str) {
    let servers = format!("{path}.servers");
    for url in &settings.servers {
        if let Err(problem) = checked_url(url) {
            rules
                .error(NOT_ALLOWED, &[&servers], format!("`{servers}`: {problem}"))
                .help("write scheme, host and port: \"http://localhost:8000\"");
        }
    }
    let headers = format!("{path}.headers_from");
    for (header, variable) in &settings.headers_from {
        if let Err(problem) = headers::checked(header, variable) {
            rules
                .error(NOT_ALLOWED, &[&headers], format!("`{headers}`: {problem}"))
                .help("write a header and the name of a variable: { Authorization = \"REWARD_TOKEN\" }");
        }
    }
    let batch = format!("{path}.batch");
    if settings.groupwise && rules.is_written(&batch) {
        let message = format!("a request has one whole group, so `{batch}` is not read");
        rules
            .warning(RULE_UNUSED, &[&batch, &format!("{path}.groupwise")], message)
            .help("remove one of them");
    }
}
