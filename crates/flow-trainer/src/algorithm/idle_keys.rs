//! Keys that are read only where another key has a certain value.

use flow_config::Rules;
use flow_config::codes::RULE_UNUSED;

/// A key, whether it is read, the key that decides that, and the value which that one needs, in words.
pub(super) type DecidedKey = (&'static str, bool, &'static str, &'static str);

/// Names those of the keys at `path` that are written and not read.
pub(super) fn check_decided_keys(rules: &mut Rules<'_>, path: &str, keys: &[DecidedKey]) {
    for (key, is_read, decides, needed) in keys {
        let (key, decides) = (format!("{path}.{key}"), format!("{path}.{decides}"));
        if let (false, Some(first)) = (*is_read, rules.written_below(&key).first()) {
            let message = format!("`{first}` is read only where `{decides}` is {needed}");
            rules
                .warning(RULE_UNUSED, &[first, &decides], message)
                .help(format!("set `{decides}` to {needed}, or remove it"));
        }
    }
}
