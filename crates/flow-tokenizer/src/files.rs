//! Text and JSON of a folder, read by `flow-diffusers`, with this crate's errors.

use crate::TokenizerError;
use flow_diffusers::{FolderError, read_json, read_text};
use serde::de::DeserializeOwned;
use std::path::Path;

/// The text of `path`, or nothing if there is no such file.
pub(crate) fn text(path: &Path) -> Result<Option<String>, TokenizerError> {
    read_text(path).map_err(TokenizerError::from)
}

/// The JSON of `path`, or nothing if there is no such file.
pub(crate) fn json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, TokenizerError> {
    read_json(path).map_err(TokenizerError::from)
}

pub(crate) fn problem(path: &Path, problem: &str) -> TokenizerError {
    TokenizerError::Reading(FolderError::File {
        path: path.to_owned(),
        problem: problem.to_owned(),
    })
}
