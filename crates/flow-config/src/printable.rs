//! Texts of users as they may stand on a terminal.

use std::borrow::Cow;

/// Whether a character moves the cursor, colours, hides or reorders what stands around it.
fn is_unprintable(c: char) -> bool {
    // Bidirectional controls, zero-width characters and separators of lines reorder or hide text (Unicode TR 36).
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// The text with what a terminal would act on written out, as `\u{1b}`. Line ends and tabs stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    let stays = |c: char| !is_unprintable(c) || matches!(c, '\n' | '\t');
    if text.chars().all(stays) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match stays(c) {
            true => out.push(c),
            false => out.extend(c.escape_unicode()),
        }
    }
    Cow::Owned(out)
}

/// The text with a character of the same length in the place of each that a terminal would act on, so that places in the
/// one are places in the other.
pub(crate) fn same_length(text: String) -> String {
    let end_of_line = |index: usize| text[index..].starts_with("\r\n");
    let bad =
        |(index, c): (usize, char)| is_unprintable(c) && !(matches!(c, '\n' | '\t') || end_of_line(index));
    if !text.char_indices().any(bad) {
        return text;
    }
    let replaced = text.char_indices().map(|(index, c)| match c.len_utf8() {
        _ if !bad((index, c)) => c,
        1 => '?',
        2 => '¿',
        _ => '\u{fffd}',
    });
    replaced.collect()
}
