//! Plain scalars as PyYAML reads them, since that is what reads a Flow-Factory config: `yes` is a boolean, `010` is
//! eight. One thing is read as people mean it: `1e-4` is a number here, and a text to PyYAML, which asks for `1.0e-4`.

/// The value of a scalar.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scalar {
    Null,
    Boolean(bool),
    Integer(i64),
    Float(f64),
    Text(String),
}

/// The value of a plain (unquoted) scalar.
pub(crate) fn resolve(raw: &str) -> Scalar {
    match raw {
        "" | "~" | "null" | "Null" | "NULL" => return Scalar::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => {
            return Scalar::Boolean(true);
        }
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => {
            return Scalar::Boolean(false);
        }
        ".nan" | ".NaN" | ".NAN" => return Scalar::Float(f64::NAN),
        _ => {}
    }
    let (negative, digits) = match raw.as_bytes()[0] {
        b'-' => (true, &raw[1..]),
        b'+' => (false, &raw[1..]),
        _ => (false, raw),
    };
    if matches!(digits, ".inf" | ".Inf" | ".INF") {
        return Scalar::Float(if negative {
            f64::NEG_INFINITY
        } else {
            f64::INFINITY
        });
    }
    if !digits.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
        return Scalar::Text(raw.to_owned());
    }
    integer(digits, negative)
        .map(Scalar::Integer)
        .or_else(|| float(digits, negative).map(Scalar::Float))
        .unwrap_or_else(|| Scalar::Text(raw.to_owned()))
}

fn integer(digits: &str, negative: bool) -> Option<i64> {
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x', ..] => (16, &digits[2..]),
        [b'0', b'o', ..] => (8, &digits[2..]),
        [b'0', b'b', ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    let digits: String = digits.chars().filter(|digit| *digit != '_').collect();
    if !digits.chars().all(|digit| digit.is_digit(radix)) {
        return None;
    }
    let sign = if negative { "-" } else { "" };
    i64::from_str_radix(&format!("{sign}{digits}"), radix).ok()
}

fn float(digits: &str, negative: bool) -> Option<f64> {
    let allowed = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-' | '_');
    if !digits.chars().all(allowed) || !digits.contains(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let value: f64 = digits.replace('_', "").parse().ok()?;
    Some(if negative { -value } else { value })
}
