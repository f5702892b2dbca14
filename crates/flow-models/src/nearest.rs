//! The nearest of some names, for suggestions.

/// The candidate that is most like `name`, if any is like it at all.
pub(crate) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Well over half of the characters in common: farther names suggest nothing to a person.
    let likeness = |other: &str| strsim::normalized_damerau_levenshtein(name, other);
    candidates
        .into_iter()
        .map(|other| (likeness(other), other))
        .filter(|(likeness, _)| *likeness >= 0.6)
        .max_by(|a, b| a.0.total_cmp(&b.0).then_with(|| b.1.cmp(a.1)))
        .map(|(_, other)| other)
}
