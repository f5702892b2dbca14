//! What the text of a picture is compared with, and how.
//!
//! Source: Flow-GRPO (Liu et al. 2025, arXiv 2505.05470), `flow_grpo/ocr.py` of github.com/yifan123/flow_grpo: the prompt's text
//! between the first two double quotes, the reader's pieces joined, spaces removed from both, both in lower case; distance 0 where
//! the target is contained, else Levenshtein's, at most the target's length `n`; score `1 - distance / n`.

use flow_data::Prompt;
use serde_json::Value;

use crate::settings::OcrTarget;

/// Text as it is compared: without spaces and in lower case.
///
/// Letters of words are decided before those of the whole text, as Python's `lower` has it of a capital sigma at the end of a word.
pub fn normalised(text: &str) -> String {
    text.replace(' ', "").to_lowercase()
}

/// The text that the image of a prompt should show, normalised.
///
/// # Errors
/// Why there is none, as a sentence part.
pub(crate) fn target(prompt: &Prompt, wanted: &OcrTarget) -> Result<String, String> {
    let text = match wanted {
        OcrTarget::Prompt => prompt.text.as_str(),
        OcrTarget::Quotes => quoted(&prompt.text)?,
        OcrTarget::Metadata(key) => of_metadata(prompt, key)?,
    };
    let target = normalised(text);
    if target.is_empty() {
        return Err("the text to show is empty".to_owned());
    }
    Ok(target)
}

/// What stands between the first two double quotes.
fn quoted(prompt: &str) -> Result<&str, String> {
    let mut parts = prompt.split('"');
    let (_, inside, behind) = (parts.next(), parts.next(), parts.next());
    match (inside, behind) {
        (Some(inside), Some(_)) => Ok(inside),
        (Some(_), None) => Err("its double quote is not closed".to_owned()),
        (None, _) if prompt.contains(['“', '”', '„', '«']) => Err(
            "there is no text in double quotes (\"…\"), which `target = \"quotes\"` takes; typographic quotes are none"
                .to_owned(),
        ),
        (None, _) => Err("there is no text in double quotes, which `target = \"quotes\"` takes".to_owned()),
    }
}

fn of_metadata<'a>(prompt: &'a Prompt, key: &str) -> Result<&'a str, String> {
    match prompt.metadata.get(key) {
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(format!("`{key}` of its metadata is {other}, and no text")),
        None if prompt.metadata.is_empty() => Err(format!(
            "it has no metadata, of which `target = \"metadata:{key}\"` takes `{key}`"
        )),
        None => {
            let names: Vec<String> = prompt.metadata.keys().map(|name| format!("`{name}`")).collect();
            Err(format!("its metadata has no `{key}`, but {}", names.join(", ")))
        }
    }
}

/// Edits between what was read and the target, at most the target's length; 0 where the target is contained. In characters
/// (Unicode scalar values), both texts normalised.
pub fn distance(read: &str, target: &str) -> usize {
    if read.contains(target) {
        return 0;
    }
    strsim::levenshtein(read, target).min(target.chars().count())
}

/// `1 - distance / n` with the target's length `n`, which must not be 0: from 0 to 1.
pub fn distance_score(read: &str, target: &str) -> f32 {
    let length = target.chars().count();
    (1.0 - distance(read, target) as f64 / length as f64) as f32
}
