//! The errors of this crate, worded for the person who has to mend them.

use crate::image::ImageShape;

/// A data set cannot be built, or was asked for something that it does not hold.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// No data set is registered under this name.
    #[error(transparent)]
    NotFound(#[from] flow_registry::NotFound),
    /// Parameters that a data set does not have or that are missing, and values that do not fit.
    #[error("data set `{dataset}`, parameters: {problem}")]
    Params {
        /// Name of the data set.
        dataset: String,
        /// What is wrong, with the name of the parameter and what is allowed.
        problem: String,
    },
    /// An example index beyond the end.
    #[error("data set `{dataset}` has {len} examples (0 to {}), and example {index} was asked for", len.saturating_sub(1))]
    IndexOutOfRange {
        /// Name of the data set.
        dataset: String,
        /// The index asked for.
        index: u64,
        /// Number of examples.
        len: u64,
    },
    /// A prompt id that the data set does not have.
    #[error("data set `{dataset}` has no prompt with id {id}; its ids are 0 to {}", count.saturating_sub(1))]
    UnknownPromptId {
        /// Name of the data set.
        dataset: String,
        /// The id asked for.
        id: u32,
        /// Number of prompts.
        count: usize,
    },
    /// A prompt that belongs to another data set.
    #[error("prompt \"{text}\" does not belong to data set `{dataset}`")]
    ForeignPrompt {
        /// Name of the data set.
        dataset: String,
        /// Text of the prompt.
        text: String,
    },
    /// A setting outside its range.
    #[error("`{setting} = {value}` is not allowed: {allowed}")]
    Setting {
        /// Name of the setting, as the user writes it.
        setting: &'static str,
        /// The value found.
        value: String,
        /// What is allowed, as a sentence part.
        allowed: &'static str,
    },
    /// A line of a digits file that cannot be read.
    #[error("digits data, line {line}: {problem}")]
    DigitsLine {
        /// Line number, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// A file of prompts that cannot be used.
    #[error("{problem}")]
    PromptsFile {
        /// The file, what is wrong with it, and how to mend it.
        problem: String,
    },
    /// Pictures, or lists of them, that cannot be used.
    #[error("{problem}")]
    Pictures {
        /// The file or folder, its line, what is wrong, and how to mend it.
        problem: String,
    },
    /// Digits data that can be read but not used.
    #[error("digits data: {problem}")]
    DigitsData {
        /// What is wrong with it.
        problem: String,
    },
    /// Pixels that do not fill the shape.
    #[error("an image of {shape} takes {} pixel values, and {found} were given", shape.len())]
    PixelCount {
        /// The shape asked for.
        shape: ImageShape,
        /// Number of values given.
        found: usize,
    },
}

/// A prompt text that no prompt of the data set matches.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// A word outside the data set's vocabulary.
    #[error("prompt \"{text}\": the word \"{word}\" is not known{}; the words are: {}", crate::suggest::hint(nearest), known.join(", "))]
    UnknownWord {
        /// The whole text.
        text: String,
        /// The word.
        word: String,
        /// The nearest known word, if one is near.
        nearest: Option<String>,
        /// Every word that is understood.
        known: Vec<String>,
    },
    /// A part of the prompt is missing.
    #[error("prompt \"{text}\" lacks {missing}; a prompt reads like {example}")]
    Missing {
        /// The whole text.
        text: String,
        /// What is missing, with its choices.
        missing: String,
        /// A prompt that works.
        example: String,
    },
    /// Two words for one part.
    #[error("prompt \"{text}\" names {part} twice, \"{first}\" and \"{second}\"; keep one of them")]
    Twice {
        /// The whole text.
        text: String,
        /// Which part.
        part: &'static str,
        /// The first word.
        first: String,
        /// The second word.
        second: String,
    },
    /// A combination of words that means nothing in this data set.
    #[error("prompt \"{text}\": {problem}")]
    Combination {
        /// The whole text.
        text: String,
        /// What is wrong, and how to mend it.
        problem: String,
    },
}
