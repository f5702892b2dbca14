//! `cargo xtask golden`: the committed weights, and the documented runs, made again.

mod runs;
#[cfg(test)]
mod tests;
mod weights;

use crate::process::{cargo, run as run_command};
use crate::terminal::say;
use crate::workspace::Workspace;
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use std::path::Path;

/// What to make again.
#[derive(Debug, Args)]
pub struct Options {
    /// One half only.
    #[arg(long, value_enum)]
    only: Option<Half>,
    /// Jobs by the name of their config, such as `digits-grpo`. Without any: the main job's runs, and the weights of
    /// every config.
    jobs: Vec<String>,
    /// Seeds of the runs.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3")]
    seeds: Vec<u64>,
    /// Overrides of every run, as `flow-train` takes them; for trying out, so nothing is written.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Half {
    /// The pretrained weights.
    Weights,
    /// The runs over several seeds.
    Runs,
}

const MAIN_JOB: &str = "digits-grpo";

/// Makes them.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    run_command(&mut cargo(
        workspace,
        &["build", "--release", "--package", "flow-train"],
    ))?;
    let program = workspace.program()?;
    if options.only != Some(Half::Runs) {
        compare_weights(workspace, &program, options)?;
    }
    if options.only != Some(Half::Weights) {
        let default = [MAIN_JOB.to_owned()];
        let jobs = if options.jobs.is_empty() {
            &default[..]
        } else {
            &options.jobs[..]
        };
        for job in jobs {
            runs::run(workspace, &program, job, &options.seeds, &options.set)?;
        }
    }
    Ok(())
}

/// Makes the committed weights again. A job without any still has its runs.
fn compare_weights(workspace: &Workspace, program: &Path, options: &Options) -> Result<()> {
    if weights::run(workspace, program, &options.jobs)? > 0 {
        return Ok(());
    }
    let of = match &options.jobs[..] {
        [] => String::new(),
        jobs => format!(" of {}", jobs.join(", ")),
    };
    let none = format!(
        "no config{of} in `configs/` starts from weights in `{}/` that its own `[pretrain]` makes",
        weights::COMMITTED
    );
    if options.only == Some(Half::Weights) {
        bail!("{none}; name jobs that do, or leave the names out for all that do");
    }
    say!("{none}: no weights are compared");
    Ok(())
}
