//! The README's first command, cut short.

use crate::process::{cargo, run as run_command};
use crate::terminal::say;
use crate::workspace::Workspace;
use anyhow::{Result, bail};
use std::fs;
use std::path::Path;

/// The job that is run for a few iterations.
const JOB: &str = "configs/digits-grpo.toml";

/// The README's first command, cut short, and what it must leave behind.
pub(super) fn run(workspace: &Workspace, iterations: usize) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let steps = format!("run.steps={iterations}");
    let place = format!(
        "run.dir={}",
        toml::Value::from(folder.path().to_string_lossy().into_owned())
    );
    let arguments = [
        "run",
        "--release",
        "--",
        "train",
        JOB,
        "--set",
        &steps,
        "--set",
        &place,
    ];
    run_command(&mut cargo(workspace, &arguments))?;
    let run = folder.path().join("digits-grpo");
    for file in ["run.json", "metrics.jsonl", "summary.json", "report.html"] {
        expect_content(&run.join(file))?;
    }
    let metrics = fs::read_to_string(run.join("metrics.jsonl"))?;
    say!("the run left {} records and a report", metrics.lines().count());
    Ok(())
}

fn expect_content(path: &Path) -> Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.len() > 0 => Ok(()),
        Ok(_) => bail!("the main job left `{}` empty", path.display()),
        Err(error) => bail!("the main job did not write `{}`: {error}", path.display()),
    }
}
