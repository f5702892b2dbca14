//! `cargo xtask bench audit`: that training computes the ratios that the rollout did, with every combination of what computes.
//!
//! `flow-train audit` prints a row for each; here it is built for the config's device, and fails if a ratio is not exactly 1.

use super::built::Built;
use crate::process::run as run_command;
use crate::workspace::Workspace;
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;
use std::process::Command;

/// What to audit.
#[derive(Debug, Args)]
pub struct Options {
    /// The config whose model and rollout are audited.
    #[arg(default_value = "configs/digits-grpo.toml")]
    config: String,
    /// A value of the config, as `SECTION.KEY=VALUE`; may be given several times.
    #[arg(long)]
    set: Vec<String>,
    /// Only combinations with this value in a column, as `attention=wgmma`; columns narrow it down, values of one add up.
    #[arg(long)]
    only: Vec<String>,
    /// For NVIDIA GPUs, too.
    #[arg(long)]
    cuda: bool,
    /// `flow-train`, if it is built already.
    #[arg(long)]
    program: Option<PathBuf>,
}

/// Audits.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let built = Built::program("flow-train").with_cuda(options.cuda);
    let mut command = Command::new(built.or_given(workspace, &options.program)?);
    command
        .arg("audit")
        .arg("--quiet")
        .arg(workspace.path(&options.config));
    for (name, values) in [("--set", &options.set), ("--only", &options.only)] {
        for value in values {
            command.args([name, value]);
        }
    }
    run_command(&mut command)
}
