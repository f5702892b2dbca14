//! What tasks say on standard output.

use std::fmt::Arguments;
use std::io::{self, Write};

/// Writes a line. A reader that has gone away (`… | head`) stops no task: what it does and what it writes to files is not for that
/// reader alone.
pub fn line(text: Arguments<'_>) {
    let _ = writeln!(io::stdout().lock(), "{text}");
}

/// As `println!`, which would panic where nobody reads any more.
macro_rules! say {
    ($($text:tt)*) => {
        $crate::terminal::line(format_args!($($text)*))
    };
}
pub(crate) use say;
