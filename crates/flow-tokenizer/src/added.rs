//! Tokens that stand beside the vocabulary: specials, and what fine-tuners added.

use serde::Deserialize;
use serde_json::Value;

/// A token as the files write it: a text, or an object with options.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Token {
    pub content: String,
    #[serde(default)]
    pub single_word: bool,
    #[serde(default)]
    pub lstrip: bool,
    #[serde(default)]
    pub rstrip: bool,
    /// Whether it is looked for in the normalised text. Python's default is the opposite of `special`.
    #[serde(default)]
    pub normalized: Option<bool>,
    #[serde(default)]
    pub special: Option<bool>,
}

impl Token {
    /// A special token that is looked for in the text as it was written.
    pub fn special(content: &str) -> Self {
        Self::plain(content, true)
    }

    /// A token without options.
    pub fn plain(content: &str, special: bool) -> Self {
        Self {
            content: content.to_owned(),
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: Some(!special),
            special: Some(special),
        }
    }

    /// A value of `tokenizer_config.json` or `special_tokens_map.json`; `None` for null.
    pub fn read(value: &Value) -> Option<Self> {
        match value {
            Value::String(content) => Some(Self::special(content)),
            Value::Object(_) => {
                let token: Self = serde_json::from_value(value.clone()).ok()?;
                Some(Self {
                    special: Some(true),
                    ..token
                })
            }
            _ => None,
        }
    }

    /// The same for the tokenizers crate.
    pub fn build(&self) -> tokenizers::AddedToken {
        let special = self.special.unwrap_or(false);
        tokenizers::AddedToken::from(self.content.clone(), special)
            .single_word(self.single_word)
            .lstrip(self.lstrip)
            .rstrip(self.rstrip)
            .normalized(self.normalized.unwrap_or(!special))
    }
}
