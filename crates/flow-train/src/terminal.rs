//! Standard output and standard error.

use crate::failure::Failure;
use std::io::{self, IsTerminal, Write};

/// Writes a result to standard output.
///
/// # Errors
/// [`Failure::Unread`] if its reader has gone away (`… | head`): what would be computed for it need not be.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::Unread,
            _ => Failure::Run(format!("cannot write to standard output: {error}")),
        })
}

/// As [`print()`], with a newline.
pub fn line(text: &str) -> Result<(), Failure> {
    print(&format!("{text}\n"))
}

/// Writes to standard error. That it cannot be written leaves nobody to tell.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes an error.
pub fn error(text: &str) {
    let mark = if stderr_is_terminal() {
        "\u{1b}[31merror:\u{1b}[0m"
    } else {
        "error:"
    };
    // Texts of users stand in it, which a terminal is to show and not to obey.
    note(&format!("{mark} {}", flow_config::printable(text)));
}

/// Whether a person reads standard error as it is written.
pub fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Whether a person reads standard output as it is written.
pub fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Columns of a terminal that text for people is made for.
pub const WIDTH: usize = 80;

/// Names and what is said of them, in two columns; what is longer than a line goes on below itself.
pub fn pairs(rows: &[(impl AsRef<str>, String)]) -> String {
    pairs_in(rows, WIDTH)
}

/// As [`pairs`], for a terminal of `width` columns.
pub fn pairs_in(rows: &[(impl AsRef<str>, String)], width: usize) -> String {
    let names = rows.iter().map(|(name, _)| name.as_ref().chars().count());
    let name_width = names.max().unwrap_or(0);
    let room = width.saturating_sub(name_width + 2).max(20);
    let mut text = String::new();
    for (name, said) in rows {
        let lines = wrapped(said, room);
        for (number, line) in lines.iter().enumerate() {
            let name = if number == 0 { name.as_ref() } else { "" };
            text.push_str(format!("{name:name_width$}  {line}").trim_end());
            text.push('\n');
        }
    }
    text
}

/// Text in lines of at most `width` characters, broken at spaces; a longer word has a line of its own. At least one line.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut filled = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if filled > 0 && filled + 1 + length > width {
            lines.push(String::new());
            filled = 0;
        }
        let Some(line) = lines.last_mut() else { break };
        if filled > 0 {
            line.push(' ');
            filled += 1;
        }
        line.push_str(word);
        filled += length;
    }
    lines
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
