//! Files of weights that a config names and that are not there.

use crate::error::TrainError;
use std::path::{Path, PathBuf};

/// A file of weights that a config names and that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AbsentFile {
    /// `model.weights`.
    Weights {
        /// The file or folder.
        file: PathBuf,
        /// What to do.
        help: String,
    },
    /// `model.adapter`.
    Adapter {
        /// Where its path starts, for a person.
        start: String,
        /// The file or folder.
        file: PathBuf,
    },
}

impl AbsentFile {
    /// The key that names it, and the file.
    pub fn named(&self) -> (&'static str, &Path) {
        match self {
            Self::Weights { file, .. } => ("model.weights", file),
            Self::Adapter { file, .. } => ("model.adapter", file),
        }
    }

    /// That there is no model without it.
    pub fn error(&self) -> TrainError {
        match self.clone() {
            Self::Weights { file, help } => TrainError::NoWeights { file, help },
            Self::Adapter { start, file } => TrainError::NoAdapter { start, file },
        }
    }
}
