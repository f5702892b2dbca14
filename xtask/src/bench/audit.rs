//! `cargo xtask bench audit`: that training computes the ratios that the rollout did, with every combination of what computes.
//!
//! `flow-train audit` prints a row for each; here it is built for the config's device, and fails if a ratio is not exactly 1.

use super::job::{Asked, Job};
use crate::process::run as run_command;
use crate::workspace::Workspace;
use anyhow::Result;
use clap::Args;

/// What to audit.
#[derive(Debug, Args)]
pub struct Options {
    /// The config whose model and rollout are audited.
    #[arg(default_value = "configs/digits-grpo.toml")]
    config: String,
    #[command(flatten)]
    asked: Asked,
    /// Only combinations with this value in a column, as `attention=wgmma`; columns narrow it down, values of one add up.
    #[arg(long)]
    only: Vec<String>,
}

/// Audits.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let mut command = Job::new(workspace, &options.config, &options.asked)?.command("audit", &[]);
    command.arg("--all");
    for value in &options.only {
        command.args(["--only", value]);
    }
    run_command(&mut command)
}
