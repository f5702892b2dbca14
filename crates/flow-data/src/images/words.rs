//! Words of captions as tokens, for models that learn to read them from the start.

use crate::error::PromptError;
use crate::vocabulary::{PAD_TOKEN, Vocabulary};
use std::collections::{BTreeSet, HashMap};

/// Words that an error lists.
const LISTED: usize = 40;

/// The vocabulary of captions.
#[derive(Clone, Debug)]
pub(super) struct Words {
    vocabulary: Vocabulary,
    tokens: HashMap<String, u32>,
    length: usize,
}

/// The words of a text: letters and digits in lower case; everything else parts them.
fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|letter: char| !letter.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
}

impl Words {
    /// Of all captions; words in the order of Unicode, so that it does not depend on the order of the captions.
    pub fn of<'a>(captions: impl Iterator<Item = &'a str>) -> Self {
        let mut all = BTreeSet::new();
        let mut length = 1;
        for caption in captions {
            let before = words(caption).map(|word| all.insert(word)).count();
            length = length.max(before);
        }
        let vocabulary = Vocabulary::new(all.iter().map(String::as_str));
        // Behind the two special tokens.
        let tokens = all.into_iter().zip(2..).collect();
        Self {
            vocabulary,
            tokens,
            length,
        }
    }

    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Tokens of every prompt, padding included.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The tokens of a text, padded.
    ///
    /// # Errors
    /// [`PromptError::UnknownWord`]; [`PromptError::Combination`] for more words than any caption has.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, PromptError> {
        let mut tokens = Vec::with_capacity(self.length);
        for word in words(text) {
            let Some(token) = self.tokens.get(&word) else {
                return Err(self.unknown(text, word));
            };
            tokens.push(*token);
        }
        if tokens.len() > self.length {
            return Err(PromptError::Combination {
                text: text.to_owned(),
                problem: format!(
                    "it has {} words, and the longest caption has {}",
                    tokens.len(),
                    self.length
                ),
            });
        }
        tokens.resize(self.length, PAD_TOKEN);
        Ok(tokens)
    }

    fn unknown(&self, text: &str, word: String) -> PromptError {
        let known = &self.vocabulary.words()[2..];
        let nearest = flow_registry::nearest(&word, known.iter().map(String::as_str)).map(str::to_owned);
        let mut listed: Vec<String> = known.iter().take(LISTED).cloned().collect();
        if known.len() > LISTED {
            listed.push(format!("… ({} in all)", known.len()));
        }
        PromptError::UnknownWord {
            text: text.to_owned(),
            word,
            nearest,
            known: listed,
        }
    }
}
