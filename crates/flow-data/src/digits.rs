//! The UCI handwritten digits, 1,797 images of 8×8, vendored into the crate.
//!
//! Prompts are "thin|medium|bold k".
//! The weight of an image is the tercile of its total ink within its own class, because a one has less ink than an
//! eight however it is written.

use std::io::Read;
use std::sync::Arc;

use crate::dataset::{
    CaptionedImages, Dataset, Example, TokenizedPrompts, caption_noise, check_index, check_setting,
    foreign_prompt,
};
use crate::error::{DataError, PromptError};
use crate::image::{Image, ImageShape};
use crate::parse;
use crate::prompt::{Prompt, PromptSpec, Weight};
use crate::registry::{DatasetFactory, DatasetRegistry};
use crate::vocabulary::Vocabulary;
use flow_config::{DataFacts, ImageFacts, PromptFacts};
use flow_registry::NameTaken;
use flow_rng::{Purpose, Stream};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What to cite where the digits are used.
pub const DIGITS_CITATION: &str = "Alpaydin, E. and Kaynak, C. (1998). Optical Recognition of Handwritten Digits \
[Dataset]. UCI Machine Learning Repository. https://doi.org/10.24432/C50P49 (CC BY 4.0)";

/// The weight of each digit, 0 to 9, that reinforcement learning does not see.
///
/// Every digit has exactly one, and every weight is held out for three or four digits, so each digit and each
/// weight is still trained on.
pub const HELD_OUT_WEIGHT: [Weight; 10] = [
    Weight::Thin,
    Weight::Medium,
    Weight::Bold,
    Weight::Thin,
    Weight::Medium,
    Weight::Bold,
    Weight::Thin,
    Weight::Medium,
    Weight::Bold,
    Weight::Medium,
];

const DIGITS_CSV_GZ: &[u8] = include_bytes!("../data/digits.csv.gz");
const SIDE: usize = 8;
const PIXELS: usize = SIDE * SIDE;
/// Pixels are integers from 0 to this.
const FULL_INK: u32 = 16;
/// A prompt is a weight and a digit.
const PROMPT_LENGTH: usize = 2;
const DIGIT_WORDS: [&str; 10] = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine",
];
/// Words that carry no content. An image has one digit, so `a` is no count as it is in scenes.
const ARTICLES: [&str; 3] = ["a", "an", "the"];
const NUMERALS: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];

/// The words of the prompts.
fn vocabulary() -> Vocabulary {
    Vocabulary::new(Weight::ALL.map(Weight::word).into_iter().chain(NUMERALS))
}

/// Settings of [`Digits`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DigitsSettings {
    /// Height and width in pixels; a multiple of 8, to which the images are enlarged.
    #[schemars(range(min = 8, max = 512), extend("multipleOf" = 8))]
    pub image_size: usize,
}

impl Default for DigitsSettings {
    fn default() -> Self {
        Self { image_size: SIDE }
    }
}

/// The digits data set; see the module's description.
#[derive(Debug, Clone)]
pub struct Digits {
    image_size: usize,
    images: Vec<Image>,
    labels: Vec<u8>,
    weights: Vec<Weight>,
    /// For each digit the least ink of a medium and of a bold one.
    ink_bounds: [[u32; 2]; 10],
    vocabulary: Vocabulary,
    prompts: Vec<Prompt>,
}

/// Image indices of a training and a validation part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DigitsSplit {
    /// Indices to train on, ascending.
    pub train: Vec<u64>,
    /// Indices to validate on, ascending.
    pub validation: Vec<u64>,
}

impl Digits {
    /// Adds the data set to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is a data set of its name.
    pub fn register(registry: &mut DatasetRegistry) -> Result<(), NameTaken> {
        let facts = |settings: &DigitsSettings| DataFacts {
            images: Some(ImageFacts {
                size: settings.image_size,
                channels: 1,
            }),
            prompts: Some(PromptFacts {
                vocabulary: vocabulary().len(),
                length: PROMPT_LENGTH,
            }),
        };
        registry.register(DatasetFactory::new::<DigitsSettings>(
            "digits",
            "Handwritten digits (UCI, 1,797 images of 8 by 8 pixels, one channel); a prompt is \"thin 3\".",
            facts,
            |settings| Ok(Arc::new(Self::with_image_size(settings.image_size)?)),
        ))
    }

