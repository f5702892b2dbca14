//! The words, and the prompts that spell them.

use super::WORD_LETTERS;
use crate::error::PromptError;
use flow_rng::{Draws, Purpose, Stream};
use std::collections::HashSet;

const VOWELS: &[u8] = b"aeiou";
const CONSONANTS: &[u8] = b"bcdfghjklmnpqrstvwxyz";

/// `count` different words, as many of each length, one more or less, in an order that the seed draws.
pub(super) fn made_up(count: usize, seed: u64) -> Vec<String> {
    let stream = Stream::new(seed, Purpose::DataSplit);
    let mut words = Vec::with_capacity(count);
    let mut seen = HashSet::with_capacity(count);
    let mut draw = 0;
    while words.len() < count {
        let letters = WORD_LETTERS.start() + words.len() % WORD_LETTERS.count();
        let word = word(letters, &mut stream.at(draw, 0));
        draw += 1;
        if seen.insert(word.clone()) {
            words.push(word);
        }
    }
    stream.at(0, 1).shuffle(&mut words);
    words
}

/// Consonants and vowels in turn; every third word begins with a vowel.
fn word(letters: usize, draws: &mut Draws) -> String {
    let first = usize::from(draws.below(3) == 0);
    let letter = |at: usize| {
        let letters = match (at + first) % 2 {
            0 => CONSONANTS,
            _ => VOWELS,
        };
        char::from(letters[draws.below(letters.len() as u64) as usize])
    };
    (0..letters).map(letter).collect()
}

/// The prompt that spells a word.
pub(super) fn prompt(word: &str) -> String {
    let letters: Vec<String> = word.chars().map(String::from).collect();
    format!("the word \"{}\"", letters.join(" "))
}

/// The word that a text asks for: what stands between double quotes, or the whole text.
pub(super) fn parse(text: &str) -> Result<String, PromptError> {
    let refused = |problem: String| PromptError::Combination {
        text: text.to_owned(),
        problem: format!(
            "{problem}; a prompt reads like `the word \"r i v e r\"`, or `river`, with {} to {} letters from a to z",
            WORD_LETTERS.start(),
            WORD_LETTERS.end()
        ),
    };
    let mut parts = text.split('"');
    let inside = match (parts.next(), parts.next(), parts.next()) {
        (_, Some(inside), Some(_)) => inside,
        (_, Some(_), None) => return Err(refused("its double quote is not closed".into())),
        _ => text,
    };
    let word: String = inside
        .chars()
        .filter(|letter| !letter.is_whitespace())
        .map(|letter| letter.to_ascii_lowercase())
        .collect();
    if let Some(other) = word.chars().find(|letter| !letter.is_ascii_lowercase()) {
        return Err(refused(format!(
            "`{}` is no letter from a to z",
            other.escape_default()
        )));
    }
    if !WORD_LETTERS.contains(&word.len()) {
        return Err(refused(format!("the word has {} letters", word.len())));
    }
    Ok(word)
}
