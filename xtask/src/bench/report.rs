//! A report that is on the disk from its first row on, so that a run that is stopped leaves what it measured.

use super::date;
use crate::workspace::Workspace;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// Rows of a benchmark beside a peer, as JSON and as a table.
#[derive(Debug)]
pub(super) struct Report {
    folder: PathBuf,
    stem: String,
    about: Value,
    rows: Vec<Value>,
    table: fn(&Value, &[Value]) -> String,
}

impl Report {
    /// `KIND-DATE.md` and `.json` in `to`, a folder of the workspace or an absolute one. `peer` is what the peer says of
    /// itself, `ceiling` the rate of matrix products there, in FLOP/s.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn new(
        workspace: &Workspace,
        to: &Path,
        kind: &str,
        [peer, ceiling]: [&Value; 2],
        table: fn(&Value, &[Value]) -> String,
    ) -> Result<Self> {
        let folder = match to.is_absolute() {
            true => to.to_owned(),
            false => workspace.path(&to.to_string_lossy()),
        };
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let date = date()?;
        let ceiling = ceiling.as_f64().map(|flops| flops / 1e12);
        Ok(Self {
            stem: format!("{kind}-{date}"),
            about: json!({ "date": date, "peer": peer, "matmul_ceiling_tflops": ceiling }),
            folder,
            rows: Vec::new(),
            table,
        })
    }

    /// Adds a row, and writes all that there are.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn add(&mut self, row: Value) -> Result<()> {
        self.rows.push(row);
        let document = json!({ "about": self.about, "rows": self.rows });
        let document = serde_json::to_string_pretty(&document)? + "\n";
        for (extension, text) in [("json", document), ("md", self.text())] {
            let path = self.folder.join(format!("{}.{extension}", self.stem));
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// The table.
    pub fn text(&self) -> String {
        (self.table)(&self.about, &self.rows)
    }

    /// Where it is, in words.
    pub fn place(&self) -> String {
        format!("{}.md and .json in {}", self.stem, self.folder.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(about: &Value, rows: &[Value]) -> String {
        format!("{} {}", about["matmul_ceiling_tflops"], rows.len())
    }

    #[test]
    fn a_run_that_stops_leaves_the_rows_that_it_measured() {
        let folder = tempfile::tempdir().expect("a folder");
        let workspace = Workspace::find().expect("this workspace");
        let [peer, ceiling] = [json!({ "torch": "2" }), json!(700e12)];
        let mut report =
            Report::new(&workspace, folder.path(), "sums", [&peer, &ceiling], table).expect("a report");
        for (row, count) in [(json!({ "case": "a" }), 1), (json!({ "case": "b" }), 2)] {
            report.add(row).expect("it can be written");
            let stem = folder.path().join(&report.stem);
            let text = fs::read_to_string(stem.with_extension("md")).expect("a table");
            assert_eq!(text, format!("700.0 {count}"));
            let document = fs::read_to_string(stem.with_extension("json")).expect("figures");
            let document: Value = serde_json::from_str(&document).expect("JSON");
            assert_eq!(document["rows"].as_array().map(Vec::len), Some(count));
        }
    }
}
