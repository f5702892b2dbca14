//! `jpeg-compressibility`: minus the size of the image as JPEG, in kB of 1000 bytes.
//!
//! Source: flow_grpo, `flow_grpo/rewards.py`, `jpeg_compressibility` at commit 54809b5, after DDPO (Black et al. 2023,
//! arXiv:2305.13301): the size at quality 95, in units of 1000 bytes, negated.
//! flow_grpo divides by 500 for images of 512 pixels; here that is left to the reward's weight, because advantages are
//! normalised anyway.
//! Two things differ: the encoder is that of the `image` crate (baseline, 4:2:2) and not libjpeg's, so sizes are not
//! comparable byte by byte; and small images are enlarged first, see [`JpegSettings::min_side`].

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use image::ExtendedColorType;
use image::codecs::jpeg::JpegEncoder;

use flow_registry::NameTaken;

use crate::error::RewardError;
use crate::registry::{RewardFactory, RewardRegistry};
use crate::reward::{Reward, RewardKind, RewardSample, check_finite};

const NAME: &str = "jpeg-compressibility";
const USUAL_SIDE: usize = 128;

/// Settings of [`JpegCompressibility`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JpegSettings {
    /// JPEG quality.
    #[schemars(range(min = 1, max = 100))]
    pub quality: u8,
    /// Images whose shorter side is below this many pixels are enlarged by the least odd factor that reaches it, each
    /// pixel becoming a square (8 pixels become 136, 24 become 168); 1 to 4096.
    ///
    /// The header of a JPEG takes about 600 bytes and would be most of the file of an 8×8 image.
    /// The factor is odd so that the squares do not line up with JPEG's blocks of 8×8 pixels: flat blocks would
    /// compress to almost nothing whatever the image shows.
    #[serde(skip_serializing_if = "is_usual_side")]
    #[schemars(range(min = 1, max = 4096))]
    pub min_side: usize,
}

impl Default for JpegSettings {
    fn default() -> Self {
        Self {
            quality: 95,
            min_side: USUAL_SIDE,
        }
    }
}

/// Written where it is another, as records of runs from before it could be chosen have it.
fn is_usual_side(side: &usize) -> bool {
    *side == USUAL_SIDE
}

/// Minus the size as JPEG; see the module's description.
#[derive(Debug, Clone)]
pub struct JpegCompressibility {
    settings: JpegSettings,
}

impl JpegCompressibility {
    /// The reward with these settings.
    ///
    /// # Errors
    /// [`RewardError::Params`] for a quality or a side outside its range.
    pub fn new(settings: JpegSettings) -> Result<Self, RewardError> {
        let problem = if !(1..=100).contains(&settings.quality) {
            format!("`quality`: {} is not from 1 to 100", settings.quality)
        } else if !(1..=4096).contains(&settings.min_side) {
            format!("`min_side`: {} is not from 1 to 4096", settings.min_side)
        } else {
            return Ok(Self { settings });
        };
        Err(RewardError::Params {
            reward: NAME.to_owned(),
            problem: problem.into(),
        })
    }

    /// Size of an image as JPEG in bytes.
    fn jpeg_bytes(&self, sample: &RewardSample<'_>) -> Result<usize, String> {
        let shorter = sample.image.height.min(sample.image.width);
        if shorter == 0 {
            return Err(format!("an image of {} has no pixels", sample.image.shape()));
        }
        let image = sample
            .image
            .upscale_nearest(self.settings.min_side.div_ceil(shorter) | 1);
        let (Ok(height), Ok(width)) = (u16::try_from(image.height), u16::try_from(image.width)) else {
            return Err(format!("an image of {} is too large for JPEG", image.shape()));
        };
        let rgb = image.to_rgb8();
        let mut file = Vec::new();
        let mut encoder = JpegEncoder::new_with_quality(&mut file, self.settings.quality);
        let (width, height) = (u32::from(width), u32::from(height));
        if image.channels == 1 {
            let grey: Vec<u8> = rgb.iter().step_by(3).copied().collect();
            encoder.encode(&grey, width, height, ExtendedColorType::L8)
        } else {
            encoder.encode(&rgb, width, height, ExtendedColorType::Rgb8)
        }
        .map_err(|error| format!("cannot be encoded as JPEG: {error}"))?;
        Ok(file.len())
    }
}

impl Reward for JpegCompressibility {
    fn name(&self) -> &str {
        NAME
    }

    fn range(&self) -> (f64, f64) {
        (f64::NEG_INFINITY, 0.0)
    }

    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
        let score = |(index, sample): (usize, &RewardSample<'_>)| {
            check_finite(index, sample)?;
            let bytes = self
                .jpeg_bytes(sample)
                .map_err(|problem| RewardError::Sample { index, problem })?;
            Ok(-(bytes as f32 / 1000.0))
        };
        samples.iter().enumerate().map(score).collect()
    }
}

impl JpegCompressibility {
    /// Adds the reward to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is a reward of its name.
    pub fn register(registry: &mut RewardRegistry) -> Result<(), NameTaken> {
        let reward = RewardFactory::new::<JpegSettings>(
            NAME,
            "How small the image is as JPEG: minus its size in kilobytes (1 kB = 1000 bytes), as in flow_grpo.",
            RewardKind::Pointwise,
            |_, settings| Ok(Arc::new(Self::new(settings)?)),
        );
        registry.register(reward)
    }
}
