//! The body of a request: encoded when it is sent, so that only requests under way are in memory.

use std::ops::Range;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flow_data::Image;
use flow_rewards::{RewardError, RewardSample};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::picture::{images, png};

/// Flow-Factory's keys, in its order, and ours behind them.
#[derive(Serialize)]
struct Body<'a> {
    prompt: Vec<&'a str>,
    image: Option<Vec<String>>,
    video: Option<Vec<Vec<String>>>,
    condition_images: Option<()>,
    condition_videos: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Vec<&'a Map<String, Value>>>,
}

/// The JSON of `samples[range]`, which are images or videos, not both.
///
/// # Errors
/// [`RewardError::Sample`] for an image that has no PNG; its position is that in `samples`.
pub(super) fn encode(
    samples: &[RewardSample<'_>],
    range: Range<usize>,
    has_metadata: bool,
) -> Result<Vec<u8>, RewardError> {
    let encoded = |index: usize, image: &Image| -> Result<String, RewardError> {
        Ok(STANDARD.encode(png(index, &samples[index], image)?))
    };
    let sent = &samples[range.clone()];
    let (mut image, mut video) = (None, None);
    if sent.iter().any(|sample| !sample.frames.is_empty()) {
        let frames = range.map(|index| {
            let frames = images(&samples[index]).iter();
            frames.map(|frame| encoded(index, frame)).collect()
        });
        video = Some(frames.collect::<Result<Vec<Vec<String>>, RewardError>>()?);
    } else {
        let images = range.map(|index| encoded(index, samples[index].image));
        image = Some(images.collect::<Result<Vec<String>, RewardError>>()?);
    }
    let body = Body {
        prompt: sent.iter().map(|sample| sample.prompt.text.as_str()).collect(),
        image,
        video,
        condition_images: None,
        condition_videos: None,
        metadata: has_metadata.then(|| sent.iter().map(|sample| &sample.prompt.metadata).collect()),
    };
    serde_json::to_vec(&body).map_err(|error| RewardError::Workers {
        problem: format!("a request cannot be written as JSON: {error}"),
    })
}
