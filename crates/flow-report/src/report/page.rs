//! A page that needs nothing but itself: its style, its script, and a policy that lets nothing else in.

use std::fmt::Write as _;

use crate::curve;
use crate::escape::escape;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// SHA-256 of [`SCRIPT`] in base64: the policy lets a browser run this script and no other. A test compares it.
const SCRIPT_SHA256: &str = "TcMuLVEnZPy/ciTh9u2psnfvBo25NqrmMAGTPm4j0W0=";

/// A document with `body` in it.
pub(super) fn document(title: &str, body: &str) -> String {
    let mut out = String::with_capacity(body.len() + STYLE.len() + SCRIPT.len() + 4096);
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'; \
         script-src 'sha256-{SCRIPT_SHA256}'; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{} · flow-train</title>\n\
         <style>\n{}\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n",
        escape(title),
        curve::STYLE
    );
    out
}

/// Links to the sections of a page: the id and the title of each.
pub(super) fn write_navigation(out: &mut String, sections: &[(&str, &str)]) -> std::fmt::Result {
    write!(out, "<nav aria-label=\"sections\">")?;
    for (id, title) in sections {
        write!(out, "<a href=\"#{id}\">{title}</a>")?;
    }
    writeln!(out, "</nav>")
}
