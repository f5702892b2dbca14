//! Scoring in batches, and errors that name the sample.

use crate::clip::{BadItem, Clip, TextTower, cosine};
use flow_data::Image;
use flow_rewards::{RewardError, RewardSample};
use std::collections::HashMap;

/// Samples per batch, at most, unless a config says otherwise.
pub const USUAL_BATCH: usize = 16;

/// For serde.
pub fn usual_batch() -> usize {
    USUAL_BATCH
}

/// What is wrong with a number of samples per batch.
pub fn batch_problem(batch_size: usize) -> Option<String> {
    let is_allowed = (1..=1024).contains(&batch_size);
    (!is_allowed).then(|| format!("`batch_size`: {batch_size} is not from 1 to 1024"))
}

/// Scores `samples` batch by batch, or what else `score` makes of each.
pub fn in_batches<T>(
    samples: &[RewardSample<'_>],
    batch_size: usize,
    score: impl Fn(&[RewardSample<'_>]) -> Result<Vec<T>, BadItem>,
) -> Result<Vec<T>, RewardError> {
    let mut scores = Vec::with_capacity(samples.len());
    for batch in samples.chunks(batch_size) {
        let of_batch = score(batch).map_err(|bad| RewardError::Sample {
            index: scores.len() + bad.index,
            problem: bad.problem,
        })?;
        scores.extend(of_batch);
    }
    Ok(scores)
}

/// The images of samples.
pub fn images<'s>(samples: &[RewardSample<'s>]) -> Vec<&'s Image> {
    samples.iter().map(|sample| sample.image).collect()
}

/// The cosine between the features of each sample's image and of its prompt, of which each is encoded once.
pub fn cosines(clip: &Clip, samples: &[RewardSample<'_>]) -> Result<Vec<f64>, BadItem> {
    let of_images = clip.images.features(&images(samples))?;
    let of_prompts = prompt_features(&clip.texts, samples)?;
    let pairs = samples.iter().zip(&of_images);
    Ok(pairs
        .map(|(sample, image)| cosine(image, &of_prompts[sample.prompt.text.as_str()]))
        .collect())
}

fn prompt_features<'s>(
    texts: &TextTower,
    samples: &[RewardSample<'s>],
) -> Result<HashMap<&'s str, Vec<f32>>, BadItem> {
    let mut prompts: Vec<&str> = Vec::new();
    let mut first = Vec::new();
    for (index, sample) in samples.iter().enumerate() {
        let text = sample.prompt.text.as_str();
        if !prompts.contains(&text) {
            prompts.push(text);
            first.push(index);
        }
    }
    let features = texts.features(&prompts).map_err(|bad| BadItem {
        index: first.get(bad.index).copied().unwrap_or(0),
        ..bad
    })?;
    Ok(prompts.into_iter().zip(features).collect())
}
