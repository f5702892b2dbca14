//! Places of the entries of a zip archive that are stored without compression.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;
use std::ops::Range;
use zip::result::ZipError;
use zip::{CompressionMethod, ZipArchive};

/// Entries by their names, each with where its bytes are.
pub type Entries = BTreeMap<String, Range<usize>>;

/// The entries of the zip `bytes`.
pub fn of_zip(bytes: &[u8]) -> Result<Entries, String> {
    let cut = |problem: &str| {
        format!("it is no whole zip, which `torch.save` writes ({problem}); perhaps a download was cut off")
    };
    let damaged = |error: ZipError| cut(&error.to_string());
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(damaged)?;
    if let Some(name) = name_of_two(bytes, archive.central_directory_start()) {
        return Err(format!("it has two entries called `{}`", name.escape_debug()));
    }
    let mut entries = Entries::new();
    for index in 0..archive.len() {
        // Raw, since nothing is read of it here.
        let entry = archive.by_index_raw(index).map_err(damaged)?;
        let name = entry.name();
        if entry.compression() != CompressionMethod::Stored || entry.encrypted() {
            return Err(format!(
                "its entry `{name}` is compressed or encrypted, which `torch.save` never does"
            ));
        }
        let range = entry
            .data_start()
            .and_then(|start| place(start, entry.size(), bytes.len()));
        let range = range.ok_or_else(|| cut(&format!("its entry `{name}` ends beyond it")))?;
        entries.insert(name.to_owned(), range);
    }
    Ok(entries)
}

/// A name that two entries of the zip have: `ZipArchive` shows the last of them alone, and other readers may take the first. `start` is
/// where the directory of entries begins, each a header of fixed length with the lengths of the name, of more fields and of a comment
/// behind it (section 4.3.12 of PKWARE's APPNOTE).
fn name_of_two(bytes: &[u8], start: u64) -> Option<String> {
    const HEADER_BYTES: usize = 46;
    let mut rest = bytes.get(usize::try_from(start).ok()?..)?;
    let mut names = BTreeSet::new();
    while rest.starts_with(b"PK\x01\x02") {
        let length = |at: usize| {
            let length: [u8; 2] = rest.get(at..at + 2)?.try_into().ok()?;
            Some(usize::from(u16::from_le_bytes(length)))
        };
        let (name_bytes, more_bytes, comment_bytes) = (length(28)?, length(30)?, length(32)?);
        let name = rest.get(HEADER_BYTES..HEADER_BYTES + name_bytes)?;
        if !names.insert(name) {
            return Some(String::from_utf8_lossy(name).into_owned());
        }
        rest = rest.get(HEADER_BYTES + name_bytes + more_bytes + comment_bytes..)?;
    }
    None
}

/// The range of `size` bytes from `start` on, of a file of `length`.
fn place(start: u64, size: u64, length: usize) -> Option<Range<usize>> {
    let (start, size) = (usize::try_from(start).ok()?, usize::try_from(size).ok()?);
    let end = start.checked_add(size)?;
    (end <= length).then_some(start..end)
}
