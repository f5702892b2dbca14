//! What a server's answer says: a text, and the probabilities of its first token.

use serde_json::Value;

use super::logprobs::Likely;
use super::settings::VlmJudgeMode;
use crate::http::{Failure, json};
use crate::score::excerpt;

/// Probabilities may be above 1 by so much, as logarithms: they are rounded.
const ROUNDING: f64 = 1e-3;

/// A model's answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    /// Why it ended, if the server says so.
    ended_by: Option<String>,
    /// The words of a refusal, if the model refused.
    refusal: Option<String>,
    text: Option<String>,
    /// The likeliest first tokens; empty where they were not asked for.
    pub first: Vec<Likely>,
}

impl Answer {
    /// Whether there is an answer at all.
    ///
    /// # Errors
    /// That the model refused, or that a filter took the answer away.
    pub fn check_given(&self) -> Result<(), String> {
        if let Some(refusal) = &self.refusal {
            return Err(format!("the model refused: {}", excerpt(refusal)));
        }
        match self.ended_by.as_deref() {
            Some("content_filter") => Err("a filter of the server took the answer away".to_owned()),
            _ => Ok(()),
        }
    }

    /// The text of an answer that is whole.
    ///
    /// # Errors
    /// That it is cut off, or that there is none.
    pub fn whole_text(&self) -> Result<&str, String> {
        let text = self.text.as_deref().unwrap_or_default();
        if self.ended_by.as_deref() == Some("length") {
            return Err(format!(
                "the answer is cut off at `max_tokens`, so its last number may be: {}",
                excerpt(text)
            ));
        }
        if text.trim().is_empty() {
            return Err("the answer has no text".to_owned());
        }
        Ok(text)
    }
}

/// The answer in status and body.
pub(super) fn read(status: u16, body: &[u8], mode: VlmJudgeMode) -> Result<Answer, Failure> {
    const PATH: &str = "/chat/completions";
    let whole = json(PATH, status, body).map_err(|failure| Failure {
        what: hinted(status, failure.what),
        ..failure
    })?;
    let shown = || excerpt(&String::from_utf8_lossy(body));
    if let Some(error) = whole.get("error").filter(|error| !error.is_null()) {
        return Err(Failure::lasting(format!(
            "answered {PATH} with the error {}",
            excerpt(&error.to_string())
        )));
    }
    let choices = whole.get("choices").and_then(Value::as_array);
    let Some([choice]) = choices.map(Vec::as_slice) else {
        return Err(Failure::lasting(format!(
            "answered {PATH} without a list `choices` of one answer: {}",
            shown()
        )));
    };
    let Some(message) = choice.get("message").and_then(Value::as_object) else {
        return Err(Failure::lasting(format!(
            "answered {PATH} without a `message`: {}",
            shown()
        )));
    };
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let mut answer = Answer {
        ended_by: text(choice.get("finish_reason")),
        refusal: text(message.get("refusal")).filter(|refusal| !refusal.is_empty()),
        text: text(message.get("content")),
        first: Vec::new(),
    };
    if mode == VlmJudgeMode::Answers && answer.check_given().is_ok() {
        answer.first = first_token(choice)
            .map_err(|problem| Failure::lasting(format!("answered {PATH} {problem}: {}", shown())))?;
    }
    Ok(answer)
}

/// The problem with what people most often get wrong behind it.
fn hinted(status: u16, what: String) -> String {
    match status {
        404 | 405 => format!(
            "{what}; a URL in `servers` ends as OpenAI's clients want it, mostly with `/v1`, and `model` is a name that the server knows"
        ),
        401 | 403 => format!("{what}; the key is in the variable that `api_key_from` names"),
        _ => what,
    }
}

/// The likeliest tokens at the first place.
fn first_token(choice: &Value) -> Result<Vec<Likely>, String> {
    let first = choice.pointer("/logprobs/content/0/top_logprobs");
    let Some(listed) = first
        .and_then(Value::as_array)
        .filter(|listed| !listed.is_empty())
    else {
        return Err("without `logprobs` of its first token, which `mode = \"answers\"` reads".to_owned());
    };
    let likely = |entry: &Value| {
        let token = entry.get("token").and_then(Value::as_str);
        let logprob = entry.get("logprob").and_then(Value::as_f64);
        match (token, logprob) {
            (Some(token), Some(logprob)) if logprob <= ROUNDING => Ok(Likely {
                token: token.to_owned(),
                logprob: logprob.min(0.0),
            }),
            _ => Err(format!(
                "with {} among its `top_logprobs`, which is no token with the logarithm of a probability",
                excerpt(&entry.to_string())
            )),
        }
    };
    listed.iter().map(likely).collect()
}
