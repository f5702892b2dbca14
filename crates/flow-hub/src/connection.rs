//! Requests to the hub: redirects, the token, and what a status means.

use crate::endpoint::{Origin, joined, shown};
use crate::retries::{Attempts, Failure};
use crate::{Client, HubError, Request, Response, Settings};
use std::io::Read;
use std::time::Duration;

/// Redirects that are followed, one after another.
const MAX_REDIRECTS: usize = 10;
/// The largest document, in bytes. A page of the list of files has 1,000 entries of some 300 bytes.
const MAX_DOCUMENT_BYTES: u64 = 64 << 20;

/// Who is asked, and for which repository.
pub(crate) struct Connection<'a> {
    pub(crate) client: &'a dyn Client,
    pub(crate) settings: &'a Settings,
    pub(crate) repository: &'a str,
    pub(crate) revision: &'a str,
}

/// A document and the address of the page after it.
pub(crate) struct Document {
    pub(crate) content: Vec<u8>,
    pub(crate) next_url: Option<String>,
}

impl Connection<'_> {
    /// Reads a whole document, with repetitions.
    pub(crate) fn document(&self, url: &str) -> Result<Document, HubError> {
        let mut attempts = Attempts::new(&self.settings.retries);
        loop {
            match self.try_document(url) {
                Ok(document) => return Ok(document),
                Err(failure) => attempts.wait_after(failure)?,
            }
        }
    }

    fn try_document(&self, url: &str) -> Result<Document, Failure> {
        let response = self.open(url, 0)?;
        let next_url = response
            .header("Link")
            .and_then(next_page)
            .map(|next| joined(url, next));
        let mut content = Vec::new();
        let mut body = response.body.take(MAX_DOCUMENT_BYTES + 1);
        body.read_to_end(&mut content)
            .map_err(|error| self.cut(url, &error))?;
        if content.len() as u64 > MAX_DOCUMENT_BYTES {
            return Err(Failure::Final(HubError::Answer {
                url: shown(url).to_owned(),
                problem: format!("the answer has more than {MAX_DOCUMENT_BYTES} bytes"),
            }));
        }
        Ok(Document { content, next_url })
    }

    /// A connection that ended early.
    pub(crate) fn cut(&self, url: &str, error: &dyn std::fmt::Display) -> Failure {
        let error = HubError::Connection {
            url: shown(url).to_owned(),
            problem: format!("the connection ended early ({error})"),
            attempts: 1,
        };
        Failure::Transient(error, None)
    }

    /// Asks once, and follows redirects. The answer has the status 200, 206 or 416.
    pub(crate) fn open(&self, url: &str, offset_bytes: u64) -> Result<Response, Failure> {
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let origin = Origin::of(&url).map_err(|problem| HubError::Answer {
                url: shown(&url).to_owned(),
                problem,
            })?;
            let is_hub = self.settings.endpoint.is_origin(&origin);
            let request = Request {
                url: &url,
                // Whoever has the token has the account: a store of files is not to see it.
                token: self.settings.token.as_ref().filter(|_| is_hub),
                offset_bytes,
            };
            let response = self
                .client
                .get(&request)
                .map_err(|error| self.unreachable(&url, &error))?;
            match response.status {
                200 | 206 | 416 => return Ok(response),
                301 | 302 | 303 | 307 | 308 => url = redirect(&url, &origin, &response)?,
                _ => return Err(self.refused(&url, is_hub, response)),
            }
        }
        Err(Failure::Final(HubError::Redirect {
            from: shown(&url).to_owned(),
            to: shown(&url).to_owned(),
            problem: format!("there were more than {MAX_REDIRECTS} redirects"),
        }))
    }

    fn unreachable(&self, url: &str, error: &crate::ClientError) -> Failure {
        let hub_error = HubError::Connection {
            url: shown(url).to_owned(),
            problem: error.problem.clone(),
            attempts: 1,
        };
        if error.is_transient {
            Failure::Transient(hub_error, None)
        } else {
            Failure::Final(hub_error)
        }
    }

    /// What a status that says no means.
    fn refused(&self, url: &str, is_hub: bool, response: Response) -> Failure {
        let status = response.status;
        let code = response.header("X-Error-Code").unwrap_or_default();
        let endpoint = self.settings.endpoint.to_string();
        let repository = self.repository.to_owned();
        let said = response.header("X-Error-Message");
        let message = said.map(|said| format!(", {said}")).unwrap_or_default();
        match (status, code) {
            (401 | 403, _) if is_hub => Failure::Final(HubError::NotAllowed {
                advice: self.advice(status, code),
                repository,
                status,
                message,
            }),
            (404, "RevisionNotFound") => Failure::Final(HubError::NoRevision {
                endpoint,
                repository,
                revision: self.revision.to_owned(),
            }),
            (404, "EntryNotFound") => Failure::Final(HubError::NothingThere {
                url: shown(url).to_owned(),
            }),
            (404, _) if is_hub => Failure::Final(HubError::NoRepository { endpoint, repository }),
            _ => {
                let error = HubError::Status {
                    url: shown(url).to_owned(),
                    status,
                    message,
                    attempts: 1,
                };
                // A link to a store expires, which it says by 403 or 404; the next request gets a new one.
                if !is_hub || matches!(status, 408 | 429 | 500 | 502..=504) {
                    Failure::Transient(error, retry_after(&response))
                } else {
                    Failure::Final(error)
                }
            }
        }
    }

    /// What to do if the hub does not let somebody in.
    fn advice(&self, status: u16, code: &str) -> String {
        let endpoint = &self.settings.endpoint;
        let page = format!("{endpoint}/{}", self.repository);
        let has_token = self.settings.token.is_some();
        match (has_token, code) {
            (false, "GatedRepo") => format!(
                "it is gated. Log in at {page} and accept its licence, make a token with read access at {endpoint}/settings/tokens, \
                 and set HF_TOKEN to it"
            ),
            (false, _) => format!(
                "it is gated or private, or there is no such repository, which the hub does not tell apart without a token. Check the \
                 name at {page}; if it asks to accept a licence, do so; then make a token with read access at \
                 {endpoint}/settings/tokens, and set HF_TOKEN to it"
            ),
            (true, "GatedRepo") => format!(
                "it is gated. Log in at {page} with the account of the token (HF_TOKEN) and accept its licence; authors may have to \
                 approve it first. A fine-grained token must allow reading of public gated repositories"
            ),
            (true, _) if status == 401 => format!(
                "the token (HF_TOKEN) is not valid, or the repository is private or not there. Make a token with read access at \
                 {endpoint}/settings/tokens, and check the name at {page}"
            ),
            (true, _) => format!(
                "the account of the token (HF_TOKEN) may not read it. See at {page} whether a licence has to be accepted, and whether \
                 the token has read access"
            ),
        }
    }
}

