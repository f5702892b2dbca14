//! A check of sentencepiece's table of replacements, which the reader of the tokenizers crate takes on trust: an offset outside
//! of the table would end the process.
//!
//! The table is a double-array trie over bytes (Yata et al. 2007; sentencepiece 0.2.0 `third_party/darts_clone/darts.h`), behind
//! its length in bytes, and then texts that end with a zero. A leaf is the position of a text.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokenizers::normalizers::Precompiled;

/// The normalizer of a table in base64.
///
/// # Errors
/// What is wrong with the table.
pub(crate) fn normalizer(base64: &str) -> Result<Precompiled, String> {
    let bytes = STANDARD
        .decode(base64)
        .map_err(|error| format!("is no base64: {error}"))?;
    check(&bytes)?;
    Precompiled::from(&bytes).map_err(|error| error.to_string())
}

fn check(bytes: &[u8]) -> Result<(), String> {
    let cut = || "is cut off".to_owned();
    let (length, rest) = bytes.split_at_checked(4).ok_or_else(cut)?;
    let length = u32::from_le_bytes(length.try_into().map_err(|_| cut())?) as usize;
    // The reader takes whole units and counts what is left over to the texts.
    let (trie, texts) = rest.split_at_checked(length / 4 * 4).ok_or_else(cut)?;
    let units: Vec<u32> = trie
        .as_chunks::<4>()
        .0
        .iter()
        .copied()
        .map(u32::from_le_bytes)
        .collect();
    let texts =
        std::str::from_utf8(texts).map_err(|error| format!("has texts that are no UTF-8: {error}"))?;
    walk(&units, texts)
}

/// Follows every path of the trie.
fn walk(units: &[u32], texts: &str) -> Result<(), String> {
    let outside = || "points outside of itself".to_owned();
    let unit = |at: usize| units.get(at).copied().ok_or_else(outside);
    let mut seen = vec![false; units.len()];
    let mut open = vec![offset(unit(0)?)];
    while let Some(base) = open.pop() {
        match seen.get_mut(base) {
            Some(seen) if *seen => continue,
            Some(seen) => *seen = true,
            None => return Err(outside()),
        }
        for byte in 1..=255usize {
            let at = base ^ byte;
            let here = unit(at)?;
            if here & (1 << 31 | 0xff) != byte as u32 {
                continue;
            }
            let next = at ^ offset(here);
            if here >> 8 & 1 == 1 {
                let text = (unit(next)? & !(1 << 31)) as usize;
                if !texts.is_char_boundary(text) {
                    return Err("points into the middle of a letter".into());
                }
            }
            open.push(next);
        }
    }
    Ok(())
}

/// How far the children of a unit are from it.
fn offset(unit: u32) -> usize {
    (unit as usize >> 10) << ((unit & 1 << 9) >> 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table with the one replacement of "a" by "b".
    fn table() -> Vec<u8> {
        let mut units = vec![0u32; 512];
        // The root's children are at 256 and more; the leaf of "a" is at 128.
        units[0] = 256 << 10;
        let a = 256 ^ usize::from(b'a');
        units[a] = (a as u32 ^ 128) << 10 | 1 << 8 | u32::from(b'a');
        units[128] = 1 << 31;
        let mut bytes = ((units.len() * 4) as u32).to_le_bytes().to_vec();
        bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
        bytes.extend(b"b\0");
        bytes
    }

    #[test]
    fn a_whole_table_passes_and_every_cut_or_changed_one_is_refused_or_harmless() {
        let whole = table();
        assert_eq!(check(&whole), Ok(()));
        assert_eq!(Precompiled::from(&whole).unwrap().transform("a"), Some("b"));
        for length in 0..whole.len() - 2 {
            if check(&whole[..length]).is_ok() {
                Precompiled::from(&whole[..length]).unwrap().transform("a");
            }
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut changed = whole.clone();
                changed[at] ^= 1 << bit;
                if check(&changed).is_ok() {
                    let normalizer = Precompiled::from(&changed).unwrap();
                    for byte in 1..128u8 {
                        normalizer.transform(char::from(byte).encode_utf8(&mut [0; 4]));
                    }
                }
            }
        }
    }
}
