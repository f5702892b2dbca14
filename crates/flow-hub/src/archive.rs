//! Entries of a zip archive, such as a Python package is.
//!
//! Source: PKWARE, APPNOTE.TXT 6.3.10, sections 4.3.7 (local header), 4.3.12 (central directory), 4.3.16 (end), 4.4.5 (methods).

use flate2::read::DeflateDecoder;
use std::io::Read;

/// Length of the end record without its comment, and the longest comment.
const END: usize = 22;
const LONGEST_COMMENT: usize = u16::MAX as usize;
/// Methods of compression.
const STORED: u64 = 0;
const DEFLATED: u64 = 8;

/// Where an entry's compressed bytes are, and how they are compressed.
struct Entry {
    method: u64,
    compressed_bytes: usize,
    local: usize,
}

/// The content of the entry `name` of the archive `bytes`, which must have `size_bytes`.
///
/// # Errors
/// What is wrong, as a sentence part.
pub(crate) fn content(bytes: &[u8], name: &str, size_bytes: u64) -> Result<Vec<u8>, String> {
    let entry = find(bytes, name)?;
    let packed = packed(bytes, &entry).ok_or_else(|| format!("its entry `{name}` is cut off"))?;
    let mut content = Vec::new();
    // One more than there should be, so that more shows.
    let wrong = |error: std::io::Error| format!("its entry `{name}` cannot be unpacked: {error}");
    match entry.method {
        STORED => packed.take(size_bytes + 1).read_to_end(&mut content),
        DEFLATED => DeflateDecoder::new(packed)
            .take(size_bytes + 1)
            .read_to_end(&mut content),
        other => {
            return Err(format!(
                "its entry `{name}` is compressed by method {other}, and 0 and 8 are read here"
            ));
        }
    }
    .map_err(wrong)?;
    if content.len() as u64 != size_bytes {
        return Err(format!(
            "its entry `{name}` has not the {size_bytes} bytes that it should have"
        ));
    }
    Ok(content)
}

/// The entry of the central directory with this name.
fn find(bytes: &[u8], name: &str) -> Result<Entry, String> {
    let cut = || "it is no whole zip archive; perhaps a download was cut off".to_owned();
    let (mut left, mut at) = directory(bytes).ok_or_else(cut)?;
    while left > 0 {
        let header = bytes.get(at..).filter(|rest| rest.starts_with(b"PK\x01\x02"));
        let header = header.ok_or_else(cut)?;
        let lengths = [28, 30, 32].map(|place| number(header, place, 2).map(|length| length as usize));
        let [Some(of_name), Some(of_extra), Some(of_comment)] = lengths else {
            return Err(cut());
        };
        let found = header.get(46..46 + of_name).ok_or_else(cut)?;
        if found == name.as_bytes() {
            return Entry::read(header)
                .ok_or_else(|| format!("its entry `{name}` has 4 GiB or more, which is not read here"));
        }
        at += 46 + of_name + of_extra + of_comment;
        left -= 1;
    }
    Err(format!("it has no entry `{name}`"))
}

/// Number of entries, and where their directory begins.
fn directory(bytes: &[u8]) -> Option<(u64, usize)> {
    let from = bytes.len().checked_sub(END)?;
    let until = from.saturating_sub(LONGEST_COMMENT);
    let end = (until..=from)
        .rev()
        .find(|at| bytes[*at..].starts_with(b"PK\x05\x06"))?;
    Some((number(bytes, end + 10, 2)?, number(bytes, end + 16, 4)? as usize))
}

impl Entry {
    fn read(header: &[u8]) -> Option<Self> {
        let method = number(header, 10, 2)?;
        let sizes = [20, 42].map(|at| number(header, at, 4).filter(|value| *value != u64::from(u32::MAX)));
        let [Some(compressed), Some(local)] = sizes else {
            return None;
        };
        Some(Self {
            method,
            compressed_bytes: usize::try_from(compressed).ok()?,
            local: usize::try_from(local).ok()?,
        })
    }
}

/// The compressed bytes of an entry.
fn packed<'a>(bytes: &'a [u8], entry: &Entry) -> Option<&'a [u8]> {
    let header = bytes.get(entry.local..)?;
    header.starts_with(b"PK\x03\x04").then_some(())?;
    let (of_name, of_extra) = (number(header, 26, 2)?, number(header, 28, 2)?);
    let start = 30 + of_name as usize + of_extra as usize;
    header.get(start..start.checked_add(entry.compressed_bytes)?)
}

/// A little-endian number of `count` bytes.
fn number(bytes: &[u8], at: usize, count: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(count)?)?;
    let number = bytes.iter().rev();
    Some(number.fold(0, |number, byte| number << 8 | u64::from(*byte)))
}
