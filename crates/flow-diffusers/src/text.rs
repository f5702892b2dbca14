//! Text and JSON, with an answer for each way in which a file is not what its name says.

use crate::FolderError;
use crate::safetensors::LFS_POINTER;
use serde::de::DeserializeOwned;
use std::fs;
use std::io;
use std::path::Path;

/// The text of `path` without a byte order mark, or `None` if there is no such file.
///
/// # Errors
/// [`FolderError::Io`]; [`FolderError::File`] for an empty file, a pointer of Git LFS, a page of HTML and bytes that are no UTF-8.
pub fn read_text(path: &Path) -> Result<Option<String>, FolderError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(FolderError::Io {
                action: "read",
                path: path.to_owned(),
                source,
            });
        }
    };
    let refused = |problem: String| {
        Err(FolderError::File {
            path: path.to_owned(),
            problem,
        })
    };
    if bytes.is_empty() {
        return refused("it is empty; download it again".into());
    }
    if bytes.starts_with(LFS_POINTER) {
        return refused(
            "it is a pointer of Git LFS, and the file itself was not fetched: run `git lfs pull` in its folder, or download \
             the folder again"
                .into(),
        );
    }
    if bytes.starts_with(b"<!") || bytes.starts_with(b"<html") {
        return refused(
            "it is a page of HTML, as a server answers that refuses a download; log in, accept the model's terms if it asks \
             for that, and download it again"
                .into(),
        );
    }
    match String::from_utf8(bytes) {
        // Windows' editors put a byte order mark in front.
        Ok(text) => Ok(Some(match text.strip_prefix('\u{feff}') {
            Some(rest) => rest.to_owned(),
            None => text,
        })),
        Err(error) => refused(format!(
            "byte {} is no UTF-8; the file is damaged, so download it again",
            error.utf8_error().valid_up_to()
        )),
    }
}

/// The JSON of `path`, or `None` if there is no such file.
///
/// # Errors
/// As [`read_text`]; [`FolderError::File`] for JSON that is damaged or of another form.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, FolderError> {
    let Some(text) = read_text(path)? else {
        return Ok(None);
    };
    let value = serde_json::from_str(&text).map_err(|error| FolderError::File {
        path: path.to_owned(),
        problem: format!("its JSON cannot be read ({error}); if the file is cut off, download it again"),
    })?;
    Ok(Some(value))
}
