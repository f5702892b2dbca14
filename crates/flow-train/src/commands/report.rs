//! `report`: the report of a run, made again from its files.

use crate::failure::{Failure, OrFailure};
use crate::terminal;
use std::path::Path;

/// Writes `report.html` and prints its path.
pub fn run(run: &Path) -> Result<(), Failure> {
    let report = flow_report::write_report(run).or_bad_input()?;
    terminal::line(&report.display().to_string())
}
