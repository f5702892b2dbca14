//! The access token.

use crate::HubError;
use std::fmt;

/// An access token of the hub. It is shown nowhere: [`Debug`] leaves it out, and no error contains it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The token in `text`, without the white space around it.
    ///
    /// # Errors
    /// [`HubError::Token`] for a text that no header can hold.
    pub fn new(text: &str) -> Result<Self, HubError> {
        let token = text.trim();
        if token.is_empty() {
            return Err(HubError::Token {
                problem: "it is empty".into(),
            });
        }
        if let Some(at) = token.bytes().position(|byte| !byte.is_ascii_graphic()) {
            return Err(HubError::Token {
                problem: format!("its character {} is no visible ASCII character", at + 1),
            });
        }
        Ok(Self(token.to_owned()))
    }

    /// The text, for the header and nothing else.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_trimmed_and_never_shown() {
        let token = Token::new(" hf_secret\n").unwrap();
        assert_eq!(token.expose(), "hf_secret");
        assert!(!format!("{token:?}").contains("secret"));
    }

    #[test]
    fn a_token_that_would_break_the_header_is_refused_without_being_shown() {
        for text in ["", "  ", "hf_secret\r\nHost: elsewhere", "hf_secrét"] {
            let words = Token::new(text).unwrap_err().to_string();
            assert!(words.contains("HF_TOKEN") && !words.contains("secr"), "{words}");
        }
    }
}
