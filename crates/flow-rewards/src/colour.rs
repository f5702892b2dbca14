//! `target-colour`: minus the distance of the image's mean colour to a target.
//!
//! The mean is taken over the pixels in sRGB, as stored and clamped to [0, 1]; then both colours are compared in the
//! chosen space, by Euclidean distance.
//! Oklab is Björn Ottosson's (<https://bottosson.github.io/posts/oklab/>, 2020), with the matrices given there; the
//! transfer function is sRGB's (IEC 61966-2-1).

use std::sync::Arc;

use flow_data::Image;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use flow_registry::NameTaken;

use crate::error::RewardError;
use crate::registry::{RewardFactory, RewardRegistry};
use crate::reward::{Reward, RewardKind, RewardSample, check_finite};

const NAME: &str = "target-colour";

/// In which space colours are compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ColourSpace {
    /// sRGB values in [0, 1]: the distance of black and white is √3.
    #[default]
    Srgb,
    /// Oklab, where equal distances look about equally large: the distance of black and white is 1.
    Oklab,
}

/// Settings of [`TargetColour`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetColourSettings {
    /// The colour: red, green, blue, each 0 to 1. A grey image counts as three equal channels.
    #[schemars(inner(range(min = 0.0, max = 1.0)))]
    pub rgb: [f64; 3],
    /// Where the distance is measured.
    #[serde(default, skip_serializing_if = "is_srgb")]
    pub space: ColourSpace,
}

/// Written where it is another, as records of runs from before it could be chosen have it.
fn is_srgb(space: &ColourSpace) -> bool {
    *space == ColourSpace::Srgb
}

/// Minus the distance of the mean colour to a target; see the module's description.
#[derive(Debug, Clone)]
pub struct TargetColour {
    settings: TargetColourSettings,
}

impl TargetColour {
    /// The reward with these settings.
    ///
    /// # Errors
    /// [`RewardError::Params`] for a colour outside 0 to 1.
    pub fn new(settings: TargetColourSettings) -> Result<Self, RewardError> {
        for (channel, value) in settings.rgb.iter().enumerate() {
            if !(0.0..=1.0).contains(value) {
                let problem = format!("`rgb[{channel}]`: {value} is not from 0 to 1");
                return Err(RewardError::Params {
                    reward: NAME.to_owned(),
                    problem: problem.into(),
                });
            }
        }
        Ok(Self { settings })
    }
}

impl Reward for TargetColour {
    fn name(&self) -> &str {
        NAME
    }

    fn range(&self) -> (f64, f64) {
        // No two colours of the sRGB cube are further apart than black and white are in sRGB.
        let furthest = match self.settings.space {
            ColourSpace::Srgb => 3.0_f64.sqrt(),
            ColourSpace::Oklab => f64::INFINITY,
        };
        (-furthest, 0.0)
    }

    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
        let TargetColourSettings { rgb, space } = &self.settings;
        let target = in_space(*rgb, *space);
        let score = |(index, sample): (usize, &RewardSample<'_>)| {
            check_finite(index, sample)?;
            let mean = mean_rgb(sample.image).ok_or_else(|| RewardError::Sample {
                index,
                problem: format!("an image of {} has no mean colour", sample.image.shape()),
            })?;
            let mean = in_space(mean, *space);
            let squares = mean.iter().zip(&target).map(|(a, b)| (a - b) * (a - b));
            Ok(-(squares.sum::<f64>().sqrt() as f32))
        };
        samples.iter().enumerate().map(score).collect()
    }
}

/// The mean of each channel in [0, 1], grey repeated; `None` for an image that is neither grey nor RGB, or empty.
fn mean_rgb(image: &Image) -> Option<[f64; 3]> {
    let plane = image.height * image.width;
    if plane == 0 || !matches!(image.channels, 1 | 3) {
        return None;
    }
    let mean = |channel: usize| {
        let values = &image.pixels_chw[channel * plane..(channel + 1) * plane];
        values
            .iter()
            .map(|&value| (f64::from(value.clamp(-1.0, 1.0)) + 1.0) / 2.0)
            .sum::<f64>()
            / plane as f64
    };
    Some(std::array::from_fn(|channel| {
        mean(channel.min(image.channels - 1))
    }))
}

fn in_space(rgb: [f64; 3], space: ColourSpace) -> [f64; 3] {
    match space {
        ColourSpace::Srgb => rgb,
        ColourSpace::Oklab => oklab(rgb),
    }
}

fn oklab(rgb: [f64; 3]) -> [f64; 3] {
    let [r, g, b] = rgb.map(|value| {
        if value <= 0.04045 {
            value / 12.92
        } else {
            libm::pow((value + 0.055) / 1.055, 2.4)
        }
    });
    let l = libm::cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
    let m = libm::cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
    let s = libm::cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
    [
        0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s,
        1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s,
        0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s,
    ]
}

impl TargetColour {
    /// Adds the reward to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is a reward of its name.
    pub fn register(registry: &mut RewardRegistry) -> Result<(), NameTaken> {
        let reward = RewardFactory::new::<TargetColourSettings>(
            NAME,
            "How near the image's mean colour is to one colour: minus their distance in sRGB, each channel from 0 to 1.",
            RewardKind::Pointwise,
            |_, settings| Ok(Arc::new(Self::new(settings)?)),
        );
        registry.register(reward)
    }
}
