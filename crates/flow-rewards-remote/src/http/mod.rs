//! Servers over HTTP: taken in turn, with time-outs, retries and waits that double. What all rewards of servers share.

mod answer;
mod headers;
mod server;
mod settings;

pub(crate) use answer::{is_healthy, json};
pub(crate) use headers::{Headers, checked_variable, variable_of_process};
pub(crate) use settings::{
    Connection, check_headers, check_servers, usual_backoff_s, usual_retries, usual_timeout_s,
};

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flow_rewards::RewardError;

use crate::waits::{Waits, number_of};
use server::Server;

/// Why a server gave no scores.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What came back, as the rest of a sentence that begins with the server.
    pub what: String,
    /// Whether another attempt would fail in the same way.
    pub is_final: bool,
    /// The sample of the request that is at fault, if it is one.
    pub sample: Option<usize>,
}

impl Failure {
    /// One that may pass.
    pub fn passing(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            is_final: false,
            sample: None,
        }
    }

    /// One that stays.
    pub fn lasting(what: impl Into<String>) -> Self {
        Self {
            is_final: true,
            ..Self::passing(what)
        }
    }
}

/// What is asked of a server before it gets its first request, and after it failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Health {
    /// The path behind the server's URL, asked by `GET`.
    pub path: &'static str,
    /// Reads status and body.
    pub read: fn(u16, &[u8]) -> Result<(), Failure>,
}

/// Where requests go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protocol {
    /// The path behind the server's URL, asked by `POST` with a body of JSON.
    pub path: &'static str,
    /// What is asked first, if servers have such a thing.
    pub health: Option<Health>,
}

/// Samples of a request, for the words of its errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// The position of the first one.
    pub first: usize,
    /// How many there are.
    pub count: usize,
}

/// Servers that answer alike.
#[derive(Debug)]
pub(crate) struct Client {
    protocol: Protocol,
    servers: Vec<Server>,
    headers: Headers,
    waits: Waits,
    retries: u32,
    turn: AtomicUsize,
}

impl Client {
    /// The servers of `connection`. None is asked yet. `variable` gives the value of an environment variable.
    ///
    /// # Errors
    /// What is wrong, with the name of the parameter.
    pub fn new(
        connection: &Connection<'_>,
        headers: Headers,
        protocol: Protocol,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        if let Some(problem) = connection.problem() {
            return Err(problem);
        }
        let timeout = Duration::from_secs_f64(connection.timeout_s);
        let server = |url: &String| {
            Server::new(url, timeout, variable).map_err(|problem| format!("`servers`: {problem}"))
        };
        Ok(Self {
            protocol,
            servers: connection.servers.iter().map(server).collect::<Result<_, _>>()?,
            headers,
            waits: Waits::new(connection.backoff_s),
            retries: connection.retries,
            turn: AtomicUsize::new(0),
        })
    }

    /// How many servers there are.
    pub fn count(&self) -> usize {
        self.servers.len()
    }

    /// Sends `body` until a server's answer is one that `read` takes. `read` gets status and body.
    ///
    /// # Errors
    /// [`RewardError::Sample`] with the attempts and what came back, for what stays wrong and after the last retry.
    pub fn ask<T>(
        &self,
        asked: Asked,
        body: &[u8],
        read: impl Fn(u16, &[u8]) -> Result<T, Failure>,
    ) -> Result<T, RewardError> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut attempts = 0;
        let mut failures = BTreeMap::new();
        for round in 0..=self.retries {
            if round > 0 {
                std::thread::sleep(self.waits.before(round, number_of(body)));
            }
            for server in self.in_turn(turn + round as usize) {
                attempts += 1;
                let failure = match server.ask(&self.protocol, body, &self.headers, &read) {
                    Ok(answered) => return Ok(answered),
                    Err(failure) => failure,
                };
                let what = self.hide(&format!("{} {}", server.url(), failure.what));
                if failure.is_final {
                    return Err(RewardError::Sample {
                        index: asked.first + failure.sample.unwrap_or(0),
                        problem: in_words(attempts, asked.count, &what),
                    });
                }
                failures.insert(server.url(), what);
            }
        }
        let whats: Vec<String> = failures.into_values().collect();
        Err(RewardError::Sample {
            index: asked.first,
            problem: in_words(attempts, asked.count, &whats.join("; ")),
        })
    }

    /// `text` without the values of headers.
    pub fn hide(&self, text: &str) -> String {
        self.headers.hide(text)
    }

    /// The servers in the order in which request number `turn` asks them: those that failed lately last.
    fn in_turn(&self, turn: usize) -> Vec<&Server> {
        let start = turn % self.servers.len();
        let (before, from) = self.servers.split_at(start);
        let mut servers: Vec<&Server> = from.iter().chain(before).collect();
        // Cached, since the time goes on while they are sorted.
        servers.sort_by_cached_key(|server| server.is_resting());
        servers
    }
}

/// The words of an error: what was tried, and what came of it.
fn in_words(attempts: u32, count: usize, what: &str) -> String {
    let attempts = if attempts == 1 {
        "1 attempt".to_owned()
    } else {
        format!("{attempts} attempts")
    };
    let samples = if count == 1 {
        "a request of this sample".to_owned()
    } else {
        format!("a request of {count} samples")
    };
    format!("no scores after {attempts} at {samples}: {what}")
}
