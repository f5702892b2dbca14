//! `[data]`: images to pretrain on, and the prompts to train and evaluate with.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[data]`: the data set, chosen by `kind`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "kebab-case")]
pub enum DataConfig {
    /// Handwritten digits (UCI, 1,797 images of 8 by 8 pixels, one channel); a prompt is a digit.
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

    /// Channels of the images.
    pub fn channels(&self) -> usize {
        match self {
            Self::Digits(_) => 1,
            Self::Shapes(_) => 3,
        }
    }
}

/// `kind = "digits"`: the UCI handwritten digits, vendored with the tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DigitsData {
    /// Side of the images in pixels: a multiple of 8, the size of the originals, which are enlarged to it.
    #[schemars(range(min = 8, max = 512), extend("multipleOf" = 8))]
    pub image_size: usize,
    /// Digits that rollouts are prompted with.
    #[schemars(length(min = 1, max = 10), inner(range(max = 9)))]
    pub prompts: Vec<u8>,
    /// Digits that evaluation is prompted with. Evaluation noise is never the noise of a rollout, so the same
    /// digits may stand here and in `prompts`.
    #[schemars(length(min = 1, max = 10), inner(range(max = 9)))]
    pub eval_prompts: Vec<u8>,
    /// Fraction of the images that neither pretraining nor the classifier sees; the classifier's accuracy is
    /// reported on them.
    #[schemars(range(min = 0.0, max = 0.9))]
    pub held_out: f64,
    /// Seed of the split.
    #[schemars(range(max = 9_223_372_036_854_775_807_u64))]
    pub seed: u64,
}

impl Default for DigitsData {
    fn default() -> Self {
        let all: Vec<u8> = (0..10).collect();
        Self { image_size: 8, prompts: all.clone(), eval_prompts: all, held_out: 0.2, seed: 0 }
    }
}

/// `kind = "shapes"`: scenes of coloured shapes on a plain background, drawn as they are needed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ShapesData {
    /// Side of the images in pixels.
    #[schemars(range(min = 8, max = 1024))]
    pub image_size: usize,
    /// Colours that scenes use; none twice.
    #[schemars(length(min = 1))]
    pub colours: Vec<Colour>,
    /// Shapes that scenes use; none twice.
    #[schemars(length(min = 1))]
    pub shapes: Vec<Shape>,
    /// Most shapes in a scene; prompts count from "one" to this.
    #[schemars(range(min = 1, max = 4))]
    pub max_count: usize,
    /// Also say where: "three red circles on the left".
    pub positions: bool,
    /// Fraction of the combinations (count, colour, shape, position) that neither pretraining nor rollouts see;
    /// evaluation is prompted with them.
    #[schemars(range(min = 0.0, max = 0.9))]
    pub held_out: f64,
    /// Seed of the choice of held-out combinations and of the scenes.
    #[schemars(range(max = 9_223_372_036_854_775_807_u64))]
    pub seed: u64,
}

impl Default for ShapesData {
    fn default() -> Self {
        Self {
            image_size: 32,
            colours: vec![
                Colour::Red,
                Colour::Green,
                Colour::Blue,
                Colour::Yellow,
                Colour::Magenta,
                Colour::Cyan,
            ],
            shapes: vec![Shape::Circle, Shape::Square, Shape::Triangle],
            max_count: 4,
            positions: false,
            held_out: 0.2,
            seed: 0,
        }
    }
}

/// Colour of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the names are the definition")]
pub enum Colour {
    Red,
    Green,
    Blue,
    Yellow,
    Magenta,
    Cyan,
}

/// Form of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the names are the definition")]
pub enum Shape {
    Circle,
    Square,
    Triangle,
}
