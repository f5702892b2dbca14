//! One server: its requests over HTTP, and whether it answered lately.
//!
//! A redirect is not followed, so no header goes to a server that the config does not name. Each request has a connection of its
//! own: a connection that is kept may be one that the server has closed meanwhile.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use flow_trust::tls_config;
use ureq::http::{Response, Uri};
use ureq::tls::TlsConfig;

use super::headers::Headers;
use super::{Failure, Protocol};

/// How long a server that failed is asked last.
const REST: Duration = Duration::from_secs(30);
/// The longest answer that is read.
const LONGEST_ANSWER: u64 = 4 << 20;

/// What is known of a server.
#[derive(Clone, Copy, Debug)]
enum State {
    /// Not asked yet, or asked in vain until then: its health is asked for first.
    Unknown { rests_until: Option<Instant> },
    /// It answered last time.
    Works,
}

/// A server of the config.
#[derive(Debug)]
pub(super) struct Server {
    url: String,
    agent: ureq::Agent,
    state: Mutex<State>,
}

impl Server {
    /// The server at `url`.
    ///
    /// # Errors
    /// Why `url` is none, or whom `SSL_CERT_FILE` trusts cannot be read.
    pub(super) fn new(
        url: &str,
        timeout: Duration,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        let uri = checked_url(url)?;
        // Where nothing is encrypted, nobody's certificate is looked at.
        let tls = match uri.scheme_str() {
            Some("https") => tls_config(variable)?,
            _ => TlsConfig::default(),
        };
        // A proxy does not know this machine's own servers.
        let is_local = is_loopback(uri.host().unwrap_or_default());
        let proxy = ureq::Proxy::try_from_env().filter(|_| !is_local);
        let config = ureq::Agent::config_builder()
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .max_idle_connections(0)
            .proxy(proxy)
            .tls_config(tls)
            .user_agent(concat!("flow-rewards-remote/", env!("CARGO_PKG_VERSION")))
            .timeout_global(Some(timeout));
        Ok(Self {
            url: url.trim_end_matches('/').to_owned(),
            agent: config.build().into(),
            state: Mutex::new(State::Unknown { rests_until: None }),
        })
    }

    /// Its URL without a slash at the end.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Whether it failed lately.
    pub(super) fn is_resting(&self) -> bool {
        match self.state() {
            State::Unknown { rests_until } => rests_until.is_some_and(|until| Instant::now() < until),
            State::Works => false,
        }
    }

    /// What `read` makes of the answer to `body`; a server that is not known to work is asked for its health first.
    pub(super) fn ask<T>(
        &self,
        protocol: &Protocol,
        body: &[u8],
        headers: &Headers,
        read: impl Fn(u16, &[u8]) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let answered = self
            .answer(protocol, body, headers)
            .and_then(|(status, body)| read(status, &body));
        let state = match &answered {
            Ok(_) => State::Works,
            Err(_) => State::Unknown {
                rests_until: Instant::now().checked_add(REST),
            },
        };
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        answered
    }

    fn state(&self) -> State {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Status and body of the answer to `body`.
    fn answer(&self, protocol: &Protocol, body: &[u8], headers: &Headers) -> Result<(u16, Vec<u8>), Failure> {
        if let (Some(health), State::Unknown { .. }) = (protocol.health, self.state()) {
            let request = self.agent.get(format!("{}{}", self.url, health.path));
            let request = headers.iter().fold(request, |request, (name, value)| {
                request.header(name.clone(), value.clone())
            });
            let (status, body) = read(health.path, request.call())?;
            (health.read)(status, &body)?;
        }
        let request = self.agent.post(format!("{}{}", self.url, protocol.path));
        let request = headers.iter().fold(request, |request, (name, value)| {
            request.header(name.clone(), value.clone())
        });
        let request = request.header("Content-Type", "application/json");
        read(protocol.path, request.send(body))
    }
}

/// Status and body of an answer, which is no redirect.
fn read(path: &str, response: Result<Response<ureq::Body>, ureq::Error>) -> Result<(u16, Vec<u8>), Failure> {
    let failed = |error: ureq::Error| match error {
        ureq::Error::Timeout(_) => Failure::passing(format!("did not answer {path} within `timeout_s`")),
        ureq::Error::BodyExceedsLimit(limit) => {
            Failure::lasting(format!("answered {path} with more than {limit} bytes"))
        }
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) | ureq::Error::BadUri(_) => {
            Failure::lasting(format!("cannot be asked for {path}: {error}"))
        }
        error => Failure::passing(format!("gave no whole answer to {path}: {error}")),
    };
    let (parts, body) = response.map_err(failed)?.into_parts();
    let status = parts.status.as_u16();
    if parts.status.is_redirection() {
        let location = parts.headers.get("Location").and_then(|it| it.to_str().ok());
        return Err(Failure::lasting(format!(
            "answered {path} with a redirect (status {status}) to {}, which is not followed, so that no header reaches another \
             server; name that one in `servers`",
            crate::score::excerpt(location.unwrap_or_default())
        )));
    }
    let body = body.into_with_config().limit(LONGEST_ANSWER).read_to_vec();
    Ok((status, body.map_err(failed)?))
}

/// The parts of a server's URL.
///
/// # Errors
/// Why it is none; a name and a password in it are not shown.
pub(super) fn checked_url(url: &str) -> Result<Uri, String> {
    if url.contains('@') {
        return Err(
            "a URL must have no name and password; a token is in a variable of the environment, which the config names".to_owned(),
        );
    }
    let uri: Uri = url
        .parse()
        .map_err(|error| format!("`{url}` is no URL: {error}"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none_or(str::is_empty) {
        return Err(format!(
            "`{url}` must begin with `http://` or `https://` and a host"
        ));
    }
    if url.contains(['?', '#']) {
        return Err(format!("`{url}` must have neither `?` nor `#`"));
    }
    Ok(uri)
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_scheme_a_host_and_perhaps_a_path() {
        for url in [
            "http://localhost:8000",
            "https://rewards.example/geneval/",
            "http://[::1]:80",
        ] {
            assert!(checked_url(url).is_ok(), "{url}");
        }
        for (url, words) in [
            ("localhost:8000", "must begin"),
            ("ftp://host", "must begin"),
            ("", "is no URL"),
            ("http://me:secret@host", "no name and password"),
            ("http://host/?a=b", "neither `?`"),
        ] {
            let problem = checked_url(url).unwrap_err();
            assert!(
                problem.contains(words) && !problem.contains("secret"),
                "{problem}"
            );
        }
    }

    #[test]
    fn this_machine_has_several_names() {
        for (host, local) in [
            ("localhost", true),
            ("127.0.0.2", true),
            ("[::1]", true),
            ("localhost.example", false),
            ("10.0.0.1", false),
        ] {
            assert_eq!(is_loopback(host), local, "{host}");
        }
    }
}
