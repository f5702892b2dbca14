//! The parameters of `remote`, and what is wrong with them.

use std::collections::BTreeMap;

use flow_config::Rules;
use flow_config::codes::RULE_UNUSED;
use flow_rewards::RewardKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::http::{self, Connection};

/// Settings of [`RemoteReward`](crate::RemoteReward).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoteSettings {
    /// URLs of servers that score alike, taken in turn: `http://localhost:8000`. One that fails is passed over for half a minute
    /// while others answer.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1)), extend("uniqueItems" = true))]
    pub servers: Vec<String>,
    /// Seconds that one request may take, from connecting to the end of the answer.
    #[serde(default = "http::usual_timeout_s")]
    #[schemars(range(min = 0.01, max = 86_400.0))]
    pub timeout_s: f64,
    /// How often all servers are asked again after none of them answered.
    #[serde(default = "http::usual_retries")]
    #[schemars(range(max = 1000))]
    pub retries: u32,
    /// Seconds before the first retry, of which jitter takes up to half. The wait doubles with each retry, up to a minute.
    #[serde(default = "http::usual_backoff_s")]
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

const fn usual_batch() -> usize {
    16
}

impl RemoteSettings {
    /// These servers, and the usual rest.
    pub fn new<S: Into<String>>(servers: impl IntoIterator<Item = S>) -> Self {
        Self {
            servers: servers.into_iter().map(Into::into).collect(),
            timeout_s: http::usual_timeout_s(),
            retries: http::usual_retries(),
            backoff_s: http::usual_backoff_s(),
            batch: usual_batch(),
            metadata: false,
            headers_from: BTreeMap::new(),
            groupwise: false,
        }
    }

    /// Whether they score samples or groups.
    pub(super) fn kind(&self) -> RewardKind {
        match self.groupwise {
            true => RewardKind::Groupwise,
            false => RewardKind::Pointwise,
        }
    }

    /// How servers are asked.
    pub(super) fn connection(&self) -> Connection<'_> {
        Connection {
            servers: &self.servers,
            timeout_s: self.timeout_s,
            retries: self.retries,
            backoff_s: self.backoff_s,
        }
    }

    /// What is wrong with the others, with the name of the parameter.
    pub(super) fn problem(&self) -> Option<String> {
        let batch = self.batch;
        (!(1..=1024).contains(&batch)).then(|| format!("`batch`: {batch} is not from 1 to 1024"))
    }
}

/// Rules that the schema cannot say.
pub(super) fn check(settings: &RemoteSettings, rules: &mut Rules<'_>, path: &str) {
    http::check_servers(&settings.servers, rules, path, "http://localhost:8000");
    http::check_headers(&settings.headers_from, rules, path);
    let batch = format!("{path}.batch");
    if settings.groupwise && rules.is_written(&batch) {
        let message = format!("a request has one whole group, so `{batch}` is not read");
        rules
            .warning(RULE_UNUSED, &[&batch, &format!("{path}.groupwise")], message)
            .help("remove one of them");
    }
}
