//! Text and JSON of a folder, with an answer for each way in which a file is not what its name says.

use crate::TokenizerError;
use serde::de::DeserializeOwned;
use std::fs;
use std::io;
use std::path::Path;

/// The beginning of what git leaves in place of a file that git-lfs was to fetch.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// The text of `path`, or nothing if there is no such file.
pub(crate) fn text(path: &Path) -> Result<Option<String>, TokenizerError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(TokenizerError::Io {
                path: path.to_owned(),
                source,
            });
        }
    };
    if bytes.starts_with(POINTER) {
        return Err(problem(
            path,
            "it is a pointer of git-lfs, and the file itself was not fetched. Run `git lfs pull` in its repository, or \
             download the folder again",
        ));
    }
    if bytes.is_empty() {
        return Err(problem(path, "it is empty; download it again"));
    }
    if bytes.starts_with(b"<!") || bytes.starts_with(b"<html") {
        return Err(problem(
            path,
            "it is a page of HTML, as a server answers that refused a download; download it again, logged in if the \
             model asks for it",
        ));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        problem(
            path,
            &format!("byte {at} is no UTF-8; the file is damaged, so download it again"),
        )
    })?;
    // Windows' editors put a byte order mark in front.
    Ok(Some(match text.strip_prefix('\u{feff}') {
        Some(rest) => rest.to_owned(),
        None => text,
    }))
}

/// The JSON of `path`, or nothing if there is no such file.
pub(crate) fn json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, TokenizerError> {
    let Some(text) = text(path)? else {
        return Ok(None);
    };
    let value = serde_json::from_str(&text).map_err(|error| {
        problem(
            path,
            &format!("its JSON cannot be read ({error}); if the file is cut off, download it again"),
        )
    })?;
    Ok(Some(value))
}

pub(crate) fn problem(path: &Path, problem: &str) -> TokenizerError {
    TokenizerError::File {
        path: path.to_owned(),
        problem: problem.to_owned(),
    }
}
