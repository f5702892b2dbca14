//! What the prompt parsers of the data sets share: splitting into words, and errors with the nearest word.

use crate::error::PromptError;

/// Lower-case words of a prompt text; anything that is neither a letter nor a digit separates.
pub(crate) fn words(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

/// Fills `slot`, or says that the part was named before.
pub(crate) fn set_once<T: Copy>(
    text: &str,
    part: &'static str,
    slot: &mut Option<(T, String)>,
    value: T,
    word: &str,
) -> Result<(), PromptError> {
    if let Some((_, first)) = slot {
        return Err(PromptError::Twice {
            text: text.to_owned(),
            part,
            first: first.clone(),
            second: word.to_owned(),
        });
    }
    *slot = Some((value, word.to_owned()));
    Ok(())
}

/// The error for a word that nothing matches.
pub(crate) fn unknown_word(text: &str, word: &str, known: Vec<String>) -> PromptError {
    let nearest = flow_registry::nearest(word, known.iter().map(String::as_str)).map(str::to_owned);
    PromptError::UnknownWord {
        text: text.to_owned(),
        word: word.to_owned(),
        nearest,
        known,
    }
}

/// The error for missing parts, listed with "and".
pub(crate) fn missing(text: &str, parts: &[String], example: &str) -> PromptError {
    PromptError::Missing {
        text: text.to_owned(),
        missing: parts.join(" and "),
        example: example.to_owned(),
    }
}

/// "thin, medium or bold".
pub(crate) fn choices(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}
