//! Places of the entries of a zip archive that are stored without compression.

use std::collections::BTreeMap;
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
        if entries.insert(name.to_owned(), range).is_some() {
            return Err(format!("it has two entries called `{name}`"));
        }
    }
    Ok(entries)
}

/// The range of `size` bytes from `start` on, of a file of `length`.
fn place(start: u64, size: u64, length: usize) -> Option<Range<usize>> {
    let (start, size) = (usize::try_from(start).ok()?, usize::try_from(size).ok()?);
    let end = start.checked_add(size)?;
    (end <= length).then_some(start..end)
}
