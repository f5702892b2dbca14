//! The command line of this process as text, and arguments as a shell reads them. Neither need be UTF-8.

use crate::arguments::ConfigArguments;
use std::ffi::OsStr;
use std::fmt::Write;

/// The words of the command line. Bytes that are no UTF-8 stand as `\xff`.
pub fn words() -> Vec<String> {
    std::env::args_os().map(|word| text(&word)).collect()
}

/// An argument as text; bytes that are no UTF-8 stand as `\xff`.
pub fn text(word: &OsStr) -> String {
    let mut text = String::new();
    for chunk in word.as_encoded_bytes().utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            // Writing to a string does not fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// The command with a config's arguments and `options`, to be given to a shell.
pub fn again(arguments: &ConfigArguments, command: &str, options: &str) -> String {
    let mut words = format!("flow-train {command} {}", quoted(arguments.config.as_os_str()));
    for one in &arguments.set {
        words.push_str(&format!(" --set {}", quoted(one.as_ref())));
    }
    format!("{words} {options}")
}

/// An argument as a shell reads it: POSIX quotes, or `$'…'` of bash, zsh and POSIX 2024 for what is no UTF-8.
pub fn quoted(word: &OsStr) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%".contains(c);
    match word.to_str() {
        Some(text) if !text.is_empty() && text.chars().all(plain) => text.to_owned(),
        Some(text) => format!("'{}'", text.replace('\'', "'\\''")),
        None => {
            let mut quoted = String::from("$'");
            for chunk in word.as_encoded_bytes().utf8_chunks() {
                quoted.push_str(&chunk.valid().replace('\\', "\\\\").replace('\'', "\\'"));
                for byte in chunk.invalid() {
                    let _ = write!(quoted, "\\x{byte:02x}");
                }
            }
            quoted + "'"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_words_stay_and_others_are_quoted() {
        let cases = [
            ("configs/a.toml", "configs/a.toml"),
            ("", "''"),
            ("a b", "'a b'"),
            ("it's", "'it'\\''s'"),
        ];
        for (word, wanted) in cases {
            assert_eq!(quoted(word.as_ref()), wanted);
            assert_eq!(text(word.as_ref()), word);
        }
    }

    #[cfg(unix)]
    #[test]
    fn bytes_that_are_no_utf_8_are_named_and_bash_reads_them_back() {
        use std::os::unix::ffi::OsStrExt;
        let word = OsStr::from_bytes(b"a\xff'\\b.toml");
        assert_eq!(text(word), "a\\xff'\\b.toml");
        let command = format!("printf %s {}", quoted(word));
        let bash = std::process::Command::new("bash").args(["-c", &command]).output();
        let Ok(bash) = bash else {
            println!("skipped: command_line: there is no bash");
            return;
        };
        assert_eq!(bash.stdout, word.as_bytes());
    }
}
