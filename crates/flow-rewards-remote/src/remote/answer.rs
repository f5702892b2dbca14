//! What a server's answer says: exactly one finite number for each sample, or why not.

use serde_json::Value;

use crate::http::{Failure, json};
use crate::score::{excerpt, score};

/// The scores of an answer to a request of `count` samples.
pub(super) fn scores(status: u16, body: &[u8], count: usize) -> Result<Vec<f32>, Failure> {
    let answer = json("/compute", status, body)?;
    let shown = || excerpt(&String::from_utf8_lossy(body));
    if let Some(error) = answer.get("error").filter(|error| !error.is_null()) {
        return Err(Failure::lasting(format!(
            "answered /compute with the error {}",
            excerpt(&error.to_string())
        )));
    }
    let Some(rewards) = answer.get("rewards").and_then(Value::as_array) else {
        return Err(Failure::lasting(format!(
            "answered /compute without a list `rewards`: {}",
            shown()
        )));
    };
    if rewards.len() != count {
        return Err(Failure::lasting(format!(
            "gave {} rewards for {count} samples: {}",
            rewards.len(),
            shown()
        )));
    }
    let score = |(sample, value): (usize, &Value)| {
        score(value).map_err(|problem| Failure {
            sample: Some(sample),
            ..Failure::lasting(format!("gave as reward {} of {count} {problem}", sample + 1))
        })
    };
    rewards.iter().enumerate().map(score).collect()
}