    /// The vendored data.
    ///
    /// # Errors
    /// None in practice; the vendored file is read by the same checks as any other.
    pub fn new() -> Result<Self, DataError> {
        let mut csv = String::new();
        flate2::read::GzDecoder::new(DIGITS_CSV_GZ)
            .read_to_string(&mut csv)
            .map_err(|error| DataError::DigitsData {
                problem: format!("cannot be unpacked: {error}"),
            })?;
        Self::from_csv(&csv)
    }

    /// The vendored data, every pixel enlarged to a square so that images have `image_size` pixels a side.
    ///
    /// # Errors
    /// [`DataError::Setting`] unless `image_size` is a multiple of 8 from 8 to 512.
    pub fn with_image_size(image_size: usize) -> Result<Self, DataError> {
        let fits = (SIDE..=512).contains(&image_size) && image_size.is_multiple_of(SIDE);
        let allowed = "digits have 8 pixels a side and are enlarged to a multiple of 8, at most 512";
        check_setting(fits, "image_size", image_size, allowed)?;
        let mut digits = Self::new()?;
        if image_size != SIDE {
            digits.image_size = image_size;
            for image in &mut digits.images {
                *image = image.upscale_nearest(image_size / SIDE);
            }
        }
        Ok(digits)
    }

    /// Digits from rows of 64 pixels (8×8, row-major, 0 to 16) and the label (0 to 9), separated by commas.
    ///
    /// # Errors
    /// [`DataError::DigitsLine`] names the first line that cannot be read; [`DataError::DigitsData`] if a digit has
    /// fewer than three images, for then it has no terciles.
    pub fn from_csv(csv: &str) -> Result<Self, DataError> {
        let mut images = Vec::new();
        let mut labels = Vec::new();
        let mut ink = Vec::new();
        let rows = csv.lines().enumerate().filter(|(_, row)| !row.trim().is_empty());
        for (row_index, row) in rows {
            let (pixels, label) = parse_row(row).map_err(|problem| DataError::DigitsLine {
                line: row_index + 1,
                problem,
            })?;
            ink.push(pixels.iter().sum::<u32>());
            images.push(Image {
                channels: 1,
                height: SIDE,
                width: SIDE,
                pixels_chw: pixels
                    .iter()
                    .map(|&pixel| pixel as f32 / (FULL_INK as f32 / 2.0) - 1.0)
                    .collect(),
            });
            labels.push(label);
        }
        let ink_bounds = ink_bounds(&labels, &ink)?;
        let weights = labels
            .iter()
            .zip(&ink)
            .map(|(&label, &ink)| weight_of(ink_bounds[label as usize], ink))
            .collect();
        let vocabulary = vocabulary();
        let prompts = (0..10u8)
            .flat_map(|digit| Weight::ALL.map(|weight| (digit, weight)))
            .map(|(digit, weight)| {
                let words = [weight.word(), NUMERALS[digit as usize]];
                Prompt {
                    id: prompt_id(digit, weight),
                    text: words.join(" "),
                    tokens: vocabulary.encode(&words, PROMPT_LENGTH),
                    spec: PromptSpec::Digit { digit, weight },
                    metadata: serde_json::Map::new(),
                }
            })
            .collect();
        Ok(Self {
            image_size: SIDE,
            images,
            labels,
            weights,
            ink_bounds,
            vocabulary,
            prompts,
        })
    }

