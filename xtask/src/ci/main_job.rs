//! The README's first command, cut short.

use super::SHARED;
use crate::process::{cargo, output, run as run_command};
use crate::terminal::say;
use crate::workspace::Workspace;
use anyhow::{Result, bail};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The job that is run for a few iterations.
const JOB: &str = "configs/digits-grpo.toml";

/// Builds the README's program, of what the tests were built of.
const BUILD: [&str; 6] = [
    "build",
    "--release",
    "--package",
    "flow-train",
    "--bin",
    "flow-train",
];

/// Lists each package that the README's program is built of, with its features.
const LIST: [&str; 9] = [
    "tree",
    "--package",
    "flow-train",
    "--edges",
    "no-dev",
    "--prefix",
    "none",
    "--format",
    "{p} {f}",
];

/// What CI's build of the program has more of.
const WITH_SHARED: [&str; 4] = ["--package", "workspace-hack", "--features", SHARED];

/// Packages of the README's build that have fewer features than in CI's.
const WITH_MORE: [&str; 2] = ["burn-backend ", "workspace-hack "];

/// The README's first command, cut short, and what it must leave behind.
pub(super) fn run(workspace: &Workspace, iterations: usize) -> Result<()> {
    compare_with_readme(workspace)?;
    run_command(&mut cargo(workspace, &[&BUILD[..], &WITH_SHARED].concat()))?;
    let folder = tempfile::tempdir()?;
    let steps = format!("run.steps={iterations}");
    let place = format!(
        "run.dir={}",
        toml::Value::from(folder.path().to_string_lossy().into_owned())
    );
    let mut program = Command::new(workspace.release_folder()?.join("flow-train"));
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

/// The README's command, which has no features, builds what CI's does: the same packages with the same features, but for
/// `burn-backend`. That one of them is compiled otherwise is else noticed by a user alone, or by the time that CI takes.
fn compare_with_readme(workspace: &Workspace) -> Result<()> {
    let ours = packages(workspace, &WITH_SHARED)?;
    let others: Vec<String> = packages(workspace, &[])?
        .into_iter()
        .filter(|package| !ours.contains(package))
        .filter(|package| !WITH_MORE.iter().any(|name| package.starts_with(name)))
        .collect();
    if !others.is_empty() {
        bail!(
            "the README's command builds with other features than CI:\n  {}\nadd what CI's build has more to \
             crates/workspace-hack/Cargo.toml; `cargo tree --edges features --invert PACKAGE` says who asks for it",
            others.join("\n  ")
        );
    }
    Ok(())
}

/// What the program is built of: a line `name version features` for each package.
fn packages(workspace: &Workspace, more: &[&str]) -> Result<BTreeSet<String>> {
    let tree = output(&mut cargo(workspace, &[&LIST[..], more].concat()))?;
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
