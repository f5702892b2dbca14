//! The parameters of `vlm-judge`, and what is wrong with them.

use std::collections::BTreeMap;

use flow_config::Rules;
use flow_config::codes::{NOT_ALLOWED, RULE_UNUSED};
use flow_rewards::RewardKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::body;
use super::logprobs::canonical;
use super::template::Template;
use crate::http::{self, Connection};

/// What of an answer is the score.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VlmJudgeMode {
    /// The expected value of `answers` by the probabilities of the first token: of yes and no, the probability of yes.
    #[default]
    Answers,
    /// The number in the text, as its place in `range`, 0 to 1.
    Number,
}

/// What an answer does that has no score in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BadAnswers {
    /// Stop the run, with the answer.
    #[default]
    Stop,
    /// Ask again with another seed, up to `retries` times, and stop the run then.
    AskAgain,
}

/// Settings of [`VlmJudge`](crate::VlmJudge).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VlmJudgeSettings {
    /// URLs of servers of the same model, taken in turn, as OpenAI's clients want them: `http://localhost:8000/v1`. One that fails
    /// is passed over for half a minute while others answer.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1)), extend("uniqueItems" = true))]
    pub servers: Vec<String>,
    /// The model, by the name that the servers have for it.
    #[schemars(length(min = 1))]
    pub model: String,
    /// What is asked about the image. `{prompt}` is the prompt, `{metadata.KEY}` a value of its metadata; `{{` and `}}` are braces.
    #[schemars(length(min = 1))]
    pub question: String,
    /// What is said before, as the system's message; with the same placeholders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// What of an answer is the score.
    #[serde(default)]
    pub mode: VlmJudgeMode,
    /// `mode = "answers"`: what may be answered, each a single token of the model, with its value. Upper case and white space around
    /// a token do not count.
    #[serde(default = "yes_and_no")]
    pub answers: BTreeMap<String, f64>,
    /// `mode = "answers"`: the probability that the answers must have together.
    #[serde(default = "usual_min_probability")]
    #[schemars(range(min = 0.001, max = 1.0))]
    pub min_probability: f64,
    /// `mode = "answers"`: the likeliest tokens that the server lists. Servers have a limit, mostly 20.
    #[serde(default = "usual_top_logprobs")]
    #[schemars(range(min = 2, max = 1000))]
    pub top_logprobs: u32,
    /// `mode = "number"`: the smallest and the largest number that may be answered; the score is 0 for the one and 1 for the other.
    #[serde(default = "usual_range")]
    pub range: [f64; 2],
    /// `mode = "number"`: the number is what follows the last occurrence of this text. Without it, the answer must have a single
    /// number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub number_after: Option<String>,
    /// `mode = "number"`: tokens of an answer, at most. An answer that is cut off is no score.
    #[serde(default = "usual_max_tokens")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_tokens: u32,
    /// Whether the images of a group are compared two by two: a question shows two images, and an image scores the share of its
    /// comparisons that it wins. An answer says how much the first image is preferred: values of `answers` are from 0 to 1.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub compare: bool,
    /// `compare = true`: how many others of its group each image is compared with, at least; 0 for all of them.
    #[serde(default, skip_serializing_if = "is_all")]
    #[schemars(range(max = 1024))]
    pub opponents: usize,
    /// Answers of each image, whose mean is its score. They differ by their seeds, so this asks for a `temperature` above 0.
    #[serde(default = "usual_samples")]
    #[schemars(range(min = 1, max = 1024))]
    pub samples: usize,
    /// Temperature of the answers. 0 takes the likeliest token, always.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 2.0))]
    pub temperature: f64,
    /// What an answer does that has no score in it: a refusal, a text without a number, a number outside the range.
    #[serde(default)]
    pub bad_answers: BadAnswers,
    /// Frames of a video that are sent, at most, with even distances.
    #[serde(default = "usual_frames")]
    #[schemars(range(min = 1, max = 1024))]
    pub frames: usize,
    /// The environment variable that has the key of the servers: `OPENAI_API_KEY`. Without it, no key is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub api_key_from: Option<String>,
    /// Requests that one server gets at once, at most.
    #[serde(default = "usual_requests_per_server")]
    #[schemars(range(min = 1, max = 1024))]
    pub requests_per_server: usize,
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
    /// Further keys of every request, such as `chat_template_kwargs`, for what a server has of its own.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra_body: Map<String, Value>,
}

