//! Headers of every request, whose values come from the environment and are shown nowhere.

use std::collections::BTreeMap;
use std::fmt;

use ureq::http::{HeaderName, HeaderValue};

/// Headers that say what a request is, and that the client writes.
const OF_CLIENT: &[&str] = &[
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "transfer-encoding",
    "upgrade",
];

/// Names and values of headers. `Debug` leaves the values out.
#[derive(Clone)]
pub(super) struct Headers(Vec<(HeaderName, HeaderValue, String)>);

impl Headers {
    /// The headers `names`, each with the value of its variable.
    ///
    /// # Errors
    /// What is wrong, with the names and without the value.
    pub(super) fn new(
        names: &BTreeMap<String, String>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        let header = |(header, name): (&String, &String)| -> Result<_, String> {
            let header = checked(header, name).map_err(|problem| format!("`headers_from`: {problem}"))?;
            let text = variable(name).ok_or_else(|| {
                format!("`headers_from`: the environment has no variable `{name}` for the header `{header}`")
            })?;
            let text = text.trim();
            let value = HeaderValue::from_str(text).ok().filter(|_| !text.is_empty());
            let mut value = value.ok_or_else(|| {
                format!(
                    "`headers_from`: the variable `{name}` is empty or has characters that no header holds"
                )
            })?;
            value.set_sensitive(true);
            Ok((header, value, text.to_owned()))
        };
        names.iter().map(header).collect::<Result<_, String>>().map(Self)
    }

    /// Names and values.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
        self.0.iter().map(|(name, value, _)| (name, value))
    }

    /// `text` without the values: a server may send back what it was sent.
    pub(super) fn hide(&self, text: &str) -> String {
        let words = self.0.iter().flat_map(|(_, _, value)| value.split_whitespace());
        words
            .filter(|word| word.len() >= 4 && !word.eq_ignore_ascii_case("bearer"))
            .fold(text.to_owned(), |text, word| text.replace(word, "…"))
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|(name, ..)| name))
            .finish()
    }
}

/// The header that has the value of `variable`.
///
/// # Errors
/// Why it cannot be sent.
pub(super) fn checked(header: &str, variable: &str) -> Result<HeaderName, String> {
    if variable.is_empty() || variable.contains(['=', '\0']) {
        return Err(format!("`{variable}` is no name of an environment variable"));
    }
    let name = HeaderName::try_from(header).map_err(|_| format!("`{header}` is no name of a header"))?;
    if OF_CLIENT.contains(&name.as_str()) {
        return Err(format!("the header `{name}` is written by the client itself"));
    }
    Ok(name)
}

/// The value of a variable of this process, if it is there and is text.
pub(super) fn variable_of_process(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &str, value: Option<&str>) -> Result<Headers, String> {
        let names = BTreeMap::from([(name.to_owned(), "REWARD_TOKEN".to_owned())]);
        let value = value.map(str::to_owned);
        Headers::new(&names, &|name| value.clone().filter(|_| name == "REWARD_TOKEN"))
    }

    #[test]
    fn a_token_is_sent_and_never_shown() {
        let headers = headers("Authorization", Some("Bearer sesame1\n")).unwrap();
        let sent: Vec<_> = headers.iter().map(|(_, value)| value.to_str().unwrap()).collect();
        assert_eq!(sent, ["Bearer sesame1"]);
        assert!(!format!("{headers:?}").contains("sesame"));
        assert_eq!(headers.hide("no Bearer sesame1 here"), "no Bearer … here");
    }

    #[test]
    fn a_header_that_cannot_be_sent_is_refused_without_its_value() {
        for (name, value, words) in [
            ("Authorization", None, "no variable `REWARD_TOKEN`"),
            ("Authorization", Some(" "), "is empty"),
            ("Authorization", Some("sesame\r\nHost: other"), "no header holds"),
            ("Content-Length", Some("sesame"), "by the client itself"),
            ("X Y", Some("sesame"), "is no name of a header"),
        ] {
            let problem = headers(name, value).unwrap_err();
            assert!(
                problem.contains(words) && !problem.contains("sesame"),
                "{problem}"
            );
        }
    }
}
