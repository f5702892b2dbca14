//! What the status of an answer means, and its JSON.

use serde_json::Value;

use super::Failure;
use crate::score::{excerpt, not_json};

/// The JSON of an answer to `path` with the status 200.
pub(crate) fn json(path: &str, status: u16, body: &[u8]) -> Result<Value, Failure> {
    let text = String::from_utf8_lossy(body);
    if status != 200 {
        let what = format!("answered {path} with status {status}: {}", excerpt(&text));
        // Too early, too many, or a fault of the server: what may pass.
        let passes = matches!(status, 408 | 425 | 429) || status >= 500;
        return Err(if passes {
            Failure::passing(what)
        } else {
            Failure::lasting(what)
        });
    }
    serde_json::from_slice(body).map_err(|error| {
        let what = format!("answered {path} with {}", not_json(&text, &error));
        // A server that ends while it writes leaves JSON without an end.
        if error.is_eof() {
            Failure::passing(what)
        } else {
            Failure::lasting(what)
        }
    })
}

/// Whether an answer to `/health` says that the server is ready.
pub(crate) fn is_healthy(status: u16, body: &[u8]) -> Result<(), Failure> {
    let answer = json("/health", status, body)?;
    if answer.get("status").and_then(Value::as_str) == Some("ok") {
        return Ok(());
    }
    // A server that loads its model says so, and is ready later.
    Err(Failure::passing(format!(
        "is not ready; /health answered {} and not `{{\"status\":\"ok\"}}`",
        excerpt(&String::from_utf8_lossy(body))
    )))
}
