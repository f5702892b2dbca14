//! The traits that trainers, samplers and the command line use, whatever the data are.

use crate::error::{DataError, PromptError};
use crate::image::{Image, ImageShape};
use crate::images::BucketSettings;
use crate::picture::Picture;
use crate::prompt::Prompt;
use crate::vocabulary::{NULL_TOKEN, Vocabulary};
use flow_rng::{Draws, Purpose, Stream};
use std::path::Path;

/// One image with its true caption.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// The image.
    pub image: Image,
    /// What it shows.
    pub prompt: Prompt,
}

/// A data set: prompts to train on and prompts that are held out. Some have tokens ([`TokenizedPrompts`]), some have images
/// ([`CaptionedImages`]) or pictures of any size ([`CaptionedPictures`]).
///
/// Every method is a pure function: the same call gives the same answer on every thread and in every run.
pub trait Dataset: Send + Sync {
    /// The name by which a config asks for it.
    fn name(&self) -> &str;

    /// Every prompt in the order of the ids.
    fn prompts(&self) -> &[Prompt];

    /// Whether a prompt is held out from reinforcement learning and kept for evaluation.
    fn is_held_out(&self, prompt: &Prompt) -> bool;

    /// The prompt that has `text`. A data set of known words takes other spellings of a prompt (case, plural, digits for number
    /// words, filler words); one of free text takes any text, and gives [`FREE_PROMPT_ID`] to one that it does not list.
    ///
    /// # Errors
    /// [`PromptError`], which names the word that is unknown and the nearest one, or the part that is missing.
    fn parse_prompt(&self, text: &str) -> Result<Prompt, PromptError>;

    /// Its prompts as tokens of a small vocabulary, for models that learn to read them from the start. A data set of free text
    /// has none: text encoders read it.
    fn tokenized(&self) -> Option<&dyn TokenizedPrompts> {
        None
    }

    /// Its images, for pretraining.
    fn captioned_images(&self) -> Option<&dyn CaptionedImages> {
        None
    }

    /// Its pictures of any size, for pretraining in latents: whoever encodes them says what they are fitted to.
    fn captioned_pictures(&self) -> Option<&dyn CaptionedPictures> {
        None
    }

    /// Its pairs of pictures of which one is liked better, for training on preferences.
    fn preferences(&self) -> Option<PreferencePairs<'_>> {
        None
    }

    /// What to cite where the data are used, if they come from somewhere.
    fn citation(&self) -> Option<&str> {
        None
    }

    /// Where a prompt stands, in words, if it stands somewhere: "`prompts.txt`, line 3".
    fn place(&self, _prompt: &Prompt) -> Option<String> {
        None
    }

    /// What the owner of the data may want to know, such as prompts that are there twice.
    fn notes(&self) -> Vec<String> {
        Vec::new()
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
}

/// Pairs of pictures for one prompt each, of which one is liked better.
#[derive(Clone, Copy)]
pub struct PreferencePairs<'a> {
    /// Both of each pair, of any size: picture `2 i` is the better one of pair `i`, picture `2 i + 1` the other.
    pub pictures: &'a dyn CaptionedPictures,
    /// The same pictures fitted to one size, for a model of pixels, if a size is given.
    pub images: Option<&'a dyn CaptionedImages>,
}

/// The id of a prompt that its data set does not list.
pub const FREE_PROMPT_ID: u32 = u32::MAX;

/// Prompts as tokens of a small vocabulary: [`Prompt::tokens`] of every prompt are filled in.
pub trait TokenizedPrompts: Send + Sync {
    /// Words and token ids of the prompts.
    fn vocabulary(&self) -> &Vocabulary;

    /// Number of tokens of every prompt, padding included.
    fn prompt_length(&self) -> usize;

    /// The empty condition of classifier-free guidance: [`prompt_length`](Self::prompt_length) times [`NULL_TOKEN`].
    fn null_tokens(&self) -> Vec<u32> {
        vec![NULL_TOKEN; self.prompt_length()]
    }
}

