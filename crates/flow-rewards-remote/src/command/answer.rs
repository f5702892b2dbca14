//! What a line of the program says: exactly one finite number for the sample that was asked for, or why not.

use serde_json::Value;

use super::process::Fault;
use crate::score::{self, excerpt, not_json};

/// The score in a line that answers request `id`.
pub(super) fn score_of(line: &[u8], id: u64) -> Result<f32, String> {
    let text = String::from_utf8_lossy(line);
    let answer: Value = serde_json::from_slice(line).map_err(|error| {
        format!(
            "answered with {}; standard output is for answers alone, messages go to standard error",
            not_json(&text, &error)
        )
    })?;
    if answer.get("id").and_then(Value::as_u64) != Some(id) {
        return Err(format!(
            "answered {} where `\"id\":{id}` was asked for",
            excerpt(&text)
        ));
    }
    if let Some(error) = answer.get("error").filter(|error| !error.is_null()) {
        return Err(format!("answered with the error {}", excerpt(&error.to_string())));
    }
    match answer.get("reward") {
        Some(reward) => score::score(reward).map_err(|problem| format!("gave as reward {problem}")),
        None => Err(format!("answered without a `reward`: {}", excerpt(&text))),
    }
}

/// As [`score_of`]; whatever is wrong with a line would be wrong with it again.
pub(super) fn score(line: &[u8], id: u64) -> Result<f32, Fault> {
    score_of(line, id).map_err(Fault::Lasting)
}

#[cfg(test)]
mod tests {
    use super::score_of;

    #[test]
    fn an_answer_is_one_number_for_the_sample_that_was_asked_for() {
        assert_eq!(
            score_of(b"{\"id\": 7, \"reward\": 0.5, \"extra\": null}\n", 7),
            Ok(0.5)
        );
        for (line, words) in [
            ("loading model\n", "no JSON"),
            ("{\"id\": 7, \"reward\": NaN}", "NaN"),
            ("{\"id\": 7, \"reward\": 0.5", "cut off"),
            ("{\"id\": 7, \"reward\": null}", "null"),
            ("{\"id\": 7, \"reward\": \"0.5\"}", "no number"),
            ("{\"id\": 8, \"reward\": 0.5}", "`\"id\":7` was asked for"),
            ("{\"reward\": 0.5}", "`\"id\":7` was asked for"),
            ("{\"id\": 7}", "without a `reward`"),
            ("{\"id\": 7, \"error\": \"no face\"}", "no face"),
            ("0.5", "`\"id\":7` was asked for"),
            ("\n", "nothing"),
        ] {
            let problem = score_of(line.as_bytes(), 7).unwrap_err();
            assert!(problem.contains(words), "{line}: {problem}");
        }
    }
}
