//! Headers of every request, whose values come from the environment and are shown nowhere.

use std::collections::BTreeMap;
use std::fmt;

use ureq::http::header::AUTHORIZATION;
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
pub(crate) struct Headers(Vec<(HeaderName, HeaderValue, String)>);

impl Headers {
    /// The header `Authorization` with `Bearer` and the key in `variable`, if there is to be one. `parameter` is what names the
    /// variable.
    ///
    /// # Errors
    /// What is wrong, with the names and without the key.
    pub(crate) fn bearer(
        parameter: &str,
        variable: Option<&str>,
        value_of: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        let Some(variable) = variable else {
            return Ok(Self(Vec::new()));
        };
        let of_parameter = |problem: String| format!("`{parameter}`: {problem}");
        checked_variable(variable).map_err(of_parameter)?;
        let key = value_of(variable)
            .ok_or_else(|| of_parameter(format!("the environment has no variable `{variable}`")))?;
        let value = Some(key.trim()).filter(|key| !key.is_empty());
        let value = value.map(|key| format!("Bearer {key}"));
        header(AUTHORIZATION, value.as_deref().unwrap_or_default(), variable)
            .map(|header| Self(vec![header]))
            .map_err(of_parameter)
    }

    /// The headers `names`, each with the value of its variable.
    ///
    /// # Errors
    /// What is wrong, with the names and without the value.
    pub(crate) fn new(
        names: &BTreeMap<String, String>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        let named = |(name, variable_name): (&String, &String)| -> Result<_, String> {
            let name =
                checked(name, variable_name).map_err(|problem| format!("`headers_from`: {problem}"))?;
            let text = variable(variable_name).ok_or_else(|| {
                format!(
                    "`headers_from`: the environment has no variable `{variable_name}` for the header `{name}`"
                )
            })?;
            header(name, &text, variable_name).map_err(|problem| format!("`headers_from`: {problem}"))
        };
        names.iter().map(named).collect::<Result<_, String>>().map(Self)
    }

    /// Names and values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
        self.0.iter().map(|(name, value, _)| (name, value))
    }

    /// `text` without the values: a server may send back what it was sent.
    pub(crate) fn hide(&self, text: &str) -> String {
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

/// A header with the value of `variable`.
///
/// # Errors
/// What is wrong, without the value.
fn header(name: HeaderName, text: &str, variable: &str) -> Result<(HeaderName, HeaderValue, String), String> {
    let text = text.trim();
    let value = HeaderValue::from_str(text).ok().filter(|_| !text.is_empty());
    let mut value = value.ok_or_else(|| {
        format!("the variable `{variable}` is empty or has characters that no header holds")
    })?;
    value.set_sensitive(true);
    Ok((name, value, text.to_owned()))
}

/// The header that has the value of `variable`.
///
/// # Errors
/// Why it cannot be sent.
pub(crate) fn checked(header: &str, variable: &str) -> Result<HeaderName, String> {
    checked_variable(variable)?;
    let name = HeaderName::try_from(header).map_err(|_| format!("`{header}` is no name of a header"))?;
    if OF_CLIENT.contains(&name.as_str()) {
        return Err(format!("the header `{name}` is written by the client itself"));
    }
    Ok(name)
}

/// Whether `variable` can be the name of an environment variable.
///
/// # Errors
/// That it cannot.
pub(crate) fn checked_variable(variable: &str) -> Result<(), String> {
    if variable.is_empty() || variable.contains(['=', '\0']) {
        return Err(format!("`{variable}` is no name of an environment variable"));
    }
    Ok(())
}

/// The value of a variable of this process, if it is there and is text.
pub(crate) fn variable_of_process(name: &str) -> Option<String> {
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

    #[test]
    fn a_key_is_sent_as_a_bearer_token_and_never_shown() {
        let bearer = |value: Option<&str>| {
            let value = value.map(str::to_owned);
            Headers::bearer("api_key_from", Some("JUDGE_KEY"), &|name| {
                value.clone().filter(|_| name == "JUDGE_KEY")
            })
        };
        let headers = bearer(Some("sesame1\n")).unwrap();
        let sent: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        assert_eq!(sent, [("authorization", "Bearer sesame1")]);
        assert_eq!(headers.hide("key sesame1 is wrong"), "key … is wrong");
        assert!(!format!("{headers:?}").contains("sesame"));
        for (value, words) in [
            (None, "no variable `JUDGE_KEY`"),
            (Some(" "), "is empty"),
            (Some("sesame\r\nHost: other"), "no header holds"),
        ] {
            let problem = bearer(value).unwrap_err();
            assert!(
                problem.contains(words) && problem.contains("`api_key_from`") && !problem.contains("sesame"),
                "{problem}"
            );
        }
        let none = Headers::bearer("api_key_from", None, &|_| None).unwrap();
        assert_eq!(none.iter().count(), 0);
    }
}
