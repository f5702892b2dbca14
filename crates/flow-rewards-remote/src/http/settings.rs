//! The parameters that all rewards of servers have, and what is wrong with them.

use std::collections::BTreeMap;

use flow_config::Rules;
use flow_config::codes::NOT_ALLOWED;

use super::headers::checked;
use super::server::checked_url;

pub(crate) const fn usual_timeout_s() -> f64 {
    60.0
}

pub(crate) const fn usual_retries() -> u32 {
    3
}

pub(crate) const fn usual_backoff_s() -> f64 {
    1.0
}

/// How servers are asked: parameters of one name and one meaning in every reward of servers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection<'a> {
    pub servers: &'a [String],
    pub timeout_s: f64,
    pub retries: u32,
    pub backoff_s: f64,
}

impl Connection<'_> {
    /// What is wrong with them, with the name of the parameter.
    pub fn problem(&self) -> Option<String> {
        let Self {
            servers,
            timeout_s,
            retries,
            backoff_s,
        } = self;
        if !(1..=64).contains(&servers.len()) {
            Some(format!("`servers`: {} URLs; allowed are 1 to 64", servers.len()))
        } else if !(0.01..=86_400.0).contains(timeout_s) {
            Some(format!("`timeout_s`: {timeout_s} is not from 0.01 to 86400"))
        } else if *retries > 1000 {
            Some(format!("`retries`: {retries} is more than 1000"))
        } else if !(0.0..=60.0).contains(backoff_s) {
            Some(format!("`backoff_s`: {backoff_s} is not from 0 to 60"))
        } else {
            None
        }
    }
}

/// URLs that are none are errors. `example` is one, for the help.
pub(crate) fn check_servers(servers: &[String], rules: &mut Rules<'_>, path: &str, example: &str) {
    let path = format!("{path}.servers");
    for url in servers {
        if let Err(problem) = checked_url(url) {
            rules
                .error(NOT_ALLOWED, &[&path], format!("`{path}`: {problem}"))
                .help(format!("write scheme, host and port: \"{example}\""));
        }
    }
}

/// Headers that cannot be sent are errors.
pub(crate) fn check_headers(headers_from: &BTreeMap<String, String>, rules: &mut Rules<'_>, path: &str) {
    let path = format!("{path}.headers_from");
    for (header, variable) in headers_from {
        if let Err(problem) = checked(header, variable) {
            rules
                .error(NOT_ALLOWED, &[&path], format!("`{path}`: {problem}"))
                .help("write a header and the name of a variable: { Authorization = \"REWARD_TOKEN\" }");
        }
    }
}
