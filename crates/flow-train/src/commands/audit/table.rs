//! The table of an audit: a row per combination, printed as soon as it is known.

use super::{COLUMNS, Combination, Found};
use crate::failure::Failure;
use crate::terminal;
use flow_config::printable;

/// The table, printed row by row: an audit that is interrupted has said what it found.
pub(super) struct Table {
    widths: Vec<usize>,
}

impl Table {
    /// Prints the names of the columns.
    pub fn new(combinations: &[Combination]) -> Result<Self, Failure> {
        let longest = |column: usize| {
            let values = combinations
                .iter()
                .map(|one| one.values()[column].chars().count());
            values.max().unwrap_or(0).max(COLUMNS[column].len())
        };
        let table = Self {
            widths: (0..COLUMNS.len()).map(longest).collect(),
        };
        table.print(COLUMNS.iter(), &measured("ratios", "max |ratio - 1|"))?;
        Ok(table)
    }

    /// Prints what was found in `combination`, and below it what is wrong with that.
    pub fn row(&self, combination: &Combination, found: &Found) -> Result<(), Failure> {
        let audit = &found.audit;
        let deviation = format!("{:e}", audit.max_deviation());
        let numbers = measured(&audit.checked().to_string(), &deviation);
        self.print(combination.values().iter(), &numbers)?;
        if let Some(worst) = audit.worst() {
            let (other, checked) = (audit.other_bits(), audit.compared());
            line(&format!("  {worst}; {other} of {checked} have other bits"))?;
        }
        let mut undone = found.undone.iter();
        undone.try_for_each(|one| line(&format!("  {one}")))
    }

    /// Prints that `combination` failed, and why, in one line.
    pub fn failed(&self, combination: &Combination, why: &Failure) -> Result<(), Failure> {
        let why = why.to_string();
        let lines = why.lines().map(str::trim).filter(|line| !line.is_empty());
        let why = lines.collect::<Vec<_>>().join(" ");
        let said = format!("failed: {}", printable(&why));
        self.print(combination.values().iter(), &said)
    }

    fn print(&self, cells: impl Iterator<Item = impl std::fmt::Display>, rest: &str) -> Result<(), Failure> {
        let cells = cells
            .zip(&self.widths)
            .map(|(cell, width)| format!("{cell:width$}  "));
        line(&format!("{}{rest}", cells.collect::<String>()))
    }
}

/// The last two columns.
fn measured(ratios: &str, deviation: &str) -> String {
    format!("{ratios:>8}  {deviation:>15}")
}

fn line(text: &str) -> Result<(), Failure> {
    // Nobody reads it, and nobody would read the rest.
    terminal::line(text).map_err(|failure| match failure {
        Failure::Unread => Failure::CutOff,
        other => other,
    })
}
