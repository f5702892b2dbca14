//! Numbers as people write them and as TOML has them.

use toml::de::DeValue;

/// The number that a text is to people, as TOML writes it: `1e-4` as it is, `3.e-4` as `3.0e-4`, `.5` as `0.5`, `007` as
/// `7`. Nothing if it is none.
pub(crate) fn toml_number(text: &str) -> Option<String> {
    let text = text.trim();
    // Longer than any number that somebody wrote by hand.
    if text.is_empty() || text.len() > 64 {
        return None;
    }
    if is_number(text) {
        return Some(text.to_owned());
    }
    let unsigned = text.trim_start_matches(['+', '-']);
    let sign = &text[..text.len() - unsigned.len()];
    let finite = text.parse::<f64>().is_ok_and(f64::is_finite);
    if !finite || sign.len() > 1 || !unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let (number, exponent) = match unsigned.find(['e', 'E']) {
        Some(at) => unsigned.split_at(at),
        None => (unsigned, ""),
    };
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (number, None),
    };
    let whole = match whole.trim_start_matches('0') {
        "" => "0",
        digits => digits,
    };
    let fraction = match fraction {
        None => String::new(),
        Some("") => ".0".to_owned(),
        Some(digits) => format!(".{digits}"),
    };
    let mended = format!("{sign}{whole}{fraction}{exponent}");
    is_number(&mended).then_some(mended)
}

/// Whether TOML reads a number.
fn is_number(text: &str) -> bool {
    let (value, errors) = DeValue::parse_recoverable(text);
    let finite = |digits: &str| digits.replace('_', "").parse::<f64>().is_ok_and(f64::is_finite);
    let number = match value.get_ref() {
        DeValue::Integer(_) => true,
        DeValue::Float(float) => finite(float.as_str()),
        _ => false,
    };
    number && errors.is_empty() && text.contains(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::toml_number;

    #[test]
    fn numbers_of_other_languages_become_tomls() {
        for (written, toml) in [
            ("1e-4", Some("1e-4")),
            (" 2", Some("2")),
            ("3.e-4", Some("3.0e-4")),
            ("1.", Some("1.0")),
            (".5", Some("0.5")),
            ("-.5e3", Some("-0.5e3")),
            ("007", Some("7")),
            ("0x1f", Some("0x1f")),
            ("nan", None),
            ("inf", None),
            ("1e999", None),
            ("three", None),
            ("", None),
            ("--1", None),
        ] {
            assert_eq!(toml_number(written).as_deref(), toml, "{written:?}");
        }
    }
}
