//! The parameters of `geneval`, and what is wrong with them.

use std::collections::BTreeMap;

use flow_config::Rules;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::http::{self, Connection};

/// How what is found becomes a score.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GenEvalMode {
    /// The mean of the parts: counts by how near they are, colours by their share, places. What Flow-GRPO trains on.
    #[default]
    Score,
    /// 1 if at least as many objects are there as wanted, with their colours and places, and nothing that is excluded; else 0. The
    /// benchmark's.
    Correct,
    /// 1 if exactly as many objects are there as wanted, with their colours and places; else 0.
    Strict,
}

/// Settings of [`GenEval`](crate::GenEval).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GenEvalSettings {
    /// URLs of servers of the same detector, taken in turn: `http://localhost:8000`. One that fails is passed over for half a minute
    /// while others answer.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1)), extend("uniqueItems" = true))]
    pub servers: Vec<String>,
    /// How what is found becomes a score.
    #[serde(default)]
    pub mode: GenEvalMode,
    /// Objects count whose score is above this.
    #[serde(default = "usual_threshold")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub threshold: f64,
    /// The same for prompts with the tag `counting`.
    #[serde(default = "usual_counting_threshold")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub counting_threshold: f64,
    /// Objects of a class that count, at most, the surest first.
    #[serde(default = "usual_max_objects")]
    #[schemars(range(min = 1, max = 10_000))]
    pub max_objects: usize,
    /// Images per request, at most.
    #[serde(default = "usual_batch")]
    #[schemars(range(min = 1, max = 1024))]
    pub batch: usize,
    /// Headers of every request, each with the environment variable that has its value: `{ Authorization = "REWARD_TOKEN" }`,
    /// where the variable has `Bearer` and the token.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers_from: BTreeMap<String, String>,
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
}

const fn usual_threshold() -> f64 {
    0.3
}

const fn usual_counting_threshold() -> f64 {
    0.9
}

const fn usual_max_objects() -> usize {
    16
}

const fn usual_batch() -> usize {
    16
}

impl GenEvalSettings {
    /// These servers, and the usual rest.
    pub fn new<S: Into<String>>(servers: impl IntoIterator<Item = S>) -> Self {
        Self {
            servers: servers.into_iter().map(Into::into).collect(),
            mode: GenEvalMode::default(),
            threshold: usual_threshold(),
            counting_threshold: usual_counting_threshold(),
            max_objects: usual_max_objects(),
            batch: usual_batch(),
            headers_from: BTreeMap::new(),
            timeout_s: http::usual_timeout_s(),
            retries: http::usual_retries(),
            backoff_s: http::usual_backoff_s(),
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
        let numbers = [
            ("threshold", self.threshold, 0.0..=1.0),
            ("counting_threshold", self.counting_threshold, 0.0..=1.0),
            ("max_objects", self.max_objects as f64, 1.0..=10_000.0),
            ("batch", self.batch as f64, 1.0..=1024.0),
        ];
        let wrong = numbers
            .into_iter()
            .find(|(_, value, range)| !range.contains(value));
        wrong.map(|(key, value, range)| {
            format!(
                "`{key}`: {value} is not from {} to {}",
                range.start(),
                range.end()
            )
        })
    }
}

/// Rules that the schema cannot say.
pub(super) fn check(settings: &GenEvalSettings, rules: &mut Rules<'_>, path: &str) {
    http::check_servers(&settings.servers, rules, path, "http://localhost:8000");
    http::check_headers(&settings.headers_from, rules, path);
}
