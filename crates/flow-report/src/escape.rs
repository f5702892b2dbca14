//! Escaping of text that goes into HTML and SVG.

use std::borrow::Cow;

/// `text` such that it is shown as it is in HTML and XML, between tags and in quoted attributes. Control characters
/// that XML forbids become U+FFFD.
pub fn escape(text: &str) -> Cow<'_, str> {
    let plain = |c: char| !matches!(c, '&' | '<' | '>' | '"' | '\'') && allowed(c);
    if text.chars().all(plain) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other if allowed(other) => out.push(other),
            _ => out.push('\u{FFFD}'),
        }
    }
    Cow::Owned(out)
}

fn allowed(letter: char) -> bool {
    !letter.is_control() || matches!(letter, '\n' | '\t' | '\r')
}

/// A relative link to a file: parts of a path, each with what has a meaning in a URL or in markup percent-encoded (RFC 3986).
pub(crate) fn href(parts: &[&[u8]]) -> String {
    let encoded = parts.iter().map(|part| {
        let mut out = String::new();
        for byte in *part {
            if byte.is_ascii_alphanumeric() || b"-_.~".contains(byte) {
                out.push(char::from(*byte));
            } else {
                out += &format!("%{byte:02X}");
            }
        }
        out
    });
    encoded.collect::<Vec<_>>().join("/")
}
