//! The trait that trainers, samplers and the command line use, whatever the data are.

use crate::error::{DataError, PromptError};
use crate::image::{Image, ImageShape};
use crate::prompt::Prompt;
use crate::vocabulary::{NULL_TOKEN, Vocabulary};

/// One image with its true caption.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// The image.
    pub image: Image,
    /// What it shows.
    pub prompt: Prompt,
}

/// A data set of images with prompts.
///
/// Every method is a pure function: the same call gives the same answer on every thread and in every run.
pub trait Dataset: Send + Sync {
    /// The name by which a config asks for it.
    fn name(&self) -> &'static str;

    /// Shape of every image.
    fn image_shape(&self) -> ImageShape;

    /// Words and token ids of the prompts.
    fn vocabulary(&self) -> &Vocabulary;

    /// Number of tokens of every prompt, padding included.
    fn prompt_length(&self) -> usize;

    /// Number of training images.
    fn len(&self) -> u64;

    /// Whether there is no training image.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A training image with its true caption.
    ///
    /// # Errors
    /// [`DataError::IndexOutOfRange`] unless `index < len()`.
    fn example(&self, index: u64) -> Result<Example, DataError>;

    /// Every prompt in the order of the ids.
    fn prompts(&self) -> &[Prompt];

    /// Whether a prompt is held out from reinforcement learning and kept for evaluation.
    fn is_held_out(&self, prompt: &Prompt) -> bool;

    /// The prompt that has `text`, which need not be spelled as in [`Dataset::prompts`]: case, plural, digits for
    /// number words and filler words do not matter.
    ///
    /// # Errors
    /// [`PromptError`], which names the word that is unknown and the nearest one, or the part that is missing.
    fn parse_prompt(&self, text: &str) -> Result<Prompt, PromptError>;

    /// A caption with deliberate noise for pretraining: with probability `fraction` it differs from `prompt` in
    /// one part, else it is `prompt`.
    ///
    /// A model pretrained on such captions obeys its prompts only in part, which leaves reinforcement learning
    /// something to improve.
    /// The answer depends on `(prompt, fraction, seed, index)` only, and a caption that is noisy at one fraction is
    /// noisy in the same way at every larger one.
    ///
    /// # Errors
    /// [`DataError::Setting`] unless `fraction` is in [0, 1]; [`DataError::ForeignPrompt`] for a prompt of another
    /// data set.
    fn noisy_prompt(
        &self,
        prompt: &Prompt,
        fraction: f32,
        seed: u64,
        index: u64,
    ) -> Result<Prompt, DataError>;

    /// What to cite where the data are used, if they come from somewhere.
    fn citation(&self) -> Option<&'static str> {
        None
    }

    /// The prompts that reinforcement learning trains on, in the order of the ids.
    fn train_prompts(&self) -> Vec<Prompt> {
        self.prompts()
            .iter()
            .filter(|prompt| !self.is_held_out(prompt))
            .cloned()
            .collect()
    }

    /// The prompts that reinforcement learning never sees, in the order of the ids.
    fn held_out_prompts(&self) -> Vec<Prompt> {
        self.prompts()
            .iter()
            .filter(|prompt| self.is_held_out(prompt))
            .cloned()
            .collect()
    }

    /// The prompt with an id.
    ///
    /// # Errors
    /// [`DataError::UnknownPromptId`].
    fn prompt(&self, id: u32) -> Result<&Prompt, DataError> {
        self.prompts()
            .get(id as usize)
            .ok_or_else(|| DataError::UnknownPromptId {
                dataset: self.name().to_owned(),
                id,
                count: self.prompts().len(),
            })
    }

    /// The empty condition of classifier-free guidance: [`Dataset::prompt_length`] times [`NULL_TOKEN`].
    fn null_tokens(&self) -> Vec<u32> {
        vec![NULL_TOKEN; self.prompt_length()]
    }
}

pub(crate) fn check_fraction(fraction: f32) -> Result<(), DataError> {
    if (0.0..=1.0).contains(&fraction) {
        return Ok(());
    }
    Err(DataError::Setting {
        setting: "caption_noise",
        value: fraction.to_string(),
        allowed: "it is the share of captions that are wrong, from 0 to 1",
    })
}

pub(crate) fn check_index(dataset: &dyn Dataset, index: u64) -> Result<(), DataError> {
    let len = dataset.len();
    if index < len {
        return Ok(());
    }
    Err(DataError::IndexOutOfRange {
        dataset: dataset.name().to_owned(),
        index,
        len,
    })
}
