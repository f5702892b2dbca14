//! A data set: grey images of one bar, across or down.

use flow_config::{DataFacts, ImageFacts, PromptFacts};
use flow_data::{
    CaptionedImages, DataError, Dataset, DatasetFactory, DatasetRegistry, Example, Image, ImageShape, Prompt,
    PromptError, TokenizedPrompts, Vocabulary,
};
use flow_registry::NameTaken;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

const NAME: &str = "bars";
const WORDS: [&str; 2] = ["across", "down"];

/// What a config may say of the bars.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BarsSettings {
    /// Height and width in pixels.
    #[schemars(range(min = 2, max = 256))]
    pub image_size: usize,
}

impl Default for BarsSettings {
    fn default() -> Self {
        Self { image_size: 8 }
    }
}

/// As many images as rows and columns: the bar stands in each place once.
pub struct Bars {
    size: usize,
    vocabulary: Vocabulary,
    prompts: Vec<Prompt>,
}

impl Bars {
    /// The data set with these settings.
    pub fn new(settings: &BarsSettings) -> Self {
        let vocabulary = Vocabulary::new(WORDS);
        let prompts = (0..).zip(WORDS).map(|(id, word)| Prompt {
            tokens: vocabulary.encode(&[word], 1),
            ..Prompt::free(id, word)
        });
        Self {
            size: settings.image_size,
            prompts: prompts.collect(),
            vocabulary,
        }
    }
}

impl Dataset for Bars {
    fn name(&self) -> &str {
        NAME
    }

    fn prompts(&self) -> &[Prompt] {
        &self.prompts
    }

    fn is_held_out(&self, _: &Prompt) -> bool {
        false
    }

    fn parse_prompt(&self, text: &str) -> Result<Prompt, PromptError> {
        let same = |prompt: &&Prompt| prompt.text.eq_ignore_ascii_case(text.trim());
        let found = self.prompts.iter().find(same).cloned();
        found.ok_or_else(|| PromptError::UnknownWord {
            text: text.to_owned(),
            word: text.to_owned(),
            nearest: flow_registry::nearest(text, WORDS).map(str::to_owned),
            known: WORDS.map(str::to_owned).to_vec(),
        })
    }

    fn tokenized(&self) -> Option<&dyn TokenizedPrompts> {
        Some(self)
    }

    fn captioned_images(&self) -> Option<&dyn CaptionedImages> {
        Some(self)
    }
}

impl TokenizedPrompts for Bars {
    fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    fn prompt_length(&self) -> usize {
        1
    }
}

impl CaptionedImages for Bars {
    fn image_shape(&self) -> ImageShape {
        ImageShape {
            channels: 1,
            height: self.size,
            width: self.size,
        }
    }

    fn len(&self) -> u64 {
        2 * self.size as u64
    }

    fn example(&self, index: u64) -> Result<Example, DataError> {
        if index >= self.len() {
            return Err(DataError::IndexOutOfRange {
                dataset: NAME.to_owned(),
                index,
                len: self.len(),
            });
        }
        let (down, place) = (index as usize / self.size, index as usize % self.size);
        let mut image = Image::filled(self.image_shape(), -1.0);
        for step in 0..self.size {
            let (row, column) = if down == 1 { (step, place) } else { (place, step) };
            image.pixels_chw[row * self.size + column] = 1.0;
        }
        Ok(Example {
            image,
            prompt: self.prompts[down].clone(),
        })
    }

    fn noisy_prompt(&self, prompt: &Prompt, _: f32, _: u64, _: u64) -> Result<Prompt, DataError> {
        Ok(prompt.clone())
    }
}

/// Adds the data set.
///
/// # Errors
/// [`NameTaken`] if there is one of its name.
pub fn register(registry: &mut DatasetRegistry) -> Result<(), NameTaken> {
    let facts = |settings: &BarsSettings| DataFacts {
        images: Some(ImageFacts {
            size: settings.image_size,
            channels: 1,
        }),
        // Padding and "no condition" are words, too.
        prompts: Some(PromptFacts {
            vocabulary: WORDS.len() + 2,
            length: 1,
        }),
    };
    registry.register(DatasetFactory::new::<BarsSettings>(
        NAME,
        "Grey images of one bar; a prompt is \"across\" or \"down\".",
        facts,
        |settings| Ok(Arc::new(Bars::new(&settings))),
    ))
}
