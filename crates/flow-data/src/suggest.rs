//! The nearest known name to a mistyped one, for error messages.

/// The candidate nearest to `word`, if one is near enough to be a likely slip.
///
/// Near enough means a Damerau-Levenshtein distance of at most a third of the longer word, so words of one or two
/// letters have no neighbours: a wrong suggestion is worse than none.
/// Ties go to the first candidate.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let mut best: Option<(usize, &'a str)> = None;
    for candidate in candidates {
        let distance = strsim::damerau_levenshtein(&word, &candidate.to_lowercase());
        let longer = word.chars().count().max(candidate.chars().count());
        if distance <= longer / 3 && best.is_none_or(|(d, _)| distance < d) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// `" (did you mean \"x\"?)"`, or nothing, to be put behind the mistyped name.
pub fn hint(nearest: &Option<String>) -> String {
    nearest
        .as_ref()
        .map(|name| format!(" (did you mean \"{name}\"?)"))
        .unwrap_or_default()
}
