//! Errors, worded for the person who has to mend them.

use flow_diffusers::FolderError;
use std::path::PathBuf;

/// A tokenizer cannot be read, or a text cannot be encoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A file of the folder cannot be read or used.
    #[error(transparent)]
    Reading(#[from] FolderError),
    /// The path is no folder of a tokenizer.
    #[error("`{}` is no folder of a tokenizer: {problem}", folder.display())]
    Folder {
        /// The path.
        folder: PathBuf,
        /// What is there instead, and what to do.
        problem: String,
    },
    /// A length that no row can have.
    #[error("a row of {length} tokens is not possible: {problem}")]
    Length {
        /// The length asked for.
        length: usize,
        /// Why not, and what is allowed.
        problem: String,
    },
    /// A pipeline was given the tokenizer of another class.
    #[error("{pipeline} needs a tokenizer of the class {expected}, and this one is of the class {found}")]
    OtherClass {
        /// Who asks.
        pipeline: &'static str,
        /// The class needed.
        expected: &'static str,
        /// The class given.
        found: &'static str,
    },
    /// The vocabulary is not the one that a pipeline's template was written for.
    #[error("{pipeline}: {problem}")]
    Template {
        /// Who asks.
        pipeline: &'static str,
        /// What is different.
        problem: String,
    },
    /// A text that cannot be encoded.
    #[error("cannot make tokens of the text that begins \"{beginning}\": {problem}")]
    Text {
        /// Its first characters.
        beginning: String,
        /// Why not.
        problem: String,
    },
}
