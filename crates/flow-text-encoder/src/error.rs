//! What can go wrong with a text encoder's folder, settings and tokens, told to a person.

use flow_core::CoreError;
use flow_models::ModelError;
use std::path::PathBuf;

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncoderError {
    /// A folder is not that of a text encoder, or not whole.
    #[error("`{}`: {problem}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What is wrong, and how to mend it.
        problem: String,
    },
    /// A `config.json` describes no encoder that is known here.
    #[error("`{}`: `{key}` {problem}", from.display())]
    Config {
        /// The file.
        from: PathBuf,
        /// The key at fault, `.` for the whole.
        key: String,
        /// What is wrong, and what is allowed.
        problem: String,
    },
    /// Tokens do not fit an encoder.
    #[error("tokens: {0}")]
    Tokens(String),
    /// Pixels do not fit an encoder.
    #[error("pixels: {0}")]
    Pixels(String),
    /// Outputs of encoders do not make the embeddings of a pipeline.
    #[error("prompt embeddings: {0}")]
    Embeds(String),
    /// Weights cannot be read, or are those of something else.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Below the encoder.
    #[error(transparent)]
    Core(#[from] CoreError),
}
