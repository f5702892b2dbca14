//! `remote`: scores of servers with Flow-Factory's JSON protocol.
//!
//! Source: Flow-Factory, `rewards/my_reward_remote.py` and `reward_server/example_server.py`: `GET /health` answers
//! `{"status":"ok"}`; `POST /compute` takes `{"prompt":[str],"image":[PNG]|null,"video":[[PNG]]|null,"condition_images":null,
//! "condition_videos":null}` with PNG files in base64, and answers `{"rewards":[float]}`, or `{"error":str}` with the status 500.
//! Beyond it, `"metadata":[{…}]` goes along if it is asked for.

mod answer;
mod body;
mod headers;
mod server;
mod settings;

pub use settings::RemoteSettings;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flow_registry::NameTaken;
use flow_rewards::{Reward, RewardError, RewardFactory, RewardKind, RewardRegistry, RewardSample};

use crate::in_order::in_order;
use crate::waits::{Waits, number_of};
use headers::Headers;
use server::Server;

const NAME: &str = "remote";

/// Why a server gave no scores.
#[derive(Debug)]
struct Failure {
    /// What came back, as the rest of a sentence that begins with the server.
    what: String,
    /// Whether another attempt would fail in the same way.
    is_final: bool,
    /// The sample of the request that is at fault, if it is one.
    sample: Option<usize>,
}

impl Failure {
    /// One that may pass.
    fn passing(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            is_final: false,
            sample: None,
        }
    }

    /// One that stays.
    fn lasting(what: impl Into<String>) -> Self {
        Self {
            is_final: true,
            ..Self::passing(what)
        }
    }
}

/// Scores of servers; see the module's description.
#[derive(Debug)]
pub struct RemoteReward {
    settings: RemoteSettings,
    servers: Vec<Server>,
    headers: Headers,
    waits: Waits,
    turn: AtomicUsize,
}

impl RemoteReward {
    /// The reward with these settings. `variable` gives the value of an environment variable. No server is asked yet.
    ///
    /// # Errors
    /// [`RewardError::Params`] for a value outside its range, a URL that is none, or a variable that is not there.
    pub fn new(
        settings: RemoteSettings,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, RewardError> {
        let refused = |problem: String| RewardError::Params {
            reward: NAME.to_owned(),
            problem,
        };
        if let Some(problem) = settings.problem() {
            return Err(refused(problem));
        }
        let headers = Headers::new(&settings.headers_from, variable).map_err(refused)?;
        let timeout = Duration::from_secs_f64(settings.timeout_s);
        let server = |url: &String| {
            Server::new(url, timeout).map_err(|problem| refused(format!("`servers`: {problem}")))
        };
        Ok(Self {
            servers: settings.servers.iter().map(server).collect::<Result<_, _>>()?,
            headers,
            waits: Waits::new(settings.backoff_s),
            turn: AtomicUsize::new(0),
            settings,
        })
    }

    /// Adds the reward to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is a reward of its name.
    pub fn register(registry: &mut RewardRegistry) -> Result<(), NameTaken> {
        let reward = RewardFactory::new::<RemoteSettings>(
            NAME,
            "The scores of servers over HTTP, with Flow-Factory's JSON protocol.",
            RewardKind::Pointwise,
            |_, settings| Ok(Arc::new(Self::new(settings, &headers::variable_of_process)?)),
        );
        registry.register(reward.with_rules(settings::check))
    }

    /// The samples of each request: of one sort, images or videos.
    fn requests(&self, samples: &[RewardSample<'_>]) -> Result<Vec<Range<usize>>, RewardError> {
        let is_video = |sample: &RewardSample<'_>| !sample.frames.is_empty();
        let mut requests = Vec::new();
        let mut first = 0;
        for of_one_sort in samples.chunk_by(|a, b| is_video(a) == is_video(b)) {
            let end = first + of_one_sort.len();
            if self.settings.groupwise {
                requests.push(first..end);
            } else {
                let starts = (first..end).step_by(self.settings.batch);
                requests.extend(starts.map(|start| start..end.min(start + self.settings.batch)));
            }
            first = end;
        }
        match requests.get(1) {
            Some(second) if self.settings.groupwise => Err(RewardError::Sample {
                index: second.start,
                problem: "a group has either images or videos".to_owned(),
            }),
            _ => Ok(requests),
        }
    }

    /// Scores the samples of one request.
    fn compute(&self, samples: &[RewardSample<'_>], range: Range<usize>) -> Result<Vec<f32>, RewardError> {
        let count = range.len();
        let body = body::encode(samples, range.clone(), self.settings.metadata)?;
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut attempts = 0;
        let mut failures = BTreeMap::new();
        for round in 0..=self.settings.retries {
            if round > 0 {
                std::thread::sleep(self.waits.before(round, number_of(&body)));
            }
            for server in self.in_turn(turn + round as usize) {
                attempts += 1;
                let failure = match server.compute(&body, count, &self.headers) {
                    Ok(scores) => return Ok(scores),
                    Err(failure) => failure,
                };
                let what = self.headers.hide(&format!("{} {}", server.url(), failure.what));
                if failure.is_final {
                    return Err(RewardError::Sample {
                        index: range.start + failure.sample.unwrap_or(0),
                        problem: in_words(attempts, count, &what),
                    });
                }
                failures.insert(server.url(), what);
            }
        }
        let whats: Vec<String> = failures.into_values().collect();
        Err(RewardError::Sample {
            index: range.start,
            problem: in_words(attempts, count, &whats.join("; ")),
        })
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

impl Reward for RemoteReward {
    fn name(&self) -> &str {
        NAME
    }

    fn kind(&self) -> RewardKind {
        if self.settings.groupwise {
            RewardKind::Groupwise
        } else {
            RewardKind::Pointwise
        }
    }

    fn takes_videos(&self) -> bool {
        true
    }

    /// Asks as many servers at once as there are.
    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
        let requests = self.requests(samples)?;
        let scores = in_order(requests.len(), self.servers.len(), |request| {
            self.compute(samples, requests[request].clone())
        })?;
        Ok(scores.concat())
    }
}
