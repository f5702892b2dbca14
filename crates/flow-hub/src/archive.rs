//! Entries of a zip archive, such as a Python package is.

use std::io::{Cursor, Read};
use zip::ZipArchive;
use zip::result::ZipError;

/// The content of the entry `name` of the archive `bytes`, which must have `size_bytes`.
///
/// # Errors
/// What is wrong, as a sentence part.
pub(crate) fn content(bytes: &[u8], name: &str, size_bytes: u64) -> Result<Vec<u8>, String> {
    let mut archive = ZipArchive::new(Cursor::new(bytes))
        .map_err(|error| format!("it is no whole zip archive ({error}); perhaps a download was cut off"))?;
    let entry = archive.by_name(name).map_err(|error| match error {
        ZipError::FileNotFound => format!("it has no entry `{name}`"),
        ZipError::CompressionMethodNotSupported(method) => {
            format!("its entry `{name}` is compressed by method {method}, and 0 and 8 are read here")
        }
        other => format!("its entry `{name}` cannot be read: {other}"),
    })?;
    let mut content = Vec::new();
    // One more than there should be, so that more shows.
    let read = entry.take(size_bytes + 1).read_to_end(&mut content);
    read.map_err(|error| format!("its entry `{name}` cannot be unpacked: {error}"))?;
    if content.len() as u64 != size_bytes {
        return Err(format!(
            "its entry `{name}` has not the {size_bytes} bytes that it should have"
        ));
    }
    Ok(content)
}
