//! Paths of a config as texts, for `run.json`, checkpoints and comparisons. A name that is no UTF-8 is written with the sign for
//! what cannot be read, since JSON and TOML have no other: nobody opens a file by what stands there.

use std::path::{Path, PathBuf};

use serde::Serializer;

/// A path as a text.
pub(crate) fn path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// A path as a text, or nothing.
pub(crate) fn option<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    match path {
        Some(path) => serializer.serialize_some(&path.to_string_lossy()),
        None => serializer.serialize_none(),
    }
}
