//! What someone probably meant: the nearest of some names.

/// Least likeness of a name that may have been meant: farther ones suggest nothing to a person.
const ALIKE: f64 = 0.6;
/// Least Jaro-Winkler similarity of a name that was abbreviated, such as `attn` for `attention`.
const ABBREVIATED: f64 = 0.86;
/// What a name is worth that holds the other, or is held by it.
const CONTAINED: f64 = 0.7;
/// Beyond this length nobody mistyped a name, and the distance is quadratic.
const LONGEST: usize = 256;

/// The candidate nearest to `asked`, if one is near enough to be worth naming; the first of several that are as near.
///
/// Letters and digits count alone, in lower case: `-`, `_`, dots and case are no difference. Near are names that share
/// at least six tenths of their characters (Damerau and Levenshtein, which counts a swap once), one that holds the
/// other, and one that begins as the other does and leaves letters out (Jaro and Winkler).
pub fn nearest<'c>(asked: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    nearest_within(ALIKE, asked, candidates)
}

/// As [`nearest`], for names that are long and alike by nature, such as those of weights: only what is at least `least`
/// like `asked`, from 0 to 1, is near.
pub fn nearest_within<'c>(
    least: f64,
    asked: &str,
    candidates: impl IntoIterator<Item = &'c str>,
) -> Option<&'c str> {
    let asked = simplify(asked);
    if asked.is_empty() || asked.len() > LONGEST {
        return None;
    }
    let mut best: Option<(f64, &str)> = None;
    for candidate in candidates {
        let score = score(&asked, &simplify(candidate));
        if score >= least && best.is_none_or(|(most, _)| score > most) {
            best = Some((score, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// How like two names are, from 0 to 1, letters and digits in lower case alone.
pub fn likeness(one: &str, other: &str) -> f64 {
    strsim::normalized_damerau_levenshtein(&simplify(one), &simplify(other))
}

/// Whether `asked` is `known` with two slips of spelling at most: letters that are others, exchanged, missing or too many.
pub fn is_misspelt(asked: &str, known: &str) -> bool {
    asked.len() <= 64 && strsim::damerau_levenshtein(asked, known) <= 2
}

/// The score of two simplified names: 2 if they are the same.
fn score(asked: &str, candidate: &str) -> f64 {
    if asked == candidate {
        return 2.0;
    }
    let alike = strsim::normalized_damerau_levenshtein(asked, candidate);
    let holds = |long: &str, short: &str| short.len() >= 3 && long.contains(short);
    let contained = holds(candidate, asked) || holds(asked, candidate);
    let abbreviated = asked.len() >= 3 && strsim::jaro_winkler(asked, candidate) >= ABBREVIATED;
    match (contained, abbreviated) {
        (true, _) => alike.max(CONTAINED),
        (false, true) => alike.max(ALIKE),
        (false, false) => alike,
    }
}

/// Letters and digits in lower case: `-`, `_`, dots and case are no difference.
pub fn simplify(name: &str) -> String {
    name.chars()
        .filter(|letter| letter.is_alphanumeric())
        .flat_map(char::to_lowercase)
        .collect()
}
