//! Where files come from, and who asks for them.

use crate::{Endpoint, HubError, Retries, Token};
use std::ffi::OsString;

/// The server that is asked where nothing else is said.
const HUGGING_FACE: &str = "https://huggingface.co";

/// Settings of a [`Hub`](crate::Hub).
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The server.
    pub endpoint: Endpoint,
    /// The token, which no other server is sent.
    pub token: Option<Token>,
    /// How often a request is repeated.
    pub retries: Retries,
}

impl Settings {
    /// Settings for `endpoint`, without a token.
    ///
    /// # Errors
    /// As [`Endpoint::new`].
    pub fn new(endpoint: &str) -> Result<Self, HubError> {
        Ok(Self {
            endpoint: Endpoint::new(endpoint)?,
            token: None,
            retries: Retries::default(),
        })
    }

    /// Settings by the variables that `huggingface_hub` reads: `HF_ENDPOINT` (without it, `https://huggingface.co`) and
    /// `HF_TOKEN`. `variable` gives their values; an empty one counts as none.
    ///
    /// # Errors
    /// [`HubError::Endpoint`] and [`HubError::Token`].
    pub fn from_variables(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, HubError> {
        let text = |name: &str| variable(name).map(|value| value.to_string_lossy().trim().to_owned());
        let endpoint = text("HF_ENDPOINT").filter(|value| !value.is_empty());
        let token = text("HF_TOKEN").filter(|value| !value.is_empty());
        Ok(Self {
            token: token.map(|token| Token::new(&token)).transpose()?,
            ..Self::new(endpoint.as_deref().unwrap_or(HUGGING_FACE))?
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_say_where_files_come_from_and_empty_ones_count_as_none() {
        let none = Settings::from_variables(&|_| None).unwrap();
        assert_eq!(none, Settings::new(HUGGING_FACE).unwrap());
        assert_eq!(Settings::from_variables(&|_| Some("".into())).unwrap(), none);
        let both = Settings::from_variables(&|name| match name {
            "HF_ENDPOINT" => Some("http://mirror.example:8080/hub/".into()),
            "HF_TOKEN" => Some("hf_abc\n".into()),
            _ => None,
        });
        let both = both.unwrap();
        assert_eq!(both.endpoint.to_string(), "http://mirror.example:8080/hub");
        assert_eq!(both.token, Some(Token::new("hf_abc").unwrap()));
    }
}
