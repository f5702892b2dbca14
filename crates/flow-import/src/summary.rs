//! What a person is told of a conversion: the verdict, what changes the result, and the rest in two lines.

use std::fmt::Write as _;

use crate::note::{Note, Outcome, Rank};
use crate::{Imported, shortened};

impl Imported {
    /// The verdict in the first line; then a note in a line each of what decides or changes what is trained; then the
    /// keys that have no counterpart and change nothing, folded into a line, and how many were converted. The text ends
    /// with a newline and holds no other control character.
    pub fn summary(&self) -> String {
        let mut text = format!("verdict: {}\n", self.verdict);
        for rank in [Rank::Verdict, Rank::Result] {
            for note in self.notes.iter().filter(|note| note.rank == rank) {
                text.push_str(&line(note));
            }
        }
        let without: Vec<&str> = self
            .notes
            .iter()
            .filter(|note| note.rank == Rank::Detail && note.outcome == Outcome::Kept)
            .map(|note| note.from.as_str())
            .collect();
        match without.as_slice() {
            [] => {}
            [one] => writeln!(
                text,
                "1 more key has no counterpart here and changes nothing about what is trained: {one}"
            )
            .unwrap_or_default(),
            several => writeln!(
                text,
                "{} more keys have no counterpart here and change nothing about what is trained: {}",
                several.len(),
                several.join(", ")
            )
            .unwrap_or_default(),
        }
        let count = |outcome| self.notes.iter().filter(|note| note.outcome == outcome).count();
        writeln!(
            text,
            "{} converted, {} that say what flow-train does anyway, {} of Flow-Factory's defaults added",
            keys(count(Outcome::Converted)),
            count(Outcome::Default),
            count(Outcome::Added),
        )
        .unwrap_or_default();
        text
    }

    /// The verdict, and every note in a line, the weightiest first.
    pub fn all_notes(&self) -> String {
        let mut text = format!("verdict: {}\n", self.verdict);
        for rank in [Rank::Verdict, Rank::Result, Rank::Detail] {
            for note in self.notes.iter().filter(|note| note.rank == rank) {
                text.push_str(&line(note));
            }
        }
        text
    }
}

fn keys(count: usize) -> String {
    match count {
        1 => "1 key".to_owned(),
        count => format!("{count} keys"),
    }
}

/// A note in a line. Values of lists and maps can be long; the TOML has them whole.
fn line(note: &Note) -> String {
    let note = Note {
        value: shortened(&note.value, 100),
        ..note.clone()
    };
    // Texts of users stand in it, which a terminal is to show and not to obey.
    let line = note.to_string().replace('\n', " ");
    format!("{}\n", flow_config::printable(&line))
}
