//! `geneval`: whether an image has the objects, counts, colours and places that its prompt's metadata asks for, by what a server's
//! detector finds.
//!
//! Sources: Ghosh et al. 2023, arXiv:2310.11513, `evaluation/evaluate_images.py`, for [`GenEvalMode::Correct`]; Flow-GRPO's server
//! (`yifan123/reward-server`, `reward_server/gen_eval.py`) for the other modes. The detector, and what classifies an object's colour, are
//! the server's: `POST /detect` takes `{"image":[PNG],"classes":[[str]]}` with PNG files in base64, and answers
//! `{"detections":[[{"class":str,"score":float,"box":[x0,y0,x1,y1],"color":str}]]}`.

mod answer;
mod rules;
mod settings;
mod wanted;

pub use settings::{GenEvalMode, GenEvalSettings};

use std::ops::Range;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flow_data::Prompt;
use flow_registry::NameTaken;
use flow_rewards::{Reward, RewardError, RewardFactory, RewardKind, RewardRegistry, RewardSample};
use serde_json::json;

use crate::http::{Asked, Client, Headers, Health, Protocol, is_healthy, variable_of_process};
use crate::in_order::in_order;
use crate::picture::png;
use wanted::Wanted;

const NAME: &str = "geneval";

const PROTOCOL: Protocol = Protocol {
    path: "/detect",
    health: Some(Health {
        path: "/health",
        read: is_healthy,
    }),
};

/// Objects of an image by a detector; see the module's description.
#[derive(Debug)]
pub struct GenEval {
    settings: GenEvalSettings,
    client: Client,
}

impl GenEval {
    /// The reward with these settings. `variable` gives the value of an environment variable. No server is asked yet.
    ///
    /// # Errors
    /// [`RewardError::Params`] for a value outside its range, a URL that is none, or a variable that is not there.
    pub fn new(
        settings: GenEvalSettings,
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
        let reward = RewardFactory::new::<GenEvalSettings>(
            NAME,
            "Objects, counts, colours and places that the prompt's metadata asks for, by GenEval's rules on a server's detections.",
            RewardKind::Pointwise,
            |_, settings| Ok(Arc::new(Self::new(settings, &variable_of_process)?)),
        );
        registry.register(reward.with_rules(settings::check))
    }

    /// Scores the samples of one request.
    fn detect(&self, samples: &[RewardSample<'_>], range: Range<usize>) -> Result<Vec<f32>, RewardError> {
        let failed = |index: usize, problem: String| RewardError::Sample { index, problem };
        let wanted = range
            .clone()
            .map(|index| Wanted::of(samples[index].prompt).map_err(|problem| failed(index, problem)));
        let wanted = wanted.collect::<Result<Vec<Wanted>, RewardError>>()?;
        let images = range.clone().map(|index| {
            Ok::<_, RewardError>(STANDARD.encode(png(index, &samples[index], samples[index].image)?))
        });
        let images = images.collect::<Result<Vec<String>, RewardError>>()?;
        let classes: Vec<Vec<&str>> = wanted.iter().map(Wanted::classes).collect();
        let body = serde_json::to_vec(&json!({ "image": images, "classes": classes }));
        let body =
            body.map_err(|error| failed(range.start, format!("a request cannot be written: {error}")))?;
        let asked = Asked {
            first: range.start,
            count: range.len(),
        };
        let found = self.client.ask(asked, &body, |status, body| {
            answer::detections(status, body, &wanted)
        })?;
        let score = |(wanted, found): (&Wanted, &answer::Found)| rules::score(wanted, found, &self.settings);
        Ok(wanted.iter().zip(&found).map(score).collect())
    }
}

impl Reward for GenEval {
    fn name(&self) -> &str {
        NAME
    }

    fn range(&self) -> (f64, f64) {
        match self.settings.mode {
            // One object is wanted, and `max_objects` are there.
            GenEvalMode::Score => (2.0 - self.settings.max_objects.max(2) as f64, 1.0),
            GenEvalMode::Correct | GenEvalMode::Strict => (0.0, 1.0),
        }
    }

    fn check_prompt(&self, prompt: &Prompt) -> Result<(), String> {
        Wanted::of(prompt).map(drop)
    }

    /// Asks as many servers at once as there are.
    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
        let batch = self.settings.batch;
        let scores = in_order(samples.len().div_ceil(batch), self.client.count(), |request| {
            let start = request * batch;
            self.detect(samples, start..samples.len().min(start + batch))
        })?;
        Ok(scores.concat())
    }
}
