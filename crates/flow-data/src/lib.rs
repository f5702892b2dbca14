//! Datasets and prompts for flow-train: files of prompts, the UCI handwritten digits, procedural scenes of coloured shapes, and words in fonts.
//!
//! The crate knows nothing of tensors or training.
//! It hands out [`Image`]s (`f32`, [-1, 1]) and [`Prompt`]s (a stable id, a text, token ids, and a structured
//! [`PromptSpec`] that rewards read), and it splits the prompts into those that reinforcement learning trains on
//! and those that are held out.
//! Everything is a pure function of its arguments: [`CaptionedImages::example`] depends on the settings and the index and
//! on nothing else, so any order and any number of threads give the same images.
//!
//! | data set | images | prompts | held out |
//! |---|---|---|---|
//! | [`Digits`] | 1,797 of 1×8×8 | "thin\|medium\|bold k", 30 | 10, one for each digit |
//! | [`Images`] | pictures of files, fitted to a size | their captions, any text | those of a second folder, or a share |
//! | [`Preferences`] | pairs of pictures of files, one of each liked better | of the pairs, any text | those of a second file, or a share |
//! | [`Prompts`] | none | of a file, any text | those of a second file, or a share |
//! | [`Shapes`] | rendered, 3×24×24 by default | "three red circles", "one blue square on the left", 126 | 9 of the 54 (count, colour, shape) |
//! | [`Words`] | drawn, 3×32×64 by default | `the word "r i v e r"`, 4,000 by default | every tenth |
//!
//! [`PromptList`] reads files of prompts, as text with metadata.
//!
//! ```
//! use flow_data::{CaptionedImages, Dataset, Digits, TokenizedPrompts};
//!
//! let digits = Digits::new()?;
//! let prompt = digits.parse_prompt("bold 7")?;
//! assert_eq!(prompt.text, "bold 7");
//! assert_eq!(prompt.tokens.len(), digits.prompt_length());
//! let example = digits.example(0)?;
//! assert_eq!(example.image.pixels_chw.len(), 64);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod dataset;
mod digits;
mod error;
mod held_out;
mod image;
mod images;
mod parse;
pub mod picture;
mod prompt;
pub mod prompt_list;
mod prompts_file;
mod registry;
mod shapes;
mod suggest;
mod vocabulary;
mod words;

pub use dataset::{
    CaptionedImages, CaptionedPictures, Dataset, Example, FREE_PROMPT_ID, PreferencePairs, TokenizedPrompts,
};
pub use digits::{DIGITS_CITATION, Digits, DigitsSettings, DigitsSplit, HELD_OUT_WEIGHT};
pub use error::{DataError, PromptError};
pub use image::{Image, ImageShape};
pub use images::{
    BucketSettings, BucketSize, Buckets, Images, ImagesSettings, Preferences, PreferencesSettings,
};
pub use picture::{Picture, PictureError};
pub use prompt::{Colour, Position, Prompt, PromptSpec, Shape, Weight};
pub use prompt_list::{
    PROMPT_KEY, PromptEntry, PromptFormat, PromptList, PromptListError, PromptNote, TestShare,
};
pub use prompts_file::{Prompts, PromptsSettings};
pub use registry::{DatasetFactory, DatasetRegistry};
pub use shapes::render::{BACKGROUND, Object, Scene};
pub use shapes::{HELD_OUT_COLOUR, Shapes, ShapesSettings};
pub use vocabulary::{NULL_TOKEN, PAD_TOKEN, Vocabulary};
pub use words::{WORD_LETTERS, Words, WordsSettings};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
