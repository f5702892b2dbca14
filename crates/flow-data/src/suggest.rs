//! A nearest name in a message.

/// `" (did you mean \"x\"?)"`, or nothing, to be put behind the mistyped name.
pub(crate) fn hint(nearest: &Option<String>) -> String {
    nearest
        .as_ref()
        .map(|name| format!(" (did you mean \"{name}\"?)"))
        .unwrap_or_default()
}
