//! A reward: how alike an image and its mirror image are.

use flow_registry::NameTaken;
use flow_rewards::{Reward, RewardError, RewardFactory, RewardKind, RewardRegistry, RewardSample};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

const NAME: &str = "symmetry";

/// The mirror.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Axis {
    /// Left and right change places.
    #[default]
    Vertical,
    /// Top and bottom change places.
    Horizontal,
}

/// Minus the mean distance of an image and its mirror image: 0 at best. Its fields are what a config may say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Symmetry {
    /// The mirror.
    pub axis: Axis,
}

impl Reward for Symmetry {
    fn name(&self) -> &str {
        NAME
    }

    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
        let score = |sample: &RewardSample<'_>| {
            let image = sample.image;
            let apart = |channel: &[f32]| -> f32 {
                let at = |row: usize, column: usize| channel[row * image.width + column];
                let mirrored = |row, column| match self.axis {
                    Axis::Vertical => at(row, image.width - 1 - column),
                    Axis::Horizontal => at(image.height - 1 - row, column),
                };
                let pixels =
                    (0..image.height).flat_map(|row| (0..image.width).map(move |column| (row, column)));
                pixels
                    .map(|(row, column)| (at(row, column) - mirrored(row, column)).abs())
                    .sum()
            };
            let channels = image.pixels_chw.chunks_exact(image.height * image.width);
            -channels.map(apart).sum::<f32>() / image.pixels_chw.len() as f32
        };
        Ok(samples.iter().map(score).collect())
    }
}

/// Adds the reward.
///
/// # Errors
/// [`NameTaken`] if there is one of its name.
pub fn register(registry: &mut RewardRegistry) -> Result<(), NameTaken> {
    registry.register(RewardFactory::new::<Symmetry>(
        NAME,
        "How alike an image and its mirror image are.",
        RewardKind::Pointwise,
        |_, symmetry| Ok(Arc::new(symmetry)),
    ))
}
