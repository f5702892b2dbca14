//! Pictures of words, and prompts that spell them: `the word "r i v e r"`.
//!
//! A text encoder that reads pieces of words knows little of how they are spelt, so prompts part the letters. The words are made up of
//! consonants and vowels in turn, and a picture is drawn when it is asked for, from `(seed, index)` alone.

mod draw;
mod list;

use crate::dataset::{
    CaptionedImages, Dataset, Example, FREE_PROMPT_ID, caption_noise, check_images, check_index,
    check_setting, foreign_prompt,
};
use crate::error::{DataError, PromptError};
use crate::image::ImageShape;
use crate::prompt::Prompt;
use crate::registry::{DatasetFactory, DatasetRegistry};
use draw::Typesetter;
use flow_config::{DataFacts, ImageFacts};
use flow_registry::NameTaken;
use flow_rng::{Purpose, Stream};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Letters of a word.
pub const WORD_LETTERS: RangeInclusive<usize> = 3..=6;
/// Of so many words one is held out.
const HELD_OUT_OF: usize = 10;
/// Values of the settings.
const WIDTHS: RangeInclusive<usize> = 32..=1024;
const HEIGHTS: RangeInclusive<usize> = 16..=1024;
const COUNTS: RangeInclusive<usize> = 40..=8000;

/// Settings of [`Words`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WordsSettings {
    /// Width in pixels.
    #[schemars(range(min = 32, max = 1024))]
    pub width: usize,
    /// Height in pixels.
    #[schemars(range(min = 16, max = 1024))]
    pub height: usize,
    /// Different words, as many of each length from three to six letters, one more or less. Every tenth is held out: no picture of
    /// pretraining shows it, and reinforcement learning does not ask for it.
    #[schemars(range(min = 40, max = 8000))]
    pub words: usize,
    /// Number of training images: a word, a font, a size and a place each.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub images: u64,
    /// Seed of words and images.
    #[schemars(range(max = 9_223_372_036_854_775_807_u64))]
    pub seed: u64,
}

impl Default for WordsSettings {
    fn default() -> Self {
        Self {
            width: 64,
            height: 32,
            words: 4000,
            images: 40_000,
            seed: 0,
        }
    }
}

/// The data set of words; see the module's description.
#[derive(Debug, Clone)]
pub struct Words {
    settings: WordsSettings,
    typesetter: Typesetter,
    words: Vec<String>,
    prompts: Vec<Prompt>,
    numbers: HashMap<String, u32>,
    /// Numbers of the words that are not held out, by their letters, from [`WORD_LETTERS`]'s first on.
    trained: Vec<Vec<u32>>,
}

impl Words {
    /// Adds the data set to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is a data set of its name.
    pub fn register(registry: &mut DatasetRegistry) -> Result<(), NameTaken> {
        let facts = |settings: &WordsSettings| DataFacts {
            images: (settings.width == settings.height).then_some(ImageFacts {
                size: settings.width,
                channels: 3,
            }),
            prompts: None,
        };
        registry.register(DatasetFactory::new::<WordsSettings>(
            "words",
            "Pictures of words in six fonts, three channels; a prompt spells one: the word \"r i v e r\".",
            facts,
            |settings| Ok(Arc::new(Self::new(settings)?)),
        ))
    }

    /// The data set with these settings.
    ///
    /// # Errors
    /// [`DataError::Setting`] for a size, a number of words or a number of images outside its range.
    pub fn new(settings: WordsSettings) -> Result<Self, DataError> {
        let WordsSettings {
            width,
            height,
            words,
            images,
            ..
        } = settings;
        let allowed = "images are 32 to 1024 pixels wide (six letters are not readable in less)";
        check_setting(WIDTHS.contains(&width), "width", width, allowed)?;
        let allowed = "images are 16 to 1024 pixels high (letters are not readable in less)";
        check_setting(HEIGHTS.contains(&height), "height", height, allowed)?;
        let allowed = "there are 40 to 8000 words (2,730 of three letters can be made)";
        check_setting(COUNTS.contains(&words), "words", words, allowed)?;
        check_images(images)?;
        let words = list::made_up(settings.words, settings.seed);
        let texts = words.iter().map(|word| list::prompt(word));
        let prompts: Vec<Prompt> = (0..)
            .zip(texts)
            .map(|(id, text)| Prompt::free(id, text))
            .collect();
        let mut trained = vec![Vec::new(); WORD_LETTERS.count()];
        for (prompt, word) in prompts.iter().zip(&words) {
            if !is_held_out(prompt.id) {
                trained[word.len() - WORD_LETTERS.start()].push(prompt.id);
            }
        }
        Ok(Self {
            typesetter: Typesetter::new()?,
            numbers: words.iter().cloned().zip(0..).collect(),
            settings,
            words,
            prompts,
            trained,
        })
    }

