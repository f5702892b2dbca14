//! The programs in Python, which nothing here runs: whether they are Python at all.

use crate::process::{exists, run as run_command};
use crate::skips::Skips;
use crate::workspace::Workspace;
use anyhow::Result;
use std::path::PathBuf;
use std::process::Command;

/// Parses each file that is named, and writes nothing.
const PARSE: &str = "import ast, sys
for path in sys.argv[1:]:
    with open(path, encoding='utf-8') as file:
        ast.parse(file.read(), path)";

/// Parses every program, if Python is here.
pub(super) fn run(workspace: &Workspace, skips: &mut Skips) -> Result<()> {
    let files: Vec<PathBuf> = workspace
        .files()?
        .iter()
        .filter(|path| path.extension().is_some_and(|end| end == "py"))
        .map(|path| workspace.relative(path).to_owned())
        .collect();
    if !exists("python3") {
        skips.step("programs in Python", "there is no python3");
        return Ok(());
    }
    let mut python = Command::new("python3");
    python
        .current_dir(workspace.root())
        .args(["-c", PARSE])
        .args(&files);
    run_command(&mut python)
}
