//! The body of a request, in OpenAI's format.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flow_rewards::{RewardError, RewardSample};
use serde_json::{Value, json};

use super::settings::{VlmJudgeMode, VlmJudgeSettings};
use crate::picture;

/// Keys of a request that are written here.
pub(super) const KEYS: &[&str] = &[
    "logprobs",
    "max_tokens",
    "messages",
    "model",
    "n",
    "seed",
    "stream",
    "temperature",
    "top_logprobs",
];

/// The images of a sample as data URLs of PNG files; of a video, at most `frames` of its frames.
///
/// # Errors
/// [`RewardError::Sample`] with `index` for an image that has no PNG.
pub(super) fn images(
    index: usize,
    sample: &RewardSample<'_>,
    frames: usize,
) -> Result<Vec<String>, RewardError> {
    let images = picture::images(sample);
    let chosen = evenly(images.len(), frames).into_iter().map(|frame| {
        let file = picture::png(index, sample, &images[frame])?;
        Ok::<_, RewardError>(format!("data:image/png;base64,{}", STANDARD.encode(file)))
    });
    chosen.collect()
}

/// At most `most` of `count` positions with even distances, first and last among them; of a single one, the middle.
fn evenly(count: usize, most: usize) -> Vec<usize> {
    match most {
        _ if count <= most => (0..count).collect(),
        0 | 1 => vec![(count - 1) / 2],
        _ => (0..most)
            .map(|place| (place * (count - 1) + (most - 1) / 2) / (most - 1))
            .collect(),
    }
}

/// The JSON of a request. `seed` goes along where answers are drawn.
///
/// # Errors
/// If it cannot be written.
pub(super) fn encode(
    settings: &VlmJudgeSettings,
    (question, system): (&str, Option<&str>),
    images: &[&str],
    seed: u64,
) -> Result<Vec<u8>, String> {
    let image = |url: &&str| json!({ "type": "image_url", "image_url": { "url": url } });
    let mut content: Vec<Value> = images.iter().map(image).collect();
    content.push(json!({ "type": "text", "text": question }));
    let mut messages = Vec::new();
    if let Some(system) = system {
        messages.push(json!({ "role": "system", "content": system }));
    }
    messages.push(json!({ "role": "user", "content": content }));
    let mut body = settings.extra_body.clone();
    let mut set = |key: &str, value: Value| body.insert(key.to_owned(), value);
    set("model", json!(settings.model));
    set("messages", Value::Array(messages));
    set("temperature", json!(settings.temperature));
    if settings.temperature > 0.0 {
        set("seed", json!(seed));
    }
    match settings.mode {
        VlmJudgeMode::Answers => {
            set("max_tokens", json!(1));
            set("logprobs", json!(true));
            set("top_logprobs", json!(settings.top_logprobs));
        }
        VlmJudgeMode::Number => {
            set("max_tokens", json!(settings.max_tokens));
        }
    }
    serde_json::to_vec(&body).map_err(|error| format!("a request cannot be written as JSON: {error}"))
}

#[cfg(test)]
mod tests {
    use super::evenly;

    #[test]
    fn frames_have_even_distances_with_the_first_and_the_last() {
        assert_eq!(evenly(1, 8), [0]);
        assert_eq!(evenly(3, 3), [0, 1, 2]);
        assert_eq!(evenly(9, 3), [0, 4, 8]);
        assert_eq!(evenly(81, 5), [0, 20, 40, 60, 80]);
        assert_eq!(evenly(10, 4), [0, 3, 6, 9]);
        assert_eq!(evenly(7, 1), [3]);
        assert_eq!(evenly(5, 4), [0, 1, 3, 4]);
    }
}
