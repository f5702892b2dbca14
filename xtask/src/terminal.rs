//! What tasks say on standard output.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};

/// Writes a line. A reader that has gone away (`… | head`) stops no task: what it does and what it writes to files is not for that
/// reader alone.
///
/// # Panics
/// As `println!`, if it cannot be written for another reason, for instance to a disk that is full.
pub fn line(text: Arguments<'_>) {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            panic!("cannot write to standard output: {error}")
        }
        _ => {}
    }
}

/// As `println!`, which would panic where nobody reads any more.
macro_rules! say {
    ($($text:tt)*) => {
        $crate::terminal::line(format_args!($($text)*))
    };
}
pub(crate) use say;
