//! What can go wrong with a model's settings and weights, told to a person.

use crate::weights::{Difference, LoadReport};
use flow_core::CoreError;
use std::path::PathBuf;

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// No architecture of that name is registered.
    #[error(transparent)]
    NotFound(#[from] flow_registry::NotFound),
    /// The dimensions of a config that an architecture does not have or that are missing, and values that do not fit.
    #[error("dimensions of architecture `{architecture}`: {problem}")]
    Dimensions {
        /// The architecture.
        architecture: String,
        /// What is wrong with which of them, and what is allowed.
        problem: String,
    },
    /// Settings do not describe a model.
    #[error("settings of architecture `{architecture}`: `{setting}`: {problem}")]
    Settings {
        /// The architecture.
        architecture: &'static str,
        /// Path of the setting at fault, `.` for the whole.
        setting: String,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// An adapter was asked for that cannot be.
    #[error("adapters: {0}")]
    Adapter(String),
    /// A file cannot be the adapter of a model.
    #[error("{0}")]
    AdapterFile(String),
    /// Reading or writing failed.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A weight file is damaged, or no weight file.
    #[error("`{}` is not a readable weight file: {problem}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong, and how to mend it.
        problem: String,
    },
    /// Weights say that they are of a model with other constants.
    #[error("`{}` is of another model:{}", from.display(), list(differences))]
    OtherModel {
        /// The file that says so.
        from: PathBuf,
        /// What differs.
        differences: Vec<Difference>,
    },
    /// A weight file holds other tensors than the model.
    #[error(transparent)]
    Mismatch(Box<LoadReport>),
    /// A value cannot be stored in the precision asked for.
    #[error(
        "weight `{name}` holds {value:e}, beyond the range of {dtype} (±{limit:e}); store it as f32 or bf16"
    )]
    OutOfRange {
        /// The weight.
        name: String,
        /// Its first value out of range.
        value: f32,
        /// The precision.
        dtype: &'static str,
        /// The largest value it holds.
        limit: f32,
    },
    /// Below the model.
    #[error(transparent)]
    Core(#[from] CoreError),
}

/// What differs, one line each.
fn list(differences: &[Difference]) -> String {
    let line = |it: &Difference| match &it.ours {
        Some(ours) => format!("\n    `{}` is {} there, and {ours} here", it.key, it.theirs),
        None => format!(
            "\n    `{}` is {} there, and no constant of this architecture",
            it.key, it.theirs
        ),
    };
    differences.iter().map(line).collect()
}
