//! Addresses: of a server, of its interface and its files, and of what a redirect names.

use crate::HubError;
use std::fmt;
use ureq::http::Uri;

/// A server with the hub's interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Without a slash at its end.
    base: String,
    origin: Origin,
}

impl Endpoint {
    /// The server at `url`, such as `https://huggingface.co` or `http://localhost:8080/mirror`.
    ///
    /// # Errors
    /// [`HubError::Endpoint`] for another scheme than `http` and `https`, a name and password, a query or a fragment.
    pub fn new(url: &str) -> Result<Self, HubError> {
        let base = url.trim_end_matches('/');
        let refused = |problem: String| HubError::Endpoint {
            // What stands before `@` may be a password.
            endpoint: url.rsplit('@').next().unwrap_or_default().to_owned(),
            problem,
        };
        if base.contains(['?', '#']) {
            return Err(refused("it must have neither `?` nor `#`".into()));
        }
        Ok(Self {
            origin: Origin::of(base).map_err(refused)?,
            base: base.to_owned(),
        })
    }

    /// Whether `origin` is this server, which alone may see the token.
    pub(crate) fn is_origin(&self, origin: &Origin) -> bool {
        self.origin == *origin
    }

    /// The interface's description of a revision.
    pub(crate) fn revision_url(&self, repository: &str, revision: &str) -> String {
        format!(
            "{}/api/models/{repository}/revision/{}",
            self.base,
            encoded(revision)
        )
    }

    /// The interface's list of all files of a commit.
    pub(crate) fn tree_url(&self, repository: &str, commit: &str) -> String {
        format!(
            "{}/api/models/{repository}/tree/{}?recursive=true",
            self.base,
            encoded(commit)
        )
    }

    /// A file of a commit.
    pub(crate) fn file_url(&self, repository: &str, commit: &str, path: &str) -> String {
        let path: Vec<String> = path.split('/').map(encoded).collect();
        format!(
            "{}/{repository}/resolve/{}/{}",
            self.base,
            encoded(commit),
            path.join("/")
        )
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.base)
    }
}

/// Scheme, host and port of a URL: what tells servers apart (RFC 6454).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    scheme: String,
    host: String,
    port: u16,
}

impl Origin {
    /// The origin of `url`, read by the parser that the HTTP client uses, so that both see the same host.
    pub(crate) fn of(url: &str) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|error| format!("it is no URL: {error}"))?;
        let scheme = uri.scheme_str().unwrap_or_default().to_ascii_lowercase();
        let default = match scheme.as_str() {
            "http" => 80,
            "https" => 443,
            "" => return Err("it has no scheme; write `https://` in front".into()),
            other => return Err(format!("its scheme is `{other}`, and must be `https` or `http`")),
        };
        if uri.authority().is_some_and(|it| it.as_str().contains('@')) {
            return Err("it has a name or a password in front of the host, which is not supported".into());
        }
        let host = uri.host().unwrap_or_default().to_ascii_lowercase();
        if host.is_empty() {
            return Err("it has no host".into());
        }
        Ok(Self {
            scheme,
            host,
            port: uri.port_u16().unwrap_or(default),
        })
    }

    /// Whether what is sent to it can be read on the way.
    pub(crate) fn is_plain_text(&self) -> bool {
        self.scheme == "http"
    }
}

/// The URL that `location` means in an answer of `url` (RFC 3986, 5.2, without `.` and `..`, which servers resolve).
pub(crate) fn joined(url: &str, location: &str) -> String {
    let location = location.split('#').next().unwrap_or_default();
    let scheme_end = url.find("://").map_or(0, |at| at + 3);
    let host_end = url[scheme_end..]
        .find(['/', '?'])
        .map_or(url.len(), |at| scheme_end + at);
    let has_scheme = location.split_once(':').is_some_and(|(scheme, _)| {
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
        scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.bytes().all(letter)
    });
    if has_scheme {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{}{location}", &url[..scheme_end.saturating_sub(2)])
    } else if location.starts_with('/') {
        format!("{}{location}", &url[..host_end])
    } else {
        let path = url[..url.find('?').unwrap_or(url.len())].rfind('/');
        let folder = path.filter(|at| *at >= host_end).unwrap_or(host_end);
        format!("{}/{location}", &url[..folder])
    }
}

/// `url` as it may be shown: a link to a store has a signature in its query, which opens the file to whoever reads it.
pub(crate) fn shown(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or_default()
}

/// One part of a path, with everything but unreserved characters (RFC 3986, 2.3) as `%XX`.
fn encoded(part: impl AsRef<str>) -> String {
    let mut text = String::new();
    for byte in part.as_ref().bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_hub() {
        let hub = Endpoint::new("https://huggingface.co/").unwrap();
        assert_eq!(
            hub.revision_url("a/b", "refs/pr/1"),
            "https://huggingface.co/api/models/a/b/revision/refs%2Fpr%2F1"
        );
        assert_eq!(
            hub.tree_url("a/b", "0f"),
            "https://huggingface.co/api/models/a/b/tree/0f?recursive=true"
        );
        assert_eq!(
            hub.file_url("a/b", "0f", "vae/größe 1?.json"),
            "https://huggingface.co/a/b/resolve/0f/vae/gr%C3%B6%C3%9Fe%201%3F.json"
        );
    }

    #[test]
    fn an_endpoint_that_cannot_be_used_says_why() {
        for (url, part) in [
            ("huggingface.co", "no scheme"),
            ("ftp://huggingface.co", "`ftp`"),
            ("https://", "it "),
            ("https://me:secret@huggingface.co", "name or a password"),
            ("https://huggingface.co?a=b", "neither"),
            ("https://hugging face.co", "no URL"),
        ] {
            let words = Endpoint::new(url).unwrap_err().to_string();
            assert!(words.contains(part) && words.contains("HF_ENDPOINT"), "{words}");
            assert!(!words.contains("secret"), "{words}");
        }
    }

    #[test]
    fn servers_are_told_apart_by_scheme_host_and_port() {
        let hub = Endpoint::new("https://huggingface.co").unwrap();
        let is_hub = |url: &str| Origin::of(url).is_ok_and(|origin| hub.is_origin(&origin));
        assert!(is_hub("https://HUGGINGFACE.co:443/a?b"));
        for other in [
            "http://huggingface.co/a",
            "https://huggingface.co:444/a",
            "https://huggingface.co.example/a",
            "https://huggingface.co@example.com/a",
            "https://example.com/https://huggingface.co",
            "https://example.com\\@huggingface.co",
        ] {
            assert!(!is_hub(other), "{other}");
        }
    }

    #[test]
    fn a_redirect_is_read_from_where_it_was_sent() {
        let from = "https://a.example:1/b/c?d=/e";
        for (location, to) in [
            ("https://x.example/y", "https://x.example/y"),
            ("//x.example/y", "https://x.example/y"),
            ("/y?z=https://w#f", "https://a.example:1/y?z=https://w"),
            ("y", "https://a.example:1/b/y"),
            ("ftp://x.example/", "ftp://x.example/"),
        ] {
            assert_eq!(joined(from, location), to, "{location}");
        }
        assert_eq!(joined("https://a.example", "y"), "https://a.example/y");
    }
}
