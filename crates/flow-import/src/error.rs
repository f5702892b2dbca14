//! What stops a conversion: a text that cannot be read at all. A key that cannot be converted stops nothing; it
//! becomes a comment and a note.

/// Why a text is not a config that could be converted. Lines and columns count from 1, columns in characters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The text is not YAML.
    #[error("line {line}, column {column}: this is not YAML: {message}")]
    Syntax {
        /// Line.
        line: usize,
        /// Column.
        column: usize,
        /// What the parser expected or found.
        message: String,
    },
    /// The text is YAML, but its top level is not a map of sections.
    #[error(
        "line {line}, column {column}: a Flow-Factory config is a map of sections (`model:`, `train:`, …), but this is \
         {found}"
    )]
    NotAMap {
        /// Line.
        line: usize,
        /// Column.
        column: usize,
        /// What is there instead.
        found: String,
    },
    /// The text is no config of Flow-Factory.
    #[error(
        "this is no config of Flow-Factory: {looks}. Nothing was converted; a config of Flow-Factory has sections such as \
         `model:` with `model_type`, `train:` with `trainer_type` and `scheduler:` with `dynamics_type`"
    )]
    NotFlowFactory {
        /// What it looks like, such as "it looks like a config of axolotl (`base_model`, `sequence_len`)".
        looks: String,
    },
    /// A map has a key twice. PyYAML takes the last one without a word, so one of the two is not what was meant.
    #[error(
        "line {line}, column {column}: `{key}` is there already, in line {first_line}; remove one of the two"
    )]
    RepeatedKey {
        /// Line of the second.
        line: usize,
        /// Column of the second.
        column: usize,
        /// The key.
        key: String,
        /// Line of the first.
        first_line: usize,
    },
    /// YAML that no Flow-Factory config needs.
    #[error("line {line}, column {column}: {what}")]
    Unsupported {
        /// Line.
        line: usize,
        /// Column.
        column: usize,
        /// What it is, and what to do.
        what: String,
    },
}
