//! The README's first command, cut short.

use crate::process::{cargo, output, run as run_command, set_path};
use crate::terminal::say;
use crate::workspace::Workspace;
use anyhow::{Result, bail};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The job that is run for a few iterations.
const JOB: &str = "configs/digits-grpo.toml";

/// Lists packages with their features, a line for each.
const LIST: [&str; 5] = ["tree", "--prefix", "none", "--format", "{p} {f}"];

/// What the README's first command builds.
const PROGRAM: [&str; 4] = ["--package", "flow-train", "--edges", "no-dev"];

/// What its second command builds.
const TESTS: [&str; 1] = ["--workspace"];

/// The README's first command, cut short, and what it must leave behind. It is the program that the tests ran.
pub(super) fn run(workspace: &Workspace, iterations: usize) -> Result<()> {
    compare_commands(workspace)?;
    let folder = tempfile::tempdir()?;
    let steps = format!("run.steps={iterations}");
    let place = set_path("run.dir", folder.path());
    let mut program = Command::new(workspace.program()?);
    program.current_dir(workspace.root());
    program.args(["train", JOB, "--set", &steps, "--set", &place]);
    run_command(&mut program)?;
    let run = folder.path().join("digits-grpo");
    for file in ["run.json", "metrics.jsonl", "summary.json", "report.html"] {
        expect_content(&run.join(file))?;
    }
    let metrics = fs::read_to_string(run.join("metrics.jsonl"))?;
    say!("the run left {} records and a report", metrics.lines().count());
    Ok(())
}

/// The README's second command has of each package the features that the first has, so that it compiles nothing of the program's
/// again. That one is compiled otherwise is else noticed by the time alone that a user waits.
fn compare_commands(workspace: &Workspace) -> Result<()> {
    let of_tests = packages(workspace, &TESTS)?;
    let others: Vec<String> = packages(workspace, &PROGRAM)?
        .into_iter()
        .filter(|package| !of_tests.contains(package))
        .collect();
    if !others.is_empty() {
        bail!(
            "`cargo run` and `cargo test --workspace` build with other features:\n  {}\nadd what the tests have more to \
             crates/workspace-hack/Cargo.toml; `cargo tree --edges features --invert PACKAGE` says who asks for it",
            others.join("\n  ")
        );
    }
    Ok(())
}

/// What is built: a line `name version features` for each package.
fn packages(workspace: &Workspace, what: &[&str]) -> Result<BTreeSet<String>> {
    let tree = output(&mut cargo(workspace, &[&LIST[..], what].concat()))?;
    let lines = tree
        .lines()
        .map(|line| line.trim_end_matches("(*)").trim_end().to_owned());
    Ok(lines.collect())
}

fn expect_content(path: &Path) -> Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.len() > 0 => Ok(()),
        Ok(_) => bail!("the main job left `{}` empty", path.display()),
        Err(error) => bail!("the main job did not write `{}`: {error}", path.display()),
    }
}
