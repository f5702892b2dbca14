//! Names in messages.

/// `names` in backquotes with commas between, the first `shown` of them.
pub(crate) fn list<T: AsRef<str>>(names: &[T], shown: usize) -> String {
    let mut words: Vec<String> = names
        .iter()
        .take(shown)
        .map(|name| format!("`{}`", name.as_ref()))
        .collect();
    if names.len() > shown {
        words.push(format!("and {} more", names.len() - shown));
    }
    words.join(", ")
}
