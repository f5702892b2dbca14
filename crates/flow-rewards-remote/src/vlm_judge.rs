//! `vlm-judge`: a vision language model judges, on servers that speak OpenAI's chat completions.
//!
//! Sources: OpenAI's API reference, "Create chat completion", as vLLM and SGLang serve it: `POST {server}/chat/completions` with
//! images as data URLs, `logprobs` and `top_logprobs`.
//! The expected value over answer tokens: Flow-Factory `rewards/vllm_evaluate.py` and Lin et al. 2024, "Evaluating text-to-visual
//! generation with image-to-text generation" (VQAScore, arXiv 2404.01291), for P(yes); Wu et al. 2023, "Q-Align" (arXiv
//! 2312.17090), for several levels. The number behind a mark: Flow-GRPO, `unifiedreward_scorer.py`. Images of a group compared two by
//! two: Pref-GRPO (Wang et al. 2025, arXiv 2508.20751).

mod answer;
mod body;
mod logprobs;
mod number;
mod pairs;
mod settings;
mod template;

pub use settings::{BadAnswers, VlmJudgeMode, VlmJudgeSettings};

use std::sync::Arc;

use flow_data::Prompt;
use flow_registry::NameTaken;
use flow_rewards::{Reward, RewardError, RewardFactory, RewardKind, RewardRegistry, RewardSample};

use crate::http::{Asked, Client, Headers, Protocol, variable_of_process};
use crate::in_order::in_order;
use answer::Answer;
use template::Template;

const NAME: &str = "vlm-judge";

/// The images and the prompt of one question.
struct Subject<'a> {
    /// The position of the sample that errors name.
    index: usize,
    /// What templates are filled with.
    prompt: &'a Prompt,
    /// Data URLs, in the order in which they are shown.
    images: Vec<&'a str>,
}

/// Servers of chat completions have no common question for their health.
const PROTOCOL: Protocol = Protocol {
    path: "/chat/completions",
    health: None,
};

/// Scores of a vision language model; see the module's description.
#[derive(Debug)]
pub struct VlmJudge {
    settings: VlmJudgeSettings,
    question: Template,
    system: Option<Template>,
    client: Client,
}

impl VlmJudge {
    /// The reward with these settings. `variable` gives the value of an environment variable. No server is asked yet.
    ///
    /// # Errors
    /// [`RewardError::Params`] for a value outside its range, a URL that is none, a template with a placeholder that there is not,
    /// or a variable that is not there.
    pub fn new(
        settings: VlmJudgeSettings,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, RewardError> {
        let refused = |problem: String| RewardError::Params {
            reward: NAME.to_owned(),
            problem: problem.into(),
        };
        if let Some((key, problem)) = settings.problems().into_iter().next() {
            return Err(refused(format!("`{key}`: {problem}")));
        }
        let template = |key: &str, text: &str| {
            Template::new(text).map_err(|problem| refused(format!("`{key}`: {problem}")))
        };
        let key = settings.api_key_from.as_deref();
        let headers = Headers::bearer("api_key_from", key, variable).map_err(refused)?;
        Ok(Self {
            question: template("question", &settings.question)?,
            system: (settings.system.as_deref())
                .map(|text| template("system", text))
                .transpose()?,
            client: Client::new(&settings.connection(), headers, PROTOCOL, variable).map_err(refused)?,
            settings,
        })
    }

    /// Adds the reward to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is a reward of its name.
    pub fn register(registry: &mut RewardRegistry) -> Result<(), NameTaken> {
        let reward = RewardFactory::new::<VlmJudgeSettings>(
            NAME,
            "What a vision language model answers to a question about the image, on servers with OpenAI's protocol.",
            RewardKind::Pointwise,
            |_, settings| Ok(Arc::new(Self::new(settings, &variable_of_process)?)),
        );
        let reward = reward.with_kind(VlmJudgeSettings::kind);
        registry.register(reward.with_rules(settings::check))
    }

    /// One answer's value. `draw` is its number among those to the same question.
    fn ask(&self, subject: &Subject<'_>, draw: usize) -> Result<f64, RewardError> {
        let index = subject.index;
        let failed = |problem: String| RewardError::Sample { index, problem };
        let filled = |template: &Template| template.fill(subject.prompt).map_err(failed);
        let (question, system) = (
            filled(&self.question)?,
            self.system.as_ref().map(filled).transpose()?,
        );
        let attempts = self.settings.attempts();
        let mut problem = String::new();
        for attempt in 0..attempts {
            // No seed twice: an answer that is asked for again is another one.
            let seed = draw as u64 + u64::from(attempt) * self.settings.samples as u64;
            let body = body::encode(
                &self.settings,
                (question.as_str(), system.as_deref()),
                &subject.images,
                seed,
            )
            .map_err(failed)?;
            let asked = Asked {
                first: index,
                count: 1,
            };
            let answer = self.client.ask(asked, &body, |status, body| {
                answer::read(status, body, self.settings.mode)
            })?;
            match self.value(&answer) {
                Ok(value) => return Ok(value),
                Err(found) => problem = found,
            }
        }
        let times = if attempts == 1 { "answer" } else { "answers" };
        Err(failed(format!(
            "no score in {attempts} {times} of `{}`: {}",
            self.settings.model,
            self.client.hide(&problem)
        )))
    }

    /// Requests that are under way at once, at most.
    fn at_once(&self) -> usize {
        self.client.count() * self.settings.requests_per_server
    }

    /// The mean value of the answers to each of so many questions.
    fn means<'a>(
        &self,
        questions: usize,
        subject: impl Fn(usize) -> Subject<'a> + Sync,
    ) -> Result<Vec<f64>, RewardError> {
        let draws = self.settings.samples;
        let values = in_order(questions * draws, self.at_once(), |job| {
            self.ask(&subject(job / draws), job % draws)
        })?;
        let mean = |values: &[f64]| values.iter().sum::<f64>() / draws as f64;
        Ok(values.chunks_exact(draws).map(mean).collect())
    }

