//! The trait that every reward implements.

use flow_data::{Image, Prompt};

use crate::error::RewardError;

/// One image or video with the prompt that it was generated from.
#[derive(Debug, Clone, Copy)]
pub struct RewardSample<'a> {
    /// The generated image; of a video, its first frame.
    pub image: &'a Image,
    /// The frames of a video, the first among them; empty for an image.
    pub frames: &'a [Image],
    /// Its prompt.
    pub prompt: &'a Prompt,
}

/// Whether a reward looks at samples one by one or at whole groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RewardKind {
    /// The score of a sample depends on that sample only, so samples may be scored in any portions.
    Pointwise,
    /// The score of a sample depends on the others of its group, so `score` gets one whole group at a time.
    Groupwise,
}

/// What an image is worth; larger is better.
///
/// Implementations are called from several threads at once, and must return the same scores for the same samples.
pub trait Reward: Send + Sync {
    /// The name under which the reward is registered.
    fn name(&self) -> &str;

    /// Whether `score` takes any samples or whole groups.
    fn kind(&self) -> RewardKind {
        RewardKind::Pointwise
    }

    /// The smallest and the largest score that any image can get; infinite where there is no bound.
    ///
    /// Intervals of mean scores stay inside it.
    fn range(&self) -> (f64, f64) {
        (f64::NEG_INFINITY, f64::INFINITY)
    }

    /// Whether `score` looks at [`RewardSample::frames`]. Otherwise it is given the frames of a video one by one, as images, and the
    /// video's score is their mean.
    fn takes_videos(&self) -> bool {
        false
    }

    /// Whether images of a prompt can be scored. A trainer asks it of every prompt before it begins.
    ///
    /// # Errors
    /// Why they cannot, as a sentence part: "there is no text in double quotes". [`score`](Self::score) fails for such a prompt.
    fn check_prompt(&self, _prompt: &Prompt) -> Result<(), String> {
        Ok(())
    }

    /// One score per sample, in the order of the samples.
    ///
    /// For a group-wise reward the samples are exactly one group.
    ///
    /// # Errors
    /// [`RewardError::Sample`] with the position in `samples` for a sample that cannot be scored; any other error
    /// counts for all samples.
    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError>;
}

/// Scores samples among which there may be videos: see [`Reward::takes_videos`].
///
/// # Errors
/// As [`Reward::score`].
pub fn score_videos(reward: &dyn Reward, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
    let are_images = samples.iter().all(|sample| sample.frames.is_empty());
    if are_images || reward.takes_videos() || reward.kind() == RewardKind::Groupwise {
        return reward.score(samples);
    }
    let frames_of = |sample: &RewardSample<'_>| sample.frames.len().max(1);
    let mut frames = Vec::new();
    for sample in samples {
        let of_sample = match sample.frames {
            [] => std::slice::from_ref(sample.image),
            frames => frames,
        };
        frames.extend(of_sample.iter().map(|image| RewardSample {
            image,
            frames: &[],
            prompt: sample.prompt,
        }));
    }
    let scores = reward.score(&frames).map_err(|error| match error {
        RewardError::Sample { index, problem } => {
            let mut first = 0;
            let of = samples.iter().position(|sample| {
                first += frames_of(sample);
                index < first
            });
            RewardError::Sample {
                index: of.unwrap_or(index),
                problem,
            }
        }
        error => error,
    })?;
    if scores.len() != frames.len() {
        // Whoever asked tells how many are missing.
        return Ok(scores);
    }
    let mut rest = scores.as_slice();
    let mean = |sample: &RewardSample<'_>| {
        let (own, others) = rest.split_at(frames_of(sample));
        rest = others;
        let sum: f64 = own.iter().map(|score| f64::from(*score)).sum();
        (sum / own.len() as f64) as f32
    };
    Ok(samples.iter().map(mean).collect())
}

/// Refuses an image with NaN or infinite pixels, which conversions would otherwise turn into black or white.
///
/// # Errors
/// [`RewardError::Sample`] with `index`.
pub fn check_finite(index: usize, sample: &RewardSample<'_>) -> Result<(), RewardError> {
    match sample
        .image
        .pixels_chw
        .iter()
        .position(|value| !value.is_finite())
    {
        None => Ok(()),
        Some(pixel) => Err(RewardError::Sample {
            index,
            problem: format!(
                "pixel value {pixel} of the image is {}; the generation that made it went wrong",
                sample.image.pixels_chw[pixel]
            ),
        }),
    }
}
