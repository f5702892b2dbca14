//! Errors of this crate.

use crate::low_precision::LowPrecisionFormat;
use flow_registry::Refusal;

/// What can go wrong below the model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CoreError {
    /// The device asked for is not in this build, or does not answer.
    #[error("the device `{asked}` is not there: {refusal}")]
    NoDevice {
        /// The device asked for.
        asked: String,
        /// What is missing, the build or the machine, and how to mend it.
        refusal: Refusal,
    },
    /// A weight was given values of another shape.
    #[error("weight `{name}` has shape {expected:?}, got {found:?}")]
    Shape {
        /// Name of the weight.
        name: String,
        /// Declared shape.
        expected: Vec<usize>,
        /// Shape given.
        found: Vec<usize>,
    },
    /// A weight that is to be stored in low precision holds a value that is not finite.
    #[error(
        "weight `{name}` holds a value that is not finite, for which there is no code in {format}; keep its layer as it is (`keep` of the \
         accelerator `low_precision`), or use another file"
    )]
    NotFinite {
        /// Name of the weight.
        name: String,
        /// How it was to be stored.
        format: LowPrecisionFormat,
    },
    /// Two weights were declared under one name.
    #[error("weight `{0}` is declared twice")]
    Duplicate(String),
    /// A weight that the layout does not have.
    #[error(
        "there is no weight `{name}`{}",
        .nearest.as_ref().map(|nearest| format!("; the nearest name is `{nearest}`")).unwrap_or_default()
    )]
    Unknown {
        /// The name asked for.
        name: String,
        /// The declared name nearest to it, if one is near.
        nearest: Option<String>,
    },
}