fn yes_and_no() -> BTreeMap<String, f64> {
    BTreeMap::from([("Yes".to_owned(), 1.0), ("No".to_owned(), 0.0)])
}

/// Written where it is another, as records of runs from before it could be chosen have it.
fn is_all(opponents: &usize) -> bool {
    *opponents == 0
}

const fn usual_min_probability() -> f64 {
    0.5
}

const fn usual_top_logprobs() -> u32 {
    20
}

const fn usual_range() -> [f64; 2] {
    [0.0, 10.0]
}

const fn usual_max_tokens() -> u32 {
    512
}

const fn usual_samples() -> usize {
    1
}

const fn usual_frames() -> usize {
    8
}

const fn usual_requests_per_server() -> usize {
    8
}

impl VlmJudgeSettings {
    /// These servers with this model and this question, and the usual rest: the probability of yes.
    pub fn new<S: Into<String>>(
        servers: impl IntoIterator<Item = S>,
        model: impl Into<String>,
        question: impl Into<String>,
    ) -> Self {
        Self {
            servers: servers.into_iter().map(Into::into).collect(),
            model: model.into(),
            question: question.into(),
            system: None,
            mode: VlmJudgeMode::default(),
            answers: yes_and_no(),
            min_probability: usual_min_probability(),
            top_logprobs: usual_top_logprobs(),
            range: usual_range(),
            number_after: None,
            max_tokens: usual_max_tokens(),
            compare: false,
            opponents: 0,
            samples: usual_samples(),
            temperature: 0.0,
            bad_answers: BadAnswers::default(),
            frames: usual_frames(),
            api_key_from: None,
            requests_per_server: usual_requests_per_server(),
            timeout_s: http::usual_timeout_s(),
            retries: http::usual_retries(),
            backoff_s: http::usual_backoff_s(),
            extra_body: Map::new(),
        }
    }

