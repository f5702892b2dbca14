//! What tests left out: lines `skipped: NAME: REASON` that they print, counted and printed again where a person looks.

use crate::terminal::say;
use std::collections::BTreeSet;

/// How such a line begins; `test_support::skipped` writes it.
const MARK: &str = "skipped: ";

/// What was left out so far, each once.
#[derive(Debug, Default)]
pub struct Skips {
    found: BTreeSet<String>,
}

impl Skips {
    /// Takes a line that a test printed, if it says that something was left out.
    pub fn hear(&mut self, line: &str) {
        if let Some(what) = line.trim_end().strip_prefix(MARK) {
            self.found.insert(what.to_owned());
        }
    }

    /// Notes that a whole step was left out.
    pub fn step(&mut self, name: &str, reason: &str) {
        say!("\n=== {name}: left out, {reason}");
        self.found.insert(format!("{name}: {reason}"));
    }

    /// How many things were left out.
    pub fn count(&self) -> usize {
        self.found.len()
    }

    /// Prints them all.
    pub fn print(&self) {
        match self.count() {
            0 => say!("\nskipped: nothing"),
            count => say!("\n{count} skipped:"),
        }
        for what in &self.found {
            say!("  {what}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_skipped_tests_are_counted_once_each_and_others_not() {
        let mut skips = Skips::default();
        for line in [
            "   Compiling skipped v0.1.0",
            "skipped: a (tests/a.rs:1): no driver\n",
            "skipped: a (tests/a.rs:1): no driver",
            "skipped: b (tests/a.rs:9): no driver",
            "test result: ok. 3 passed",
        ] {
            skips.hear(line);
        }
        skips.step("compile check", "pip is missing");
        assert_eq!(skips.count(), 3);
    }
}
