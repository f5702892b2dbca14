//! How values, moments and command lines are written for people.

use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// `25 November 2026, 21:17 UTC` for an RFC 3339 text; another text as it is.
pub(super) fn moment(rfc3339: &str) -> String {
    let Ok(moment) = OffsetDateTime::parse(rfc3339, &Rfc3339) else {
        return rfc3339.to_owned();
    };
    let utc = moment.to_offset(time::UtcOffset::UTC);
    format!(
        "{} {} {}, {:02}:{:02} UTC",
        utc.day(),
        utc.month(),
        utc.year(),
        utc.hour(),
        utc.minute()
    )
}

/// `once`, `twice`, `3 times`.
pub(super) fn times(count: usize) -> String {
    match count {
        1 => "once".into(),
        2 => "twice".into(),
        count => format!("{count} times"),
    }
}

/// `1 curve`, `2 curves`.
pub(super) fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// A value as TOML would write it, near enough to be read.
pub(super) fn value(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "not set".into(),
        Value::Array(items) => format!(
            "[{}]",
            items.iter().map(self::value).collect::<Vec<_>>().join(", ")
        ),
        other => other.to_string(),
    }
}

/// A command line that can be pasted into a POSIX shell.
pub(super) fn command_line(words: &[String]) -> String {
    let plain = |word: &String| {
        !word.is_empty()
            && word
                .chars()
                .all(|c| c.is_alphanumeric() || "-_./=:,+@".contains(c))
    };
    let quoted = |word: &String| {
        if plain(word) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}
