//! HTML's character references, read as Python's `html.unescape` reads them (CPython 3.11 `Lib/html/__init__.py`).

use std::collections::HashMap;
use std::sync::LazyLock;

/// The 2,231 names of HTML 5 (WHATWG, section 13.5), with the code points of each in hexadecimal.
const TABLE: &str = include_str!("entities.txt");

static NAMES: LazyLock<HashMap<&str, String>> = LazyLock::new(|| {
    let line = |line: &'static str| {
        let mut words = line.split(' ');
        let name = words.next()?;
        let letters = words.map(|word| char::from_u32(u32::from_str_radix(word, 16).ok()?));
        Some((name, letters.collect::<Option<String>>()?))
    };
    TABLE.lines().filter_map(line).collect()
});

/// What browsers make of the numbers 0x80 to 0x9f: the letters of Windows-1252.
const WINDOWS: [char; 32] = [
    '\u{20ac}', '\u{81}', '\u{201a}', '\u{192}', '\u{201e}', '\u{2026}', '\u{2020}', '\u{2021}', '\u{2c6}',
    '\u{2030}', '\u{160}', '\u{2039}', '\u{152}', '\u{8d}', '\u{17d}', '\u{8f}', '\u{90}', '\u{2018}',
    '\u{2019}', '\u{201c}', '\u{201d}', '\u{2022}', '\u{2013}', '\u{2014}', '\u{2dc}', '\u{2122}', '\u{161}',
    '\u{203a}', '\u{153}', '\u{9d}', '\u{17e}', '\u{178}',
];

/// Most letters of a name that is looked up.
const LONGEST_NAME: usize = 32;
/// Letters that end a name.
const ENDS_NAME: [char; 7] = ['\t', '\n', '\u{c}', ' ', '<', '&', '#'];

/// `text` with its references replaced, once.
pub(crate) fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        let behind = &rest[at + 1..];
        let used = match behind.strip_prefix('#') {
            Some(number) => numbered(number, &mut out).map(|used| used + 1),
            None => named(behind, &mut out),
        };
        if used.is_none() {
            out.push('&');
        }
        rest = &behind[used.unwrap_or(0)..];
    }
    out.push_str(rest);
    out
}

/// Pushes what the number at the front of `text` stands for, and gives the bytes it takes.
fn numbered(text: &str, out: &mut String) -> Option<usize> {
    let (digits, radix, before) = match text.strip_prefix(['x', 'X']) {
        Some(digits) => (digits, 16, 1),
        None => (text, 10, 0),
    };
    let length = digits
        .find(|c: char| !c.is_ascii() || !c.is_digit(radix))
        .unwrap_or(digits.len());
    if length == 0 {
        return None;
    }
    // A number with too many digits for u32 is beyond Unicode as well.
    let number = u32::from_str_radix(&digits[..length], radix).unwrap_or(u32::MAX);
    match number {
        0 => out.push('\u{fffd}'),
        0x0d => out.push('\r'),
        0x80..=0x9f => out.push(WINDOWS[number as usize - 0x80]),
        0x01..=0x08 | 0x0b | 0x0e..=0x1f | 0x7f | 0xfdd0..=0xfdef => {}
        _ if number & 0xfffe == 0xfffe && number <= 0x10_ffff => {}
        _ => out.push(char::from_u32(number).unwrap_or('\u{fffd}')),
    }
    let semicolon = usize::from(digits[length..].starts_with(';'));
    Some(before + length + semicolon)
}

/// Pushes what the name at the front of `text` stands for, and gives the bytes it takes. Of a name without a semicolon the
/// longest known beginning counts.
fn named(text: &str, out: &mut String) -> Option<usize> {
    let ends = |c: char| ENDS_NAME.contains(&c) || c == ';';
    let mut length = 0;
    for c in text.chars().take(LONGEST_NAME).take_while(|c| !ends(*c)) {
        length += c.len_utf8();
    }
    if length == 0 {
        return None;
    }
    let semicolon = usize::from(text[length..].starts_with(';'));
    let whole = &text[..length + semicolon];
    // Names are ASCII and have at least two letters.
    let found = (2..=whole.len())
        .rev()
        .filter(|end| whole.is_char_boundary(*end))
        .find_map(|end| NAMES.get(&whole[..end]).map(|letters| (end, letters)));
    let (end, letters) = found?;
    out.push_str(letters);
    // What is left of the name is not looked at again.
    out.push_str(&whole[end..]);
    Some(whole.len())
}