    /// Whether it scores samples or groups.
    pub(super) fn kind(&self) -> RewardKind {
        match self.compare {
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

    /// Answers that one draw may take.
    pub(super) fn attempts(&self) -> u32 {
        if self.bad_answers == BadAnswers::AskAgain && self.is_drawn() {
            self.retries.saturating_add(1)
        } else {
            1
        }
    }

    /// Whether another seed can change an answer's score.
    fn is_drawn(&self) -> bool {
        self.mode == VlmJudgeMode::Number && self.temperature > 0.0
    }

    /// What is wrong beyond the servers: names of parameters, each with a sentence.
    pub(super) fn problems(&self) -> Vec<(&'static str, String)> {
        let mut problems = self.wrong_numbers();
        if self.model.is_empty() {
            problems.push(("model", "there is no name".to_owned()));
        }
        let templates = [
            ("question", Some(&self.question)),
            ("system", self.system.as_ref()),
        ];
        for (key, text) in templates {
            if let Some(Err(problem)) = text.map(|text| Template::new(text)) {
                problems.push((key, problem));
            }
        }
        if self.mode == VlmJudgeMode::Answers {
            problems.extend(self.wrong_answers().map(|problem| ("answers", problem)));
            let is_share = |value: &f64| (0.0..=1.0).contains(value);
            if self.compare && !self.answers.values().all(is_share) {
                let problem = "with `compare = true` a value is from 0, the second image is better, to 1, the first one is";
                problems.push(("answers", problem.to_owned()));
            }
        }
        if self.number_after.as_ref().is_some_and(String::is_empty) {
            problems.push(("number_after", "there is no text".to_owned()));
        }
        if let Some(Err(problem)) = self.api_key_from.as_deref().map(http::checked_variable) {
            problems.push(("api_key_from", problem));
        }
        if let Some(key) = self
            .extra_body
            .keys()
            .find(|key| body::KEYS.contains(&key.as_str()))
        {
            problems.push(("extra_body", format!("`{key}` is written by the reward itself")));
        }
        problems
    }

    fn wrong_numbers(&self) -> Vec<(&'static str, String)> {
        let counts = [
            ("samples", self.samples as f64, 1.0..=1024.0),
            ("frames", self.frames as f64, 1.0..=1024.0),
            ("opponents", self.opponents as f64, 0.0..=1024.0),
            (
                "requests_per_server",
                self.requests_per_server as f64,
                1.0..=1024.0,
            ),
            ("temperature", self.temperature, 0.0..=2.0),
            ("min_probability", self.min_probability, 0.001..=1.0),
            ("top_logprobs", f64::from(self.top_logprobs), 2.0..=1000.0),
            ("max_tokens", f64::from(self.max_tokens), 1.0..=1e6),
        ];
        let outside = counts
            .into_iter()
            .filter(|(_, value, range)| !range.contains(value));
        let mut problems: Vec<_> = outside
            .map(|(key, value, range)| {
                (
                    key,
                    format!("{value} is not from {} to {}", range.start(), range.end()),
                )
            })
            .collect();
        let [low, high] = self.range;
        if !(low < high && low.is_finite() && high.is_finite()) {
            problems.push((
                "range",
                format!(
                    "the smallest number must be below the largest, and both finite, not [{low}, {high}]"
                ),
            ));
        }
        problems
    }

    /// What is wrong with `answers`.
    fn wrong_answers(&self) -> Option<String> {
        let mut seen = BTreeMap::new();
        for (answer, value) in &self.answers {
            if canonical(answer).is_empty() {
                return Some("an answer has no letters".to_owned());
            }
            if let Some(other) = seen.insert(canonical(answer), answer) {
                return Some(format!(
                    "`{other}` and `{answer}` differ in upper case and white space only"
                ));
            }
            if !value.is_finite() {
                return Some(format!("the value of `{answer}` is {value}"));
            }
        }
        let mut values = self.answers.values();
        let first = values.next();
        if values.all(|value| Some(value) == first) {
            return Some(
                "there must be two answers of different values at least, or every score is the same"
                    .to_owned(),
            );
        }
        None
    }
}

/// Rules that the schema cannot say.
pub(super) fn check(settings: &VlmJudgeSettings, rules: &mut Rules<'_>, path: &str) {
    http::check_servers(&settings.servers, rules, path, "http://localhost:8000/v1");
    for (key, problem) in settings.problems() {
        let path = format!("{path}.{key}");
        let help = match key {
            "question" | "system" => {
                "write for example: Does this image show \\\"{prompt}\\\"? Answer yes or no."
            }
            "answers" => "write for example: { Yes = 1.0, No = 0.0 }",
            "range" => "write for example: [0, 10]",
            "api_key_from" => "write the name of a variable: \"OPENAI_API_KEY\"",
            "extra_body" => "remove it, and set the parameter of the reward instead",
            _ => "choose another value",
        };
        (rules.error(NOT_ALLOWED, &[&path], format!("`{path}`: {problem}"))).help(help);
    }
    let mode = format!("{path}.mode");
    // A config that is written out in full repeats the defaults of what it does not use, which is no mistake.
    let of_answers = [
        ("answers", settings.answers != yes_and_no()),
        (
            "min_probability",
            settings.min_probability != usual_min_probability(),
        ),
        ("top_logprobs", settings.top_logprobs != usual_top_logprobs()),
    ];
    let of_number = [
        ("range", settings.range != usual_range()),
        ("number_after", settings.number_after.is_some()),
        ("max_tokens", settings.max_tokens != usual_max_tokens()),
    ];
    let (name, of_other) = match settings.mode {
        VlmJudgeMode::Answers => ("answers", of_number),
        VlmJudgeMode::Number => ("number", of_answers),
    };
    for (key, _) in of_other.iter().filter(|(_, is_set)| *is_set) {
        let key = format!("{path}.{key}");
        let message = format!("`mode = \"{name}\"` does not read `{key}`");
        (rules.warning(RULE_UNUSED, &[&key, &mode], message)).help("remove it, or set the other `mode`");
    }
    if settings.opponents > 0 && !settings.compare {
        let (key, compare) = (format!("{path}.opponents"), format!("{path}.compare"));
        let message = format!("nothing is compared here, so `{key}` is not read");
        (rules.warning(RULE_UNUSED, &[&key, &compare], message)).help("remove it, or set `compare = true`");
    }
    let drawn = [
        ("samples", settings.samples > 1),
        ("bad_answers", settings.bad_answers == BadAnswers::AskAgain),
    ];
    for (key, is_set) in drawn {
        if is_set && !settings.is_drawn() {
            let key = format!("{path}.{key}");
            let temperature = format!("{path}.temperature");
            let message = format!("every answer is the same one here, so `{key}` changes nothing");
            rules
                .warning(RULE_UNUSED, &[&key, &temperature, &mode], message)
                .help("remove it, or set `mode = \"number\"` and a `temperature` above 0");
        }
    }
}