    /// The settings it was made with.
    pub fn settings(&self) -> &WordsSettings {
        &self.settings
    }

    /// The word that a prompt asks for, if it is one of the list's.
    pub fn word(&self, prompt: &Prompt) -> Option<&str> {
        let own = self.prompts.get(prompt.id as usize)?;
        (own.text == prompt.text).then(|| self.words[own.id as usize].as_str())
    }

    /// One of the words that are not held out.
    fn draw(&self, letters: usize, at: u64) -> &Prompt {
        let words = &self.trained[letters - WORD_LETTERS.start()];
        &self.prompts[words[at as usize % words.len()] as usize]
    }
}

/// Whether the word with this number is held out.
fn is_held_out(id: u32) -> bool {
    (id as usize) % HELD_OUT_OF == HELD_OUT_OF - 1
}

impl Dataset for Words {
    fn name(&self) -> &str {
        "words"
    }

    fn prompts(&self) -> &[Prompt] {
        &self.prompts
    }

    fn is_held_out(&self, prompt: &Prompt) -> bool {
        self.word(prompt).is_some() && is_held_out(prompt.id)
    }

    /// Takes `the word "r i v e r"`, `"river"` and `river`, in any case. Any word of three to six letters can be asked for.
    fn parse_prompt(&self, text: &str) -> Result<Prompt, PromptError> {
        let word = list::parse(text)?;
        let listed = self.numbers.get(&word);
        Ok(match listed {
            Some(number) => self.prompts[*number as usize].clone(),
            None => Prompt::free(FREE_PROMPT_ID, list::prompt(&word)),
        })
    }

    fn captioned_images(&self) -> Option<&dyn CaptionedImages> {
        Some(self)
    }

    fn citation(&self) -> Option<&str> {
        Some(
            "Fonts: Roboto (Google Inc. 2015, Apache-2.0) and DejaVu 2.37 (licence of Bitstream Vera, Bitstream Inc. 2003), the letters \
             a to z of each.",
        )
    }
}

impl CaptionedImages for Words {
    fn image_shape(&self) -> ImageShape {
        ImageShape {
            channels: 3,
            height: self.settings.height,
            width: self.settings.width,
        }
    }

    fn len(&self) -> u64 {
        self.settings.images
    }

    fn example(&self, index: u64) -> Result<Example, DataError> {
        check_index("words", self.len(), index)?;
        let mut draws = Stream::new(self.settings.seed, Purpose::Scene).at(index, 0);
        let letters = WORD_LETTERS.start() + draws.below(WORD_LETTERS.count() as u64) as usize;
        let prompt = self.draw(letters, draws.below(1 << 32));
        let word = &self.words[prompt.id as usize];
        Ok(Example {
            image: self.typesetter.image(word, self.image_shape(), &mut draws)?,
            prompt: prompt.clone(),
        })
    }

    /// A noisy caption asks for another word of the same length that is not held out.
    fn noisy_prompt(
        &self,
        prompt: &Prompt,
        fraction: f32,
        seed: u64,
        index: u64,
    ) -> Result<Prompt, DataError> {
        let noise = caption_noise(fraction, seed, index)?;
        let word = self
            .word(prompt)
            .ok_or_else(|| foreign_prompt(self.name(), prompt))?;
        let Some(mut draws) = noise else {
            return Ok(prompt.clone());
        };
        let at = draws.below(1 << 32);
        let other = self.draw(word.len(), at);
        Ok(match other.id == prompt.id {
            // The next of the list; of forty words in all, there are at least six.
            true => self.draw(word.len(), at + 1).clone(),
            false => other.clone(),
        })
    }
}