/// Where a redirect leads.
fn redirect(url: &str, origin: &Origin, response: &Response) -> Result<String, HubError> {
    let location = response.header("Location").unwrap_or_default();
    let refused = |to: &str, problem: String| HubError::Redirect {
        from: shown(url).to_owned(),
        to: shown(to).to_owned(),
        problem,
    };
    if location.is_empty() {
        return Err(refused("", "it names no address".into()));
    }
    let to = joined(url, location);
    let next = Origin::of(&to).map_err(|problem| refused(&to, problem))?;
    if next.is_plain_text() && !origin.is_plain_text() {
        return Err(refused(
            &to,
            "it leads from `https` to `http`, which anybody on the way can change".into(),
        ));
    }
    Ok(to)
}

/// Seconds that a server asks to wait; a date, which `Retry-After` may be as well, counts as none.
fn retry_after(response: &Response) -> Option<Duration> {
    let seconds = response.header("Retry-After")?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// The address of the next page in a `Link` header (RFC 8288): `<URL>; rel="next"`.
fn next_page(link: &str) -> Option<&str> {
    let mut rest = link;
    while let Some((_, after)) = rest.split_once('<') {
        let (url, parameters) = after.split_once('>')?;
        let end = parameters.find('<').unwrap_or(parameters.len());
        let plain: String = parameters[..end]
            .chars()
            .filter(|c| !c.is_whitespace() && *c != '"')
            .collect();
        if plain.split([';', ',']).any(|parameter| parameter == "rel=next") {
            return Some(url);
        }
        rest = &parameters[end..];
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_the_link_that_says_so() {
        let link = "<https://a.example/?x=1,2>; rel=\"prev\", <https://a.example/?cursor=b,c>; rel=\"next\"";
        assert_eq!(next_page(link), Some("https://a.example/?cursor=b,c"));
        assert_eq!(next_page("</b>;rel=next"), Some("/b"));
        assert_eq!(next_page("<https://a.example/>; rel=\"nextish\""), None);
        assert_eq!(next_page("<https://a.example/"), None);
    }
}
