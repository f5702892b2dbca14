//! Where the entries of a zip are whose entries are stored as they are.
//!
//! Source: PKWARE, APPNOTE.TXT 6.3.10, sections 4.3.7 (local header), 4.3.12 (central directory), 4.3.14 and 4.3.15 (zip64), 4.3.16 (end).

use std::collections::BTreeMap;
use std::ops::Range;

/// Length of the end record without its comment, and the longest comment.
const END: usize = 22;
const LONGEST_COMMENT: usize = u16::MAX as usize;
/// What stands in a field of 32 bits whose value is in a field of 64 elsewhere.
const ELSEWHERE: u64 = u32::MAX as u64;

/// Entries by their names, each with where its bytes are.
pub type Entries = BTreeMap<String, Range<usize>>;

/// The entries of the zip `bytes`.
pub fn entries(bytes: &[u8]) -> Result<Entries, String> {
    let cut = || "it is no whole zip, which `torch.save` writes; perhaps a download was cut off".to_owned();
    let (mut count, mut at) = directory(bytes).ok_or_else(cut)?;
    let mut entries = Entries::new();
    while count > 0 {
        let header = bytes.get(at..).filter(|rest| rest.starts_with(b"PK\x01\x02"));
        let header = header.ok_or_else(cut)?;
        let entry = Entry::read(header).ok_or_else(cut)?;
        if entry.method != 0 {
            return Err(format!(
                "its entry `{}` is compressed, which `torch.save` never does",
                entry.name
            ));
        }
        let range = place(bytes, entry.local, entry.size).ok_or_else(cut)?;
        if entries.insert(entry.name.clone(), range).is_some() {
            return Err(format!("it has two entries called `{}`", entry.name));
        }
        at += entry.length;
        count -= 1;
    }
    Ok(entries)
}

/// Number of entries, and where their directory begins.
fn directory(bytes: &[u8]) -> Option<(u64, usize)> {
    let from = bytes.len().checked_sub(END)?;
    let until = from.saturating_sub(LONGEST_COMMENT);
    let end = (until..=from)
        .rev()
        .find(|at| bytes[*at..].starts_with(b"PK\x05\x06"))?;
    let (count, start) = (number(bytes, end + 10, 2)?, number(bytes, end + 16, 4)?);
    if start != ELSEWHERE && count != u64::from(u16::MAX) {
        return Some((count, usize::try_from(start).ok()?));
    }
    let locator = end
        .checked_sub(20)
        .filter(|at| bytes[*at..].starts_with(b"PK\x06\x07"))?;
    let record = usize::try_from(number(bytes, locator + 8, 8)?).ok()?;
    bytes.get(record..)?.starts_with(b"PK\x06\x06").then_some(())?;
    let start = usize::try_from(number(bytes, record + 48, 8)?).ok()?;
    Some((number(bytes, record + 32, 8)?, start))
}

/// What the directory says of an entry.
struct Entry {
    name: String,
    method: u64,
    size: u64,
    local: u64,
    /// Of this part of the directory.
    length: usize,
}

impl Entry {
    fn read(header: &[u8]) -> Option<Self> {
        let [name, extra, comment] =
            [28, 30, 32].map(|at| number(header, at, 2).map(|length| length as usize));
        let (name, extra, comment) = (name?, extra?, comment?);
        let mut entry = Self {
            name: String::from_utf8(header.get(46..46 + name)?.to_vec()).ok()?,
            method: number(header, 10, 2)?,
            size: number(header, 24, 4)?,
            local: number(header, 42, 4)?,
            length: 46 + name + extra + comment,
        };
        let stored = number(header, 20, 4)?;
        let fields = header.get(46 + name..46 + name + extra)?;
        entry.widen(stored, fields)?;
        Some(entry)
    }

    /// Takes the numbers of 64 bits among the extra `fields`, in the order of the format, where those of 32 bits are full.
    fn widen(&mut self, stored: u64, mut fields: &[u8]) -> Option<()> {
        while fields.len() >= 4 {
            let (id, length) = (number(fields, 0, 2)?, number(fields, 2, 2)? as usize);
            let field = fields.get(4..4 + length)?;
            fields = &fields[4 + length..];
            if id != 1 {
                continue;
            }
            let mut at = 0;
            let mut next = |is_full: bool| {
                let value = is_full.then(|| number(field, at, 8));
                at += if is_full { 8 } else { 0 };
                value
            };
            if let Some(size) = next(self.size == ELSEWHERE) {
                self.size = size?;
            }
            next(stored == ELSEWHERE);
            if let Some(local) = next(self.local == ELSEWHERE) {
                self.local = local?;
            }
        }
        (self.size != ELSEWHERE && self.local != ELSEWHERE).then_some(())
    }
}

/// The bytes of the entry with this local header.
fn place(bytes: &[u8], local: u64, size: u64) -> Option<Range<usize>> {
    let (local, size) = (usize::try_from(local).ok()?, usize::try_from(size).ok()?);
    bytes.get(local..)?.starts_with(b"PK\x03\x04").then_some(())?;
    let (name, extra) = (number(bytes, local + 26, 2)?, number(bytes, local + 28, 2)?);
    let start = local.checked_add(30 + name as usize + extra as usize)?;
    let end = start.checked_add(size)?;
    (end <= bytes.len()).then_some(start..end)
}

/// A little-endian number of `count` bytes.
fn number(bytes: &[u8], at: usize, count: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(count)?)?;
    Some(
        bytes
            .iter()
            .rev()
            .fold(0, |number, byte| number << 8 | u64::from(*byte)),
    )
}
