//! The trait that every reward implements.

use flow_data::{Image, Prompt};

use crate::error::RewardError;

/// One image with the prompt that it was generated from.
#[derive(Debug, Clone, Copy)]
pub struct RewardSample<'a> {
    /// The generated image.
    pub image: &'a Image,
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

    /// One score per sample, in the order of the samples.
    ///
    /// For a group-wise reward the samples are exactly one group.
    ///
    /// # Errors
    /// [`RewardError::Sample`] with the position in `samples` for a sample that cannot be scored; any other error
    /// counts for all samples.
    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError>;
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
