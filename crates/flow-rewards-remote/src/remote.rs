//! `remote`: scores of servers with Flow-Factory's JSON protocol.
//!
//! Source: Flow-Factory, `rewards/my_reward_remote.py` and `reward_server/example_server.py`: `GET /health` answers
//! `{"status":"ok"}`; `POST /compute` takes `{"prompt":[str],"image":[PNG]|null,"video":[[PNG]]|null,"condition_images":null,
//! "condition_videos":null}` with PNG files in base64, and answers `{"rewards":[float]}`, or `{"error":str}` with the status 500.
//! Beyond it, `"metadata":[{…}]` goes along if it is asked for.

mod answer;
mod body;
mod settings;

pub use settings::RemoteSettings;

use std::ops::Range;
use std::sync::Arc;

use flow_registry::NameTaken;
use flow_rewards::{Reward, RewardError, RewardFactory, RewardKind, RewardRegistry, RewardSample};

use crate::http::{Asked, Client, Headers, Health, Protocol, is_healthy, variable_of_process};
use crate::in_order::in_order;

const NAME: &str = "remote";

const PROTOCOL: Protocol = Protocol {
    path: "/compute",
    health: Some(Health {
        path: "/health",
        read: is_healthy,
    }),
};

/// Scores of servers; see the module's description.
#[derive(Debug)]
pub struct RemoteReward {
    settings: RemoteSettings,
    client: Client,
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
            problem: problem.into(),
        };
        if let Some(problem) = settings.problem() {
            return Err(refused(problem));
        }
        let headers = Headers::new(&settings.headers_from, variable).map_err(refused)?;
        let client = Client::new(&settings.connection(), headers, PROTOCOL, variable).map_err(refused)?;
        Ok(Self { settings, client })
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
            |_, settings| Ok(Arc::new(Self::new(settings, &variable_of_process)?)),
        );
        let reward = reward.with_kind(RemoteSettings::kind);
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
        let asked = Asked {
            first: range.start,
            count: range.len(),
        };
        let body = body::encode(samples, range, self.settings.metadata)?;
        self.client.ask(asked, &body, |status, answer| {
            answer::scores(status, answer, asked.count)
        })
    }
}

impl Reward for RemoteReward {
    fn name(&self) -> &str {
        NAME
    }

    fn kind(&self) -> RewardKind {
        self.settings.kind()
    }

    fn takes_videos(&self) -> bool {
        true
    }

    /// Asks as many servers at once as there are.
    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
        let requests = self.requests(samples)?;
        let scores = in_order(requests.len(), self.client.count(), |request| {
            self.compute(samples, requests[request].clone())
        })?;
        Ok(scores.concat())
    }
}
