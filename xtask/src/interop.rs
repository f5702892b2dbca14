//! `cargo xtask interop`: LoRA files and models exchanged with diffusers and `peft`, both ways, and outputs compared.
//!
//! Recorded files of both are in the tests of `flow-models`; this asks the programs themselves. Their Python environment is made
//! once, in the user's cache folder: 1.5 GB to fetch, 6 GB on disk.

use crate::peer::cache_folder;
use crate::process::{cargo, run as run_command};
use crate::terminal::say;
use crate::workspace::Workspace;
use anyhow::{Context, Result};
use clap::Args;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;

/// Builds the example of `flow-models` that writes our files and reads theirs: of the whole workspace, so that what other builds
/// of it made serves.
const BUILD: [&str; 5] = ["build", "--release", "--workspace", "--example", EXAMPLE];
const EXAMPLE: &str = "interop";
const REQUIREMENTS: &str = "tests/interop/requirements.txt";
const CHECK: &str = "tests/interop/check.py";
const FIXTURES: &str = "crates/flow-models/tests/fixtures";

/// What to run it with.
#[derive(Debug, Default, Args)]
pub struct Options {
    /// A Python that has what `tests/interop/requirements.txt` lists, in the place of an environment of our own.
    #[arg(long)]
    python: Option<PathBuf>,
}

/// Exchanges files. Gives the reason if the environment cannot be had, which is no failure of ours.
pub fn run(workspace: &Workspace, options: &Options) -> Result<Option<String>> {
    let python = match &options.python {
        Some(python) => Ok(python.clone()),
        None => environment(workspace),
    };
    exchange(workspace, python, &[])
}

/// Makes the environment beside other work, for most of the time goes by until it is fetched.
pub fn begin(workspace: &Workspace) -> JoinHandle<Result<PathBuf>> {
    let workspace = workspace.clone();
    std::thread::spawn(move || environment(&workspace))
}

/// As [`run`], with the `python` of an environment, in a workspace that is built with `features`.
pub fn exchange(workspace: &Workspace, python: Result<PathBuf>, features: &[&str]) -> Result<Option<String>> {
    let python = match python {
        Ok(python) => python,
        Err(error) => return Ok(Some(format!("{error:#}"))),
    };
    let folder = tempfile::tempdir()?;
    run_command(&mut cargo(workspace, &[&BUILD[..], features].concat()))?;
    let example = workspace.release_folder()?.join("examples").join(EXAMPLE);
    let ours = |task: &str| run_command(Command::new(&example).arg(task).arg(folder.path()));
    ours("write")?;
    run_command(
        Command::new(&python)
            .current_dir(workspace.root())
            .arg(CHECK)
            .arg(folder.path())
            .arg(FIXTURES),
    )?;
    ours("read")?;
    Ok(None)
}

/// The Python of an environment with the requirements, made on first use.
fn environment(workspace: &Workspace) -> Result<PathBuf> {
    let requirements = workspace.root().join(REQUIREMENTS);
    let wanted = fs::read_to_string(&requirements)?;
    let folder = cache_folder()?.join("flow-train").join("interop-venv");
    let python = folder.join("bin").join("python");
    // Written last, so that an environment that was broken off is made anew.
    let made_from = folder.join("requirements.txt");
    if fs::read_to_string(&made_from).is_ok_and(|made| made == wanted) {
        return Ok(python);
    }
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    say!("making a Python environment in {} (6 GB)", folder.display());
    install(&folder, &python, &requirements)?;
    fs::write(made_from, wanted)?;
    Ok(python)
}

fn install(folder: &Path, python: &Path, requirements: &Path) -> Result<()> {
    run_command(Command::new("python3").args(["-m", "venv"]).arg(folder))
        .context("Python 3 with its `venv` module is needed (Debian: `apt install python3-venv`)")?;
    run_command(
        Command::new(python)
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-cache-dir",
                "--requirement",
            ])
            .arg(requirements),
    )
    .context("diffusers and peft cannot be installed")
}
