//! Whom a client trusts behind `https://`.
#![doc = ""]
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

use std::fs;

use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// OpenSSL's name for it, which other programs of a machine read, too.
const VARIABLE: &str = "SSL_CERT_FILE";

/// How ureq speaks TLS. `variable` gives the value of an environment variable.
///
/// # Errors
/// A file that cannot be read, or that holds no certificate.
pub fn tls_config(variable: &dyn Fn(&str) -> Option<String>) -> Result<TlsConfig, String> {
    let Some(path) = variable(VARIABLE).filter(|path| !path.is_empty()) else {
        return Ok(TlsConfig::default());
    };
    let wrong = |problem: String| {
        format!(
            "`{path}`, which the variable `{VARIABLE}` names, {problem}; name a PEM file with the certificates of the authorities that \
             are trusted, or unset the variable"
        )
    };
    let file = fs::read(&path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    let mut trusted: Vec<Certificate<'static>> = Vec::new();
    for item in parse_pem(&file) {
        match item {
            Ok(PemItem::Certificate(certificate)) => trusted.push(certificate),
            Ok(_) => {}
            Err(error) => return Err(wrong(format!("is damaged: {error}"))),
        }
    }
    if trusted.is_empty() {
        return Err(wrong("holds no certificate".to_owned()));
    }
    Ok(TlsConfig::builder().root_certs(RootCerts::from(trusted)).build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_there_or_holds_no_certificate_is_named() {
        assert!(tls_config(&|_| None).is_ok());
        assert!(tls_config(&|_| Some(String::new())).is_ok());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trusted.pem");
        let named = || tls_config(&|name| (name == VARIABLE).then(|| path.display().to_string()));
        assert!(named().unwrap_err().contains("cannot be read"));
        for content in ["", "no certificate"] {
            fs::write(&path, content).unwrap();
            let problem = named().unwrap_err();
            assert!(
                problem.contains("holds no certificate") && problem.contains(VARIABLE),
                "{problem}"
            );
        }
    }
}
