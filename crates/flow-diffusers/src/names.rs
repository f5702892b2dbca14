//! The nearest of several names, for messages.

/// Least Jaro-Winkler similarity of a name that may have been meant.
const ALIKE: f64 = 0.8;

/// The candidate most like `name`, if one is like it. Case does not matter.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = name.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(&candidate.to_lowercase(), &lower), candidate))
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

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
