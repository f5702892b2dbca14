//! What can be wrong with a pipeline's folder, or with what is asked of it.

use flow_autoencoder::AutoencoderError;
use flow_diffusers::FolderError;
use flow_models::ModelError;
use flow_text_encoder::EncoderError;
use flow_tokenizer::TokenizerError;
use std::path::PathBuf;

/// Why a pipeline does not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// The folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A text encoder.
    #[error(transparent)]
    Encoder(#[from] EncoderError),
    /// The transformer.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The autoencoder.
    #[error(transparent)]
    Autoencoder(#[from] AutoencoderError),
    /// A pipeline whose transformer is not here yet.
    #[error("`{}` is a `{class}`, whose transformer is not computed here yet; pipelines that are: {known}", path.display())]
    Unsupported {
        /// The folder.
        path: PathBuf,
        /// Its class.
        class: String,
        /// Classes that are computed.
        known: String,
    },
    /// A size of pictures that the pipeline does not make.
    #[error("pictures of {found}: {problem}")]
    Size {
        /// Width, height and frames.
        found: String,
        /// What is wrong, and what would do.
        problem: String,
    },
    /// Something that was asked for.
    #[error("`{setting}` {problem}")]
    Setting {
        /// What.
        setting: &'static str,
        /// What is wrong, and what would do.
        problem: String,
    },
    /// A prompt that was not encoded before.
    #[error("the prompt \"{prompt}\" was not encoded")]
    NotEncoded {
        /// The prompt.
        prompt: String,
    },
    /// An entry of the cache of prompts that cannot be used.
    #[error("the encoded prompt `{}`: {problem}", path.display())]
    Entry {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// A picture that cannot be encoded.
    #[error("{problem}")]
    Picture {
        /// The picture, what is wrong with it, and how to mend it.
        problem: String,
    },
    /// An entry of the cache of encoded pictures that cannot be used.
    #[error("the encoded picture `{}`: {problem}", path.display())]
    Latent {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// A file of a cache.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}
