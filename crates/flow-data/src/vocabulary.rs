//! Words and their token ids.

/// Token id that fills up prompts that are shorter than the data set's prompt length.
pub const PAD_TOKEN: u32 = 0;

/// Token id of the empty condition of classifier-free guidance (Ho and Salimans, 2022, arXiv:2207.12598).
///
/// It differs from [`PAD_TOKEN`], so that "no condition" and "no word here" are learnt apart.
pub const NULL_TOKEN: u32 = 1;

/// An ordered list of words; the position of a word is its token id.
///
/// Ids 0 and 1 are always `<pad>` ([`PAD_TOKEN`]) and `<null>` ([`NULL_TOKEN`]).
/// The order is part of a trained model, so it never changes for a given data set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vocabulary {
    words: Vec<String>,
}

impl Vocabulary {
    /// These words behind the two special ones.
    pub fn new<'a>(words: impl IntoIterator<Item = &'a str>) -> Self {
        let words = ["<pad>", "<null>"]
            .into_iter()
            .chain(words)
            .map(str::to_owned)
            .collect();
        Self { words }
    }

    /// Number of tokens, the two special ones included: the rows of an embedding table.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Never true: the special tokens are always there.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Every word in token order, the two special ones first.
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// The token id of a word, spelled exactly.
    pub fn token(&self, word: &str) -> Option<u32> {
        self.words
            .iter()
            .position(|w| w == word)
            .map(|position| position as u32)
    }

    /// The word of a token id.
    pub fn word(&self, token: u32) -> Option<&str> {
        self.words.get(token as usize).map(String::as_str)
    }

    /// Token ids of words that are known to be in the vocabulary, filled up with [`PAD_TOKEN`].
    pub fn encode(&self, words: &[&str], length: usize) -> Vec<u32> {
        let mut tokens: Vec<u32> = words
            .iter()
            .map(|word| self.token(word).unwrap_or(PAD_TOKEN))
            .collect();
        tokens.resize(length, PAD_TOKEN);
        tokens
    }
}