/// Training images with their captions.
pub trait CaptionedImages: Send + Sync {
    /// Shape of every image.
    fn image_shape(&self) -> ImageShape;

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
}

/// Training pictures of files with their captions, of any size and encoded as the files are ([`Picture`](crate::Picture) decodes them).
pub trait CaptionedPictures: Send + Sync {
    /// Number of training pictures.
    fn len(&self) -> u64;

    /// Whether there is no training picture.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What a person finds a picture by, for messages: its path, and the line that names it.
    ///
    /// # Errors
    /// [`DataError::IndexOutOfRange`] unless `index < len()`.
    fn place(&self, index: u64) -> Result<String, DataError>;

    /// The bytes of a picture's file.
    ///
    /// # Errors
    /// As [`place`](Self::place); [`DataError::Pictures`] if the file cannot be read.
    fn bytes(&self, index: u64) -> Result<Vec<u8>, DataError>;

    /// Width and height of a picture in pixels, upright.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes); [`DataError::Pictures`] if it cannot be read.
    fn size(&self, index: u64) -> Result<(usize, usize), DataError> {
        let picture = Picture::decode(&self.bytes(index)?);
        let picture = picture.map_err(|error| match self.place(index) {
            Ok(place) => DataError::Pictures {
                problem: format!("the picture {place}: {error}"),
            },
            Err(out_of_range) => out_of_range,
        })?;
        Ok((picture.width(), picture.height()))
    }

    /// Sizes by the pictures' proportions that the user wants them fitted to; none: all to one.
    fn buckets(&self) -> Option<&BucketSettings> {
        None
    }

    /// The caption of a picture.
    ///
    /// # Errors
    /// As [`place`](Self::place).
    fn caption(&self, index: u64) -> Result<&Prompt, DataError>;

    /// As [`CaptionedImages::noisy_prompt`].
    ///
    /// # Errors
    /// As [`CaptionedImages::noisy_prompt`].
    fn noisy_prompt(
        &self,
        prompt: &Prompt,
        fraction: f32,
        seed: u64,
        index: u64,
    ) -> Result<Prompt, DataError>;

    /// Folder in which the user wants encoded pictures to be kept; none: wherever the trainer keeps them.
    fn cache(&self) -> Option<&Path> {
        None
    }
}

/// Refuses the value of a setting unless it `fits`.
pub(crate) fn check_setting(
    fits: bool,
    setting: &'static str,
    value: impl ToString,
    allowed: &'static str,
) -> Result<(), DataError> {
    match fits {
        true => Ok(()),
        false => Err(DataError::Setting {
            setting,
            value: value.to_string(),
            allowed,
        }),
    }
}

/// Refuses a data set without training images.
pub(crate) fn check_images(images: u64) -> Result<(), DataError> {
    let allowed = "there must be at least one training image";
    check_setting(images > 0, "images", images, allowed)
}

/// The noise of the caption at `index`, from which is drawn what is wrong in it; none for one that stays right.
pub(crate) fn caption_noise(fraction: f32, seed: u64, index: u64) -> Result<Option<Draws>, DataError> {
    let allowed = "it is the share of captions that are wrong, from 0 to 1";
    check_setting(
        (0.0..=1.0).contains(&fraction),
        "caption_noise",
        fraction,
        allowed,
    )?;
    let mut draws = Stream::new(seed, Purpose::Captions).at(index, 1);
    let is_noisy = draws.uniform() < f64::from(fraction);
    Ok(is_noisy.then_some(draws))
}

/// The error for a `prompt` that the data set does not have.
pub(crate) fn foreign_prompt(dataset: &str, prompt: &Prompt) -> DataError {
    DataError::ForeignPrompt {
        dataset: dataset.to_owned(),
        text: prompt.text.clone(),
    }
}

pub(crate) fn check_index(dataset: &str, len: u64, index: u64) -> Result<(), DataError> {
    if index < len {
        return Ok(());
    }
    Err(DataError::IndexOutOfRange {
        dataset: dataset.to_owned(),
        index,
        len,
    })
}
