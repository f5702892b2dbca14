//! What counts as a score, and how what came instead is shown.

use serde_json::Value;

/// Characters of an answer that an error shows.
const SHOWN: usize = 200;

/// The score in a JSON value.
///
/// # Errors
/// What the value is instead of a finite number, as a sentence part: "null".
pub(crate) fn score(value: &Value) -> Result<f32, String> {
    let Value::Number(number) = value else {
        return Err(format!("{}, which is no number", excerpt(&value.to_string())));
    };
    match number.as_f64().map(|number| number as f32) {
        Some(score) if score.is_finite() => Ok(score),
        _ => Err(format!("{number}, which a 32-bit number does not hold")),
    }
}

/// The first 200 characters of `text` in quotes, control characters escaped.
pub(crate) fn excerpt(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() {
        return "nothing".to_owned();
    }
    let shown: String = text.chars().take(SHOWN).collect();
    let rest = if shown.len() < text.len() { " …" } else { "" };
    let shown: String = shown
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    format!("`{shown}`{rest}")
}

/// Why an answer that should be JSON is none, as a sentence part.
pub(crate) fn not_json(text: &str, error: &serde_json::Error) -> String {
    let lower = text.trim_start().to_ascii_lowercase();
    let kind = if lower.starts_with("<!doctype") || lower.starts_with("<html") {
        "an HTML page"
    } else if error.is_eof() {
        "JSON that is cut off"
    } else if text.contains("NaN") || text.contains("Infinity") {
        "NaN or an infinity, which is no JSON"
    } else {
        "no JSON"
    };
    format!("{kind} ({error}): {}", excerpt(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_finite_numbers_are_scores() {
        assert_eq!(score(&json!(-3)), Ok(-3.0));
        assert_eq!(score(&json!(0.25)), Ok(0.25));
        for (value, words) in [
            (json!(null), "null"),
            (json!(true), "true"),
            (json!("0.5"), "\"0.5\""),
            (json!([0.5]), "[0.5]"),
            (json!(1e39), "32-bit"),
        ] {
            let problem = score(&value).unwrap_err();
            assert!(problem.contains(words), "{problem}");
        }
    }

    #[test]
    fn an_excerpt_has_200_characters_on_one_line() {
        let long = format!("first\nsecond {}", "é".repeat(300));
        let shown = excerpt(&long);
        assert!(shown.starts_with("`first second é") && shown.ends_with("é` …"));
        assert_eq!(shown.chars().count(), 200 + 4);
        assert_eq!(excerpt(" \n"), "nothing");
    }
}
