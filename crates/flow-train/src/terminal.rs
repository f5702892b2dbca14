//! Standard output and standard error.

use crate::failure::Failure;
use std::io::{self, IsTerminal, Write};

/// Writes a result to standard output. A reader that has gone away (`… | head`) is no failure.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Run(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// As [`print()`], with a newline.
pub fn line(text: &str) -> Result<(), Failure> {
    print(&format!("{text}\n"))
}

/// Writes to standard error. That it cannot be written leaves nobody to tell.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes an error; what is rendered already stays as it is.
pub fn error(text: &str) {
    let mark = if stderr_is_terminal() {
        "\u{1b}[31merror:\u{1b}[0m"
    } else {
        "error:"
    };
    match text.strip_prefix(RENDERED) {
        Some(rendered) => note(rendered.trim_end()),
        // Texts of users stand in it, which a terminal is to show and not to obey.
        None => note(&format!("{mark} {}", flow_config::printable(text))),
    }
}

/// Begins a message that needs no `error:` before it.
pub const RENDERED: &str = "\0";

/// Whether a person reads standard error as it is written.
pub fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Rows of equal columns, two spaces apart; the first `left` columns are text, the others numbers.
pub fn table(rows: &[Vec<String>], left: usize) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(column, (cell, width))| {
                if column < left {
                    format!("{cell:width$}")
                } else {
                    format!("{cell:>width$}")
                }
            });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}
