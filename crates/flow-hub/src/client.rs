//! The HTTP client: a trait with one method, and its implementation by ureq and rustls.
//!
//! A client follows no redirect. Which server may see the token is decided in one place, in `connection`.

use crate::Token;
use flow_trust::tls_config;
use std::fmt;
use std::io::{ErrorKind, Read};
use std::time::Duration;
use ureq::tls::TlsConfig;

/// Time to find a server's address, and to connect to it.
const CONNECT: Duration = Duration::from_secs(30);
/// Time until the headers of an answer are there.
const HEADERS: Duration = Duration::from_secs(60);
/// Time for the body of one answer. A download that takes longer is resumed by another request, so this also ends a connection
/// over which nothing comes any more.
const BODY: Duration = Duration::from_secs(300);

/// A GET request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The whole URL.
    pub url: &'a str,
    /// Sent as `Authorization: Bearer TOKEN`.
    pub token: Option<&'a Token>,
    /// The first byte wanted, sent as `Range: bytes=OFFSET-` if it is not 0.
    pub offset_bytes: u64,
}

/// The answer of a server, whatever its status.
pub struct Response {
    /// The status, such as 200.
    pub status: u16,
    /// Names and values of the headers.
    pub headers: Vec<(String, String)>,
    /// The body as it is sent, neither decompressed nor limited.
    pub body: Box<dyn Read + Send>,
}

impl Response {
    /// The first header of this name; case does not matter.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(it, _)| it.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("status", &self.status)
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}

/// No answer came.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
pub struct ClientError {
    /// What happened.
    pub problem: String,
    /// Whether the same request may succeed later.
    pub is_transient: bool,
}

/// What sends requests. Tests and programs with a client of their own implement it.
pub trait Client: Send + Sync {
    /// Sends `request` and gives the answer with any status, a redirect included, which must not be followed.
    ///
    /// # Errors
    /// [`ClientError`] if no answer came.
    fn get(&self, request: &Request<'_>) -> Result<Response, ClientError>;
}

/// A client of HTTP 1.1 with TLS by rustls.
#[derive(Clone, Debug)]
pub struct HttpClient {
    agent: ureq::Agent,
}

impl HttpClient {
    /// A client that connects to servers directly and trusts the authorities of browsers.
    pub fn direct() -> Self {
        Self::with(None, TlsConfig::default())
    }

    /// A client that uses the proxy of the variables `HTTPS_PROXY`, `HTTP_PROXY` or `ALL_PROXY`, except for the hosts of
    /// `NO_PROXY`, and trusts the authorities of the file `SSL_CERT_FILE`, as other programs do. `variable` gives the value of an environment
    /// variable.
    ///
    /// # Errors
    /// [`ClientError`] where that file cannot be read or has no certificates.
    pub fn of_environment(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, ClientError> {
        let tls = tls_config(variable).map_err(|problem| ClientError {
            problem,
            is_transient: false,
        })?;
        Ok(Self::with(ureq::Proxy::try_from_env(), tls))
    }

    fn with(proxy: Option<ureq::Proxy>, tls: TlsConfig) -> Self {
        let config = ureq::Agent::config_builder()
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .proxy(proxy)
            .tls_config(tls)
            .user_agent(concat!("flow-hub/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(HEADERS))
            .timeout_recv_body(Some(BODY));
        Self {
            agent: config.build().into(),
        }
    }
}

impl Client for HttpClient {
    fn get(&self, request: &Request<'_>) -> Result<Response, ClientError> {
        // A compressed body would have neither the size nor the ranges of the file.
        let mut call = self.agent.get(request.url).header("Accept-Encoding", "identity");
        if let Some(token) = request.token {
            call = call.header("Authorization", format!("Bearer {}", token.expose()));
        }
        if request.offset_bytes > 0 {
            call = call.header("Range", format!("bytes={}-", request.offset_bytes));
        }
        let (parts, body) = call.call().map_err(client_error)?.into_parts();
        let headers = parts.headers.iter().map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.as_str().to_owned(), value)
        });
        Ok(Response {
            status: parts.status.as_u16(),
            headers: headers.collect(),
            body: Box::new(body.into_reader()),
        })
    }
}

fn client_error(error: ureq::Error) -> ClientError {
    // As what rustls says of a server comes through a connection: of its certificate, say.
    let is_of_tls = match &error {
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) => true,
        ureq::Error::Io(inner) => inner.kind() == ErrorKind::InvalidData,
        _ => false,
    };
    let is_transient = !is_of_tls
        && matches!(
            error,
            ureq::Error::Io(_)
                | ureq::Error::Timeout(_)
                | ureq::Error::HostNotFound
                | ureq::Error::ConnectionFailed
                | ureq::Error::Protocol(_)
        );
    let problem = match &error {
        ureq::Error::HostNotFound => "its name is not known; check the name and the network".to_owned(),
        _ if is_of_tls => format!(
            "{error}; if a proxy of your network replaces certificates, let the variable `SSL_CERT_FILE` name a PEM file with its \
             authority, on Debian /etc/ssl/certs/ca-certificates.crt"
        ),
        _ => error.to_string(),
    };
    ClientError {
        problem,
        is_transient,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_certificate_that_is_not_trusted_is_not_tried_again_and_the_error_says_what_helps() {
        let of = |kind, text: &str| client_error(ureq::Error::Io(io::Error::new(kind, text)));
        let stranger = of(ErrorKind::InvalidData, "invalid peer certificate: UnknownIssuer");
        assert!(!stranger.is_transient);
        assert!(
            stranger.problem.contains("UnknownIssuer") && stranger.problem.contains("SSL_CERT_FILE"),
            "{stranger}"
        );
        let broken = of(ErrorKind::ConnectionReset, "reset");
        assert!(
            broken.is_transient && !broken.problem.contains("SSL_CERT_FILE"),
            "{broken}"
        );
    }
}