    /// The class of every image, 0 to 9, in the order of the indices.
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }

    /// Every image in the order of the indices.
    pub fn images(&self) -> &[Image] {
        &self.images
    }

    /// The weight that an image has if it shows `digit`, by the same bounds that captioned the data.
    ///
    /// Ink is the sum of the pixels of the image reduced to 8×8, each from 0 (value -1) to 16 (value 1) and clamped,
    /// rounded to a whole number.
    /// `None` for a digit above 9, and for an image that is not square with a multiple of 8 pixels a side.
    pub fn weight_of_image(&self, digit: u8, image: &Image) -> Option<Weight> {
        let bounds = *self.ink_bounds.get(digit as usize)?;
        let image = image.downscale_mean(image.height / SIDE)?;
        if image.shape()
            != (ImageShape {
                channels: 1,
                height: SIDE,
                width: SIDE,
            })
        {
            return None;
        }
        let ink: f32 = image
            .pixels_chw
            .iter()
            .map(|value| (value.clamp(-1.0, 1.0) + 1.0) * (FULL_INK as f32 / 2.0))
            .sum();
        Some(weight_of(bounds, ink.round() as u32))
    }

    /// A split for training and validating a classifier, stratified by class and shuffled by `seed`.
    ///
    /// # Errors
    /// [`DataError::Setting`] unless `validation_fraction` is above 0 and below 1.
    pub fn split(&self, validation_fraction: f32, seed: u64) -> Result<DigitsSplit, DataError> {
        let fits = validation_fraction > 0.0 && validation_fraction < 1.0;
        let allowed = "it is the share of images kept for validation, above 0 and below 1";
        check_setting(fits, "validation_fraction", validation_fraction, allowed)?;
        let (mut train, mut validation) = (Vec::new(), Vec::new());
        for digit in 0..10u8 {
            let mut members: Vec<u64> = (0..self.labels.len())
                .filter(|&i| self.labels[i] == digit)
                .map(|i| i as u64)
                .collect();
            Stream::new(seed, Purpose::DataSplit)
                .at(u64::from(digit), 0)
                .shuffle(&mut members);
            let kept = (members.len() as f64 * f64::from(validation_fraction)).round() as usize;
            validation.extend_from_slice(&members[..kept]);
            train.extend_from_slice(&members[kept..]);
        }
        train.sort_unstable();
        validation.sort_unstable();
        Ok(DigitsSplit { train, validation })
    }
}

impl Dataset for Digits {
    fn name(&self) -> &str {
        "digits"
    }

    fn prompts(&self) -> &[Prompt] {
        &self.prompts
    }

    fn is_held_out(&self, prompt: &Prompt) -> bool {
        match prompt.spec {
            PromptSpec::Digit { digit, weight } => HELD_OUT_WEIGHT.get(digit as usize) == Some(&weight),
            PromptSpec::Shapes { .. } | PromptSpec::Text => false,
        }
    }

    fn parse_prompt(&self, text: &str) -> Result<Prompt, PromptError> {
        let (mut weight, mut digit) = (None, None);
        for word in parse::words(text) {
            if ARTICLES.contains(&word.as_str()) {
                continue;
            }
            if let Some(value) = Weight::ALL.into_iter().find(|w| w.word() == word) {
                parse::set_once(text, "the weight", &mut weight, value, &word)?;
            } else if let Some(value) = (0..10).find(|&d| NUMERALS[d] == word || DIGIT_WORDS[d] == word) {
                parse::set_once(text, "the digit", &mut digit, value as u8, &word)?;
            } else {
                let known = Weight::ALL
                    .map(Weight::word)
                    .into_iter()
                    .chain(NUMERALS)
                    .chain(DIGIT_WORDS)
                    .map(str::to_owned);
                return Err(parse::unknown_word(text, &word, known.collect()));
            }
        }
        match (weight, digit) {
            (Some((weight, _)), Some((digit, _))) => {
                Ok(self.prompts[prompt_id(digit, weight) as usize].clone())
            }
            (weight, digit) => {
                let mut lacking = Vec::new();
                if weight.is_none() {
                    lacking.push(format!(
                        "a weight ({})",
                        parse::choices(&Weight::ALL.map(Weight::word))
                    ));
                }
                if digit.is_none() {
                    lacking.push("a digit (0 to 9)".to_owned());
                }
                Err(parse::missing(text, &lacking, "\"bold 7\""))
            }
        }
    }

