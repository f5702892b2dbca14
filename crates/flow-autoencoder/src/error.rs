//! What can go wrong with an autoencoder's folder, settings and inputs, told to a person.

use flow_models::ModelError;
use std::path::PathBuf;

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AutoencoderError {
    /// There is no folder of an autoencoder at a path.
    #[error("`{}` is no folder of an autoencoder: {problem}", path.display())]
    Folder {
        /// The path.
        path: PathBuf,
        /// What is wrong, and how to mend it.
        problem: String,
    },
    /// A `config.json` does not describe an autoencoder that is known here.
    #[error("`{}`: `{setting}`: {problem}", path.display())]
    Config {
        /// The file, or `config.json` where settings were given as data.
        path: PathBuf,
        /// Name of the setting at fault, `.` for the whole.
        setting: String,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// Reading failed.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file is the pointer that Git LFS leaves where it did not fetch the file itself.
    #[error(
        "`{}` is a pointer of Git LFS and not the file itself, which was not downloaded: run `git lfs pull` in its repository, \
         or download the folder again",
        path.display()
    )]
    LfsPointer {
        /// The file.
        path: PathBuf,
    },
    /// Weights are stored with 8 bits.
    #[error(
        "`{}` holds weights in {dtype}, for instance `{name}`; read here are F32, BF16 and F16. Take the original folder of \
         the model, whose weights are not quantised",
        path.display()
    )]
    Quantised {
        /// What was loaded.
        path: PathBuf,
        /// A weight.
        name: String,
        /// Its precision.
        dtype: String,
    },
    /// Weights cannot be read or do not fit.
    #[error(transparent)]
    Weights(#[from] ModelError),
    /// A tensor does not fit the autoencoder.
    #[error("{what} is {found:?}: {problem}")]
    Shape {
        /// Which tensor, with its axes.
        what: &'static str,
        /// Its axes.
        found: Vec<usize>,
        /// What is allowed, and how to mend it.
        problem: String,
    },
    /// Tiles that cannot be blended.
    #[error("tiles of {tile} latent pixels, {stride} apart: {problem}")]
    Tiling {
        /// Side of a tile.
        tile: usize,
        /// From one tile to the next.
        stride: usize,
        /// What is allowed.
        problem: &'static str,
    },
}
