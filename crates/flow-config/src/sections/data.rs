//! `[data]`: images to pretrain on, and the prompts to train and evaluate with.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[data]`: the data set, chosen by `kind`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "kebab-case")]
pub enum DataConfig {
    /// Handwritten digits (UCI, 1,797 images of 8 by 8 pixels, one channel); a prompt is "thin 3".
    Digits(DigitsData),
    /// Procedural scenes such as "three red circles", three channels; a prompt is a sentence.
    Shapes(ShapesData),
}

impl Default for DataConfig {
    fn default() -> Self {
        Self::Digits(DigitsData::default())
    }
}

impl DataConfig {
    /// Side of the square images in pixels.
    pub fn image_size(&self) -> usize {
        match self {
            Self::Digits(digits) => digits.image_size,
            Self::Shapes(shapes) => shapes.image_size,
        }
    }

    /// Number of distinct tokens of the prompts, padding and "no condition" included (flow-data's vocabularies).
    pub fn prompt_vocabulary(&self) -> usize {
        match self {
            Self::Digits(_) => 15,
            Self::Shapes(_) => 18,
        }
    }

    /// Length of the prompts in tokens, padding included.
    pub fn prompt_length(&self) -> usize {
        match self {
            Self::Digits(_) => 2,
            Self::Shapes(_) => 4,
        }
    }

    /// Channels of the images.
    pub fn channels(&self) -> usize {
        match self {
            Self::Digits(_) => 1,
            Self::Shapes(_) => 3,
        }
    }
}

/// `kind = "digits"`: the UCI handwritten digits, 1,797 images of 8 by 8 pixels. Prompts are "thin 3", "bold 7" and so
/// on; ten of the thirty are held out from reinforcement learning, one weight of each digit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DigitsData {
    /// Height and width in pixels; a multiple of 8, to which the images are enlarged.
    #[schemars(range(min = 8, max = 512), extend("multipleOf" = 8))]
    pub image_size: usize,
}

impl Default for DigitsData {
    fn default() -> Self {
        Self { image_size: 8 }
    }
}

/// `kind = "shapes"`: rendered scenes such as "three red circles". Some combinations of count, colour and shape are
/// held out from reinforcement learning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ShapesData {
    /// Height and width in pixels.
    #[schemars(range(min = 16, max = 1024))]
    pub image_size: usize,
    /// Number of training images.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub images: usize,
    /// Seed of the training images.
    #[schemars(range(max = 9_223_372_036_854_775_807_u64))]
    pub seed: u64,
    /// Whether pretraining sees the held-out combinations too. They are held out from reinforcement learning anyway.
    pub pretrain_on_held_out: bool,
}

impl Default for ShapesData {
    fn default() -> Self {
        Self {
            image_size: 24,
            images: 20_000,
            seed: 0,
            pretrain_on_held_out: true,
        }
    }
}