    fn citation(&self) -> Option<&str> {
        Some(DIGITS_CITATION)
    }

    fn tokenized(&self) -> Option<&dyn TokenizedPrompts> {
        Some(self)
    }

    fn captioned_images(&self) -> Option<&dyn CaptionedImages> {
        Some(self)
    }
}

impl TokenizedPrompts for Digits {
    fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    fn prompt_length(&self) -> usize {
        PROMPT_LENGTH
    }
}

impl CaptionedImages for Digits {
    fn image_shape(&self) -> ImageShape {
        ImageShape {
            channels: 1,
            height: self.image_size,
            width: self.image_size,
        }
    }

    fn len(&self) -> u64 {
        self.images.len() as u64
    }

    fn example(&self, index: u64) -> Result<Example, DataError> {
        check_index("digits", self.len(), index)?;
        let i = index as usize;
        let id = prompt_id(self.labels[i], self.weights[i]);
        Ok(Example {
            image: self.images[i].clone(),
            prompt: self.prompts[id as usize].clone(),
        })
    }

    /// The part that is wrong in a noisy caption is the digit, drawn evenly from the nine others; the weight stays.
    fn noisy_prompt(
        &self,
        prompt: &Prompt,
        fraction: f32,
        seed: u64,
        index: u64,
    ) -> Result<Prompt, DataError> {
        let noise = caption_noise(fraction, seed, index)?;
        let PromptSpec::Digit { digit, weight } = prompt.spec else {
            return Err(foreign_prompt(self.name(), prompt));
        };
        let Some(mut stream) = noise else {
            return Ok(prompt.clone());
        };
        let other = (u32::from(digit) + 1 + stream.below(9) as u32) % 10;
        Ok(self.prompts[prompt_id(other as u8, weight) as usize].clone())
    }
}

/// Ids count the weights of digit 0 first, then those of digit 1, and so on.
fn prompt_id(digit: u8, weight: Weight) -> u32 {
    u32::from(digit % 10) * Weight::ALL.len() as u32 + weight as u32
}

fn weight_of([medium, bold]: [u32; 2], ink: u32) -> Weight {
    if ink < medium {
        Weight::Thin
    } else if ink < bold {
        Weight::Medium
    } else {
        Weight::Bold
    }
}

/// The ink at one and at two thirds of each class in order of ink.
fn ink_bounds(labels: &[u8], ink: &[u32]) -> Result<[[u32; 2]; 10], DataError> {
    let mut bounds = [[0; 2]; 10];
    for digit in 0..10u8 {
        let mut of_class: Vec<u32> = labels
            .iter()
            .zip(ink)
            .filter(|(label, _)| **label == digit)
            .map(|(_, &ink)| ink)
            .collect();
        let n = of_class.len();
        if n < 3 {
            let problem = format!("digit {digit} has {n} images; terciles of ink take at least 3");
            return Err(DataError::DigitsData { problem });
        }
        of_class.sort_unstable();
        bounds[digit as usize] = [of_class[n / 3], of_class[2 * n / 3]];
    }
    Ok(bounds)
}

fn parse_row(row: &str) -> Result<([u32; PIXELS], u8), String> {
    let fields: Vec<&str> = row.split(',').map(str::trim).collect();
    if fields.len() != PIXELS + 1 {
        return Err(format!(
            "{} fields, where 64 pixels and a label make 65",
            fields.len()
        ));
    }
    let number = |field: usize, limit: u32, what: &str| match fields[field].parse::<u32>() {
        Ok(value) if value <= limit => Ok(value),
        _ => Err(format!(
            "field {} is \"{}\"; {what} is 0 to {limit}",
            field + 1,
            fields[field]
        )),
    };
    let mut pixels = [0; PIXELS];
    for (field, pixel) in pixels.iter_mut().enumerate() {
        *pixel = number(field, FULL_INK, "a pixel")?;
    }
    Ok((pixels, number(PIXELS, 9, "a label")? as u8))
}