    fn value(&self, answer: &Answer) -> Result<f64, String> {
        let settings = &self.settings;
        answer.check_given()?;
        match settings.mode {
            VlmJudgeMode::Answers => {
                logprobs::expected_value(&answer.first, &settings.answers, settings.min_probability)
            }
            VlmJudgeMode::Number => {
                let text = answer.whole_text()?;
                number::parse(text, settings.range, settings.number_after.as_deref())
            }
        }
    }
}

impl Reward for VlmJudge {
    fn name(&self) -> &str {
        NAME
    }

    fn kind(&self) -> RewardKind {
        self.settings.kind()
    }

    fn range(&self) -> (f64, f64) {
        match self.settings.mode {
            _ if self.settings.compare => (0.0, 1.0),
            VlmJudgeMode::Number => (0.0, 1.0),
            VlmJudgeMode::Answers => {
                let values = self.settings.answers.values();
                let range = (f64::INFINITY, f64::NEG_INFINITY);
                values.fold(range, |(low, high), value| (low.min(*value), high.max(*value)))
            }
        }
    }

    fn takes_videos(&self) -> bool {
        true
    }

    fn check_prompt(&self, prompt: &Prompt) -> Result<(), String> {
        let mut templates = self.system.iter().chain([&self.question]);
        templates.try_for_each(|template| template.fill(prompt).map(drop))
    }

    /// Asks `requests_per_server` times the number of servers at once; the mean of the answers to a question is in the order of their
    /// seeds.
    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
        let images = in_order(samples.len(), self.at_once(), |index| {
            body::images(index, &samples[index], self.settings.frames)
        })?;
        let shown = |index: usize| images[index].iter().map(String::as_str);
        if !self.settings.compare {
            let values = self.means(samples.len(), |index| Subject {
                index,
                prompt: samples[index].prompt,
                images: shown(index).collect(),
            })?;
            return Ok(values.into_iter().map(|value| value as f32).collect());
        }
        if samples.len() < 2 {
            return Err(RewardError::Sample {
                index: 0,
                problem: "its group has no other image to compare it with; with `compare = true` a group, and an evaluation's prompt, \
                          needs two images at least"
                    .to_owned(),
            });
        }
        let questions = pairs::questions(&pairs::pairs(samples.len(), self.settings.opponents));
        let preferences = self.means(questions.len(), |question| {
            let [first, second] = questions[question];
            Subject {
                index: first,
                prompt: samples[first].prompt,
                images: shown(first).chain(shown(second)).collect(),
            }
        })?;
        Ok(pairs::shares(samples.len(), &questions, &preferences))
    }
}
